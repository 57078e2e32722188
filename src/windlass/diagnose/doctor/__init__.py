"""Health checks before and beside a run: on every node at once, against the plan, with a remedy for what is wrong."""
