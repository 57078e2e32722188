"""Health checks, watching a run, reports, and bug reports."""
