"""Process, lock, file, mount and message helpers. Every layer may import them."""
