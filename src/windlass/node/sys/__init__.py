"""Processes, locks, files, mounts and messages of one machine. Every layer may import these modules."""
