"""The node-side part of the doctor. Python 3.9 and its standard library only."""
