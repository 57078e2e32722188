"""The command line. One short file per command; each returns a `Result`, and `main` renders it as text or JSON."""
