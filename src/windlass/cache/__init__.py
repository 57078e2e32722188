"""The cooperative cache: N nodes read an environment from a shared file system, which sees the work of about one.

`node/` is what runs on the nodes. This side starts, asks and stops them.
"""
