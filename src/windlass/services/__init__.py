"""What agents host, put together for a run: the cooperative cache and staging. `node/` travels with the agent."""
