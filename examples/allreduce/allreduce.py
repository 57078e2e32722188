"""The sum of a gradient over all ranks, as Horovod makes it, by mpi4py: a script that knows MPI and nothing else.

windlass run --ranks-per-node 2 --launcher hydra allreduce.py
"""

from __future__ import annotations

import array

from mpi4py import MPI

world = MPI.COMM_WORLD
gradient = array.array("d", [float(world.rank)] * 1024)
total = array.array("d", bytes(8 * 1024))
world.Allreduce(gradient, total, op=MPI.SUM)
expected = sum(range(world.size))
assert set(total) == {float(expected)}, (set(total), expected)
if world.rank == 0:
    print(f"{world.size} ranks: the sum is {expected} everywhere, the average {expected / world.size}", flush=True)
