"""The sub-commands of `windlass bench`: they parse and print; `windlass.bench` measures."""
