"""Find the best settings for one script on one allocation by trying them."""
