"""Frozen values that the rest of windlass passes around. Pure: nothing here reads a file, a variable or a clock."""
