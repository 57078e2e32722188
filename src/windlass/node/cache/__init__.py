"""The processes of the cooperative cache on one node."""
