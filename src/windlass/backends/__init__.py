"""Schedulers, launchers and container runtimes: three independent axes."""
