"""Push files of a shared file system to node-local storage, through trees of nodes.

The node-side code is a service of the agents.
"""
