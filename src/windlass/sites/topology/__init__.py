"""What a node looks like (probed from /sys or described by a site) and where its ranks sit (computed, pure).

`probe` and `described` make a `Topology`, `bind` makes a `Binding` of it, `check` tests one against its invariants and
`draw` shows both to a person. Nothing here runs a command or knows a scheduler.
"""
