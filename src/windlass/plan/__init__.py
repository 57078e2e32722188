"""Planning: request + site + topology + allocation become a `Plan`.

Pure: nothing here reads a file, a variable or a clock.
"""
