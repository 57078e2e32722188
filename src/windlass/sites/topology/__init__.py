"""The topology of a node (probed from /sys or described by a site) and the placement of its ranks (computed, pure).

`probe` and `described` make a `Topology`, `bind` makes a `Binding` from it, `check` tests a binding against its
invariants, and `draw` shows both to a person. This package runs no command and does not depend on a scheduler.
"""
