"""Processes that run next to the ranks: cache, sampler and heartbeat services of the agents."""
