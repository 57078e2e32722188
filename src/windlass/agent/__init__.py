"""The agent: one small process per node for the time of a job, which hosts services and knows none of them.

`node/` travels to the nodes as one file; `bundle` makes that file; `words` are the words that start it there.
"""
