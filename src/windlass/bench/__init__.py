"""Measurements of whole jobs: collectives, matrix products, training steps, input. No torch at import time."""
