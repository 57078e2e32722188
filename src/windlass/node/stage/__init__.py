"""Staging on the node: standard library only, Python 3.9 or newer."""
