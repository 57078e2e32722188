"""A run as one page: its nodes and ranks, how its time was spent, why it was slow, and what to try next."""
