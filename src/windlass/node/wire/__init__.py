"""Authenticated connections between nodes, and the tree that connects them."""
