"""The cooperative cache: the processes of one node."""
