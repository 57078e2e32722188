"""The environment of a rank: variables, node-local caches, modules, activation, and the reasons. Pure."""
