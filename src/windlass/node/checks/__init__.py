"""The part of the doctor that travels to the nodes: Python 3.9 and its standard library, nothing else."""
