"""Images and Python environments."""
