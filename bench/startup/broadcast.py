"""A rank that takes part in MPI_Bcast: memory to memory, in pieces, all ranks at the barrier before and after.

Run as a program: `broadcast.py BYTES PIECE_BYTES`; rank 0 prints the seconds.
"""

from __future__ import annotations

import sys


def main(size: int, piece: int) -> None:
    from mpi4py import MPI  # here and not above: to import it is to start MPI

    world = MPI.COMM_WORLD
    memory = memoryview(bytearray(piece))
    world.Bcast([memory[: min(piece, 4096)], MPI.BYTE])  # connections are made when they are first used
    world.Barrier()
    began = MPI.Wtime()
    left = size
    while left > 0:
        world.Bcast([memory[: min(piece, left)], MPI.BYTE])
        left -= piece
    world.Barrier()
    if world.rank == 0:
        sys.stdout.write(f"seconds {MPI.Wtime() - began:.6f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
