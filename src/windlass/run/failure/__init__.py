"""Find why a run failed: how each rank ended, the evidence, and the root cause."""
