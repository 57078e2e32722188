"""Whole-job measurements: collectives, matrix products, training steps, input. Nothing here imports torch at the top of a package."""
