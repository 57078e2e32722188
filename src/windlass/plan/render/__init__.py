"""Render a plan as text for a shell or a scheduler. Pure."""
