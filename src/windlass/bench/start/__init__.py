"""Measure start-up: N nodes on one machine import an environment from a shared file system, in several ways."""
