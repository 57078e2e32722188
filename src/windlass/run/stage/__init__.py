"""Pushes files of a shared file system to storage of the nodes, through trees of nodes.

`node/` is a service of the agents.
"""
