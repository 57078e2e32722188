"""Our code on the nodes.

`ship` carries the code to the nodes. `step` runs a task on each node and collects the answers to a question. `start`
runs one small process per node, the agent, for the duration of a job.
"""
