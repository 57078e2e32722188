"""The cooperative cache: N nodes read an environment from a shared file system, which sees the work of about one.

`traces` keeps what was recorded; `node/` is what runs on the nodes, hosted there by the agents. The cache knows hosts
and paths, nothing of schedulers.
"""
