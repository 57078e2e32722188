"""Start and end one Ray cluster on the nodes of a run."""

# The program of the ranks, in the run folder.
ARCHIVE_FILE = "ray.pyz"
# The key of the cluster, in the run folder.
TOKEN_FILE = "ray.token"
