"""Images: what is inside them, which of the host's network libraries they need, recipes for them, and building them."""
