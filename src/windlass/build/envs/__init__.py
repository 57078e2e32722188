"""Python environments on the host: planning, making, checking and packing them. Variables of ranks: `environment/`."""
