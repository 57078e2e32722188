"""The honest ceiling of a device: large matrix products on random numbers, in each type that it has."""
