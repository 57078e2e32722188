"""Our code on the nodes: `ship` carries it there, `step` runs a task on each node, `ask` collects the answers of one
question, and `start` keeps one small process per node, the agent, for the time of a job.
"""
