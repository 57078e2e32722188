"""A plan as text that a shell or a scheduler runs. Pure."""
