"""Start and end one Ray cluster on the nodes of a run."""

ARCHIVE_FILE = "ray.pyz"
"""The program of the ranks, in the run folder."""
TOKEN_FILE = "ray.token"
"""The key of the cluster, in the run folder."""
