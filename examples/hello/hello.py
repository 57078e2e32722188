"""Every MPI rank says where it is, and the ranks agree on a sum: the smallest program that shows a working MPI."""

from __future__ import annotations

import os

from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    total = world.allreduce(world.Get_rank())
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    print(f"rank {world.Get_rank()} of {world.Get_size()} on {MPI.Get_processor_name()}: sum {total}, cpus {cpus}")


if __name__ == "__main__":
    main()
