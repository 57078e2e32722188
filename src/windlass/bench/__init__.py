"""Whole-job measurements: collectives, matrix products, training steps, input. No torch at import time."""
