"""Processes of this machine: run a command and wait for it, or start a child that ends with windlass."""
