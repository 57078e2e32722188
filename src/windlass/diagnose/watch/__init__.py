"""What a job does while it runs: records of the ranks' steps, samples of the nodes, and what follows from them.

`node/` travels to the nodes: the start-up hook of the ranks, and the samplers. The rest reads what they wrote.
"""
