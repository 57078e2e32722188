"""Staging on the node. Standard library only, Python 3.9 or newer."""
