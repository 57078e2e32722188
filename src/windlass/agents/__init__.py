"""One small process per node for the time of a job, and the services that it hosts.

`node/` travels to the nodes as one file; `bundle` makes that file; `command` is the argv that starts it there;
`control` starts and ends the agents of a run.
"""
