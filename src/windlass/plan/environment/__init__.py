"""The environment of a rank: which variables, which node-local caches, which modules and activation, and why. Pure."""
