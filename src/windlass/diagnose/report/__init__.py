"""A run as one page: what ran where, how its time was spent, why it was slow, and what to try next."""
