"""The sub-commands of `windlass bench`. They parse and print, and `windlass.bench` measures."""
