"""Planning: make a `Plan` from request, site, topology and allocation.

Pure: this package reads no file, no environment variable and no clock.
"""
