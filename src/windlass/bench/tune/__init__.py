"""Finding the settings that are best for one script on one allocation, by trying them."""
