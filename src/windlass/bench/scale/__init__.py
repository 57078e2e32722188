"""The same benchmark at several sizes: what did more nodes (or ranks) buy? CASE: collectives, ddp or llm.

Work per device stays the same, so the rate of a device should too."""
