"""Environments of many states with the verdict that each must get."""
