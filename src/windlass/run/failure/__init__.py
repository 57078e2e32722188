"""Why a run failed: how each rank ended, what was seen of it, and the root cause."""
