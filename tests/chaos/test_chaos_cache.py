"""Random faults while readers compare every byte with the source. Seeded; a failure prints the seed and all state."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chaos.network import Network, network
from fuse.agents import CacheAgent, write_agents_file
from fuse.caches import Mounts, wait_ready
from requirements import require, require_fuse
from windlass.node.cache import control

pytestmark = pytest.mark.fuse

NODES = 6
# Every read must come back within this: all ancestors silent, then the shared file system.
READ_BOUND_S = 15.0


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    require_fuse()
    ready = os.geteuid() == 0 and shutil.which("ip") and shutil.which("nsenter")
    require("fuse", bool(ready), "network namespaces need root, ip and nsenter")


class Chaos:
    """Breaks random peers, mends them again, and keeps an account of what it did."""

    def __init__(self, seed: int, caches: Mounts, agents: list[CacheAgent], net: Network) -> None:
        self._chance = random.Random(seed)
        self._caches = caches
        self._agents = agents
        self._net = net
        self._stopped: set[int] = set()
        self._cut: set[int] = set()
        self._dead: set[int] = set()
        self.deeds: list[str] = []
        self._start = time.monotonic()

    def one_deed(self) -> None:
        node = self._chance.randrange(NODES)
        deed = self._chance.choice(("kill", "stop", "cut", "mend", "mend"))
        self.deeds.append(f"{time.monotonic() - self._start:.2f} {deed} {node}")
        if deed == "kill" and node not in self._dead and node not in self._stopped:
            os.kill(self._caches.pids[node]["peer"], signal.SIGKILL)
            self._dead.add(node)
        elif deed == "stop" and node not in self._dead:
            os.kill(self._caches.pids[node]["peer"], signal.SIGSTOP)
            self._stopped.add(node)
        elif deed == "cut":
            self._net.cut(node)
            self._cut.add(node)
        else:
            self._mend(node)

    def _mend(self, node: int) -> None:
        if node in self._stopped:
            os.kill(self._caches.pids[node]["peer"], signal.SIGCONT)
            self._stopped.discard(node)
        if node in self._cut:
            self._net.join(node)
            self._cut.discard(node)
        if node in self._dead:
            self._caches.pids[node]["peer"] = start_peer_again(self._agents[node], self._caches, self._net)
            self._dead.discard(node)

    def mend_all(self) -> None:
        for node in range(NODES):
            self._mend(node)


class Reader(threading.Thread):
    """Reads random pieces of random files through one mount and compares them with the source."""

    def __init__(self, seed: int, source: Path, view: Path, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self._chance = random.Random(seed)
        self._source, self._view, self._end = source, view, end
        self._names = sorted(p.name for p in source.iterdir())
        self.wrong: list[str] = []
        self.reads = 0
        self.slowest_s = 0.0
        self.at = ""

    def run(self) -> None:
        while not self._end.is_set() and not self.wrong:
            name = self._chance.choice(self._names)
            want = (self._source / name).read_bytes()
            offset = self._chance.randrange(len(want))
            size = self._chance.choice((100, 5000, 200_000))
            began = time.monotonic()
            self.at = f"{name} {offset}+{size} since {began:.2f}"
            try:
                with (self._view / name).open("rb") as file:
                    got = os.pread(file.fileno(), size, offset)
                if got != want[offset : offset + size]:
                    self.wrong.append(f"{self._view / name} at {offset}+{size}: wrong bytes")
            except OSError as error:
                self.wrong.append(f"{self._view / name} at {offset}+{size}: {error}")
            self.at = ""
            self.reads += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def start_peer_again(agent: CacheAgent, caches: Mounts, net: Network) -> int:
    """The peer process of a node, from the modules that its agent has unpacked."""
    config = caches.configs[agent.node]
    argv = [
        sys.executable,
        "-S",
        "-I",
        "-c",
        control._PROGRAM,
        str(agent.code),
        "peer",
        f"{config.state_dir}/config.json",
    ]
    with (Path(config.state_dir) / "peer.log").open("ab") as log:
        return subprocess.Popen([*net.inside(agent.node), *argv], stdout=log, stderr=log, start_new_session=True).pid


def dump(caches: Mounts, chaos: Chaos, readers: list[Reader], seed: int) -> str:
    lines = [f"seed {seed}", "deeds: " + ", ".join(chaos.deeds)]
    lines += [
        f"reader {n}: {r.reads} reads, slowest {r.slowest_s:.1f} s, at {r.at} {r.wrong}" for n, r in enumerate(readers)
    ]
    for node in range(NODES):
        for role in ("peer", "mount"):
            with contextlib.suppress(OSError):
                os.kill(caches.pids[node][role], signal.SIGUSR1)
        time.sleep(0.2)
        for role in ("peer", "mount"):
            with contextlib.suppress(OSError):
                lines.append(f"--- node {node} {role}\n{caches.log(node, role)[-3000:]}")
    return "\n".join(lines)


def chaos_run(base: Path, mark: str, seed: int, seconds: float) -> None:
    source = base / "shared"
    source.mkdir()
    chance = random.Random(seed)
    for number in range(40):
        (source / f"file{number}").write_bytes(chance.randbytes(chance.choice((1, 5000, 300_000, 1_500_000))))
    with network(mark, NODES) as net:
        # A small budget and small chunks: eviction and refetching all the time.
        config = {"fanout": 2, "budget_bytes": 4 << 20, "chunk_bytes": 64 << 10, "peer_timeout_s": 1.0}
        write_agents_file(base, net.hosts, source, **config)
        agents = [CacheAgent(base, node, before=tuple(net.inside(node))) for node in range(NODES)]
        try:
            run_readers(agents, net, seed, seconds, source)
        finally:
            for agent in agents:
                agent.stop()


def run_readers(agents: list[CacheAgent], net: Network, seed: int, seconds: float, source: Path) -> None:
    caches = Mounts([agent.wait_up() for agent in agents])
    for config in caches.configs:
        said = {role: control._read_json(f"{config.state_dir}/{role}.json") or {} for role in ("peer", "mount")}
        caches.pids.append({role: int(news["pid"]) for role, news in said.items()})
        wait_ready(config)
    chaos = Chaos(seed, caches, agents, net)
    end = threading.Event()
    readers = [Reader(seed + n, source, caches.view(n % NODES, source), end) for n in range(2 * NODES)]
    for reader in readers:
        reader.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not any(r.wrong for r in readers):
        chaos.one_deed()
        time.sleep(0.4)
    end.set()
    give_up = time.monotonic() + READ_BOUND_S
    for reader in readers:
        reader.join(max(0.0, give_up - time.monotonic()))
    hanging = [r for r in readers if r.is_alive()]
    wrong = [w for r in readers for w in r.wrong]
    slow = [r for r in readers if r.slowest_s > READ_BOUND_S]
    state = dump(caches, chaos, readers, seed) if hanging or wrong or slow else ""
    chaos.mend_all()
    assert not wrong, f"{wrong}\n{state}"
    assert not hanging, f"readers hang\n{state}"
    assert not slow, f"a read took longer than {READ_BOUND_S} s\n{state}"
    assert sum(r.reads for r in readers) > 100


def test_random_faults_cost_time_never_bytes(tmp_path: Path, mark: str) -> None:
    chaos_run(tmp_path, mark, seed=20261115, seconds=12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_random_faults_for_longer(tmp_path: Path, mark: str, seed: int) -> None:
    chaos_run(tmp_path, mark, seed=seed, seconds=60)
