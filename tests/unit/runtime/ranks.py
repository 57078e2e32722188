"""Starts the ranks of `training.py` as real processes, with a deadline, and compares what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.slurm import free_ports
from forking import Forked

SCRIPT = Path(__file__).with_name("training.py")
DEADLINE_S = 150.0


@dataclass(frozen=True)
class Ended:
    """One rank that has ended."""

    code: int
    output: str


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """The torch variables, and nothing of a launcher that the tests themselves may run under."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI_", "OMPI_", "PALS_", "FLUX_"))}
    path = os.pathsep.join(p for p in sys.path if p)
    rank_words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    words = {**rank_words, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": path, "OMP_NUM_THREADS": 1}
    return {**kept, **{k: str(v) for k, v in words.items()}}


class Training:
    """Ranks that run. Use `with`: whatever happens, none is left behind."""

    def __init__(self, world: int, *args: object, env: dict[str, str] | None = None) -> None:
        port = free_port()
        command = [str(SCRIPT), *map(str, args)]
        self.ranks = [
            Forked(
                [part.replace("{rank}", str(rank)) for part in command],
                {**environment(rank, world, port), **(env or {})},
            )
            for rank in range(world)
        ]

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *exc: object) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()

    def wait(self, deadline_s: float = DEADLINE_S) -> list[Ended]:
        """All ranks' ends; a rank that does not end in time fails the test with what it said."""
        end = time.monotonic() + deadline_s
        ended = []
        for number, rank in enumerate(self.ranks):
            try:
                output, _ = rank.communicate(timeout=max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                rank.kill()
                raise AssertionError(f"rank {number} did not end: {rank.communicate()[0]}") from None
            assert rank.returncode is not None
            ended.append(Ended(rank.returncode, output))
        return ended


def train(world: int, *args: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run to the end; every rank must end with `code`. Returns rank 0's output."""
    with Training(world, *args, env=env) as training:
        ended = training.wait()
    assert [e.code for e in ended] == [code] * world, "\n".join(e.output for e in ended)
    return ended[0].output


def free_port() -> int:
    """Not one that the kernel gives to connections: a rank that knocks before the first one listens could get it as its
    own end, and would talk to itself."""
    return free_ports(1)[0]


def losses(path: Path) -> dict[str, str]:
    """Step to loss, the last line of a step counting: a resumed run repeats the steps after its snapshot."""
    return dict(line.split() for line in path.read_text().splitlines())
