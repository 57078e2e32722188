"""Caches of several nodes on this machine, each with its own address, state folder, store and (where asked) mount."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from windlass.node.cache import control
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.peer import Peer
from windlass.node.cache.roots import declare_roots


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "condition") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} not true after {timeout_s} s"
        time.sleep(0.01)


def configs(base: Path, count: int, root: Path | tuple[Path, ...], **settings: Any) -> list[NodeConfig]:
    """One configuration per node, with a fresh key and addresses that no other test uses."""
    base.mkdir(parents=True, exist_ok=True)
    key = base / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    net = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"
    roots = declare_roots([str(r) for r in (root if isinstance(root, tuple) else (root,))])
    mounted = settings.pop("mounted", False)
    common: dict[str, Any] = {"peer_timeout_s": 1.0, "start_grace_s": 10.0, "budget_bytes": 256 << 20, **settings}
    return [
        NodeConfig(
            job=f"test{os.getpid()}",
            node=node,
            hosts=tuple(f"{net}.{i + 1}" for i in range(count)),
            roots=roots,
            state_dir=str(base / "state" / str(node)),
            key_file=str(key),
            mount=str(base / "mnt" / str(node)) if mounted else "",
            **common,
        )
        for node in range(count)
    ]


@contextlib.contextmanager
def peers(base: Path, count: int, root: Path | tuple[Path, ...], **settings: Any) -> Iterator[list[Peer]]:
    """Peer processes' insides, in this process: real sockets, no mount."""
    key = None
    started: list[Peer] = []
    try:
        for config in configs(base, count, root, **settings):
            key = key or Path(config.key_file).read_bytes()
            Path(config.state_dir).mkdir(parents=True)
            peer = Peer(config, key)
            peer.start()
            started.append(peer)
        wait_for(lambda: all(p.status()["state"] == "ready" for p in started), what="barrier")
        yield started
    finally:
        for peer in started:
            peer.close()


class Mounts:
    """Running caches with mounts: `view(node, path)` is `path` as that node sees it."""

    def __init__(self, nodes: list[NodeConfig]) -> None:
        self.configs = nodes
        self.pids: list[dict[str, int]] = []

    def view(self, node: int, path: Path) -> Path:
        return Path(self.configs[node].mount + str(path))

    def status(self, node: int) -> dict[str, Any]:
        return control.status(self.configs[node].state_dir)[0]

    def log(self, node: int, role: str) -> str:
        return (Path(self.configs[node].state_dir) / f"{role}.log").read_text(errors="replace")

    def total(self, *names: str) -> int:
        """A figure summed over the nodes, `total("source_calls")` or `total("bytes", "shared")`."""
        total = 0
        for node in range(len(self.configs)):
            value: Any = self.status(node)
            for name in names:
                value = value[name]
            total += value
        return total


def wait_ready(config: NodeConfig, timeout_s: float = 20.0) -> dict[str, Any]:
    """The status of a started cache once all nodes of its job are up."""
    own: dict[str, Any] = {}

    def ready() -> bool:
        own.update(control.status(config.state_dir)[0])
        return bool(own["state"] == "ready")

    wait_for(ready, timeout_s, f"all nodes are up, as node {config.node} sees it")
    return own


@contextlib.contextmanager
def mounts(base: Path, count: int, root: Path | tuple[Path, ...], **settings: Any) -> Iterator[Mounts]:
    """Started caches with mounts, all ready; stopped at the end, whatever happened."""
    running = Mounts(configs(base, count, root, mounted=True, **settings))
    try:
        for config in running.configs:
            said = control.start(config)
            running.pids.append({role: news["pid"] for role, news in said.items()})
        for config in running.configs:
            wait_ready(config)
        yield running
    except BaseException:
        for node in range(len(running.pids)):
            with contextlib.suppress(Exception):
                print(json.dumps(running.status(node)))
            for role in ("peer", "mount"):
                with contextlib.suppress(OSError):
                    print(f"--- {node} {role}\n{running.log(node, role)[-2000:]}")
        raise
    finally:
        for config in running.configs:
            control.stop(config.state_dir)


def make_tree(root: Path, seed: int = 1, files: int = 40) -> Path:
    """A small tree with everything a file system test wants: nested, empty, sparse, linked, odd names."""
    chance = random.Random(seed)
    root.mkdir(parents=True)
    for number in range(files):
        folder = root / f"d{number % 5}" / f"e{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(chance.randbytes(chance.choice((0, 1, 100, 4096, 131072, 131073, 400_000))))
    (root / "empty_folder").mkdir()
    (root / "link").symlink_to("d0/e0")
    (root / "absolute").symlink_to(root / "d1")
    (root / "outside").symlink_to("/etc/hostname")
    (root / "dangling").symlink_to("nowhere")
    os.link(root / "d0/e0/f0", root / "d0/hard")
    with (root / "sparse").open("wb") as file:
        file.truncate(3_000_000)
        file.seek(1_000_000)
        file.write(b"middle")
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff\xfename")).write_bytes(b"not utf-8")
    (root / "mode600").write_bytes(b"secret")
    (root / "mode600").chmod(0o600)
    os.utime(root / "mode600", ns=(1_000_000_001, 1_234_567_890_123_456_789))
    return root
