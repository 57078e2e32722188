"""What runs on each node: the closure of the host's network libraries and its placing. Standard library, Python 3.9."""
