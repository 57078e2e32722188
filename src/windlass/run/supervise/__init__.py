"""Keep a run alive: find out why it ended, decide what to do, and start it again.

`failure.root_cause` and `failure.decide` are pure functions from evidence to a verdict. `evidence` collects the
evidence, `heartbeat_monitor` watches the running ranks, `attempts` stores the history, `loop` acts. The ranks are not
involved.
"""
