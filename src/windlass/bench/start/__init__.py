"""Start-up: N nodes on one machine import an environment that lies on a shared file system, in several ways."""
