"""Frozen values that all parts of windlass exchange. Pure: nothing here reads a file, a variable or a clock."""
