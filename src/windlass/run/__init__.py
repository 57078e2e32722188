"""Runs a plan: gathers the context, makes the run folder, starts the ranks, watches them, and leaves nothing behind."""
