"""Health checks, monitoring of a run, reports, and bug reports."""
