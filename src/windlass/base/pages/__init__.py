"""Self-contained HTML pages and their charts: no library, no script, nothing loaded from anywhere. Pure."""
