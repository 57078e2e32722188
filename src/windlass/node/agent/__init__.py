"""The agent that runs on each node. Standard library only, Python 3.9 or newer."""
