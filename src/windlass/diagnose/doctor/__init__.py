"""Health checks before and during a run: on all nodes in parallel, against the plan, with a remedy for each problem."""
