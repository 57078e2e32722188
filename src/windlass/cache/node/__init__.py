"""What runs on a compute node: standard library only, Python 3.9 or newer, relative imports only.

The folder travels to the nodes as one zip file, so nothing here may import the rest of windlass; a test runs it from a
zip with nothing else importable. `../` holds what the side that starts and asks the nodes may use.
"""
