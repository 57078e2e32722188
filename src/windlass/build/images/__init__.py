"""Container images: inspect them, decide on the host's network libraries, write recipes and build them."""
