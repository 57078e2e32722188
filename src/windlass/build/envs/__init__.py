"""Python environments on the host: plan, create, check and pack them. Variables of ranks: `environment/`."""
