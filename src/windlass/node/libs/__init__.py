"""Find and place the host's network libraries on each node. Standard library, Python 3.9."""
