"""Processes of this machine: run a command to its end, start a child that ends with us, find one by its mark."""
