"""Pretended sites for tests: the environment in which a stand-in's commands are found, and the end of all it started.

`with pbs_site(folder) as site:` then run commands with `site.env`. On leaving, whatever still runs is killed; nothing
of a job that did not end by itself survives the test. Under `make test-flux` and `make test-pbs` the same functions
hand out the real scheduler in which the tests themselves run, so that every test of a stand-in can be held against it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_KEPT = ("LANG", "LC_ALL", "TERM", "TZ", "WLTEST_MARK", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


_FUSE = re.compile(r" - fuse(\.\S+)? ")
# A new mount namespace begins with copies of all mounts of this machine: those of other tests must not live on in it.
_FORGET_OTHERS = (
    "while read -r _ point kind _; do case $kind in fuse|fuse.*) "
    'umount -l "$(printf %b "$point")" ;; esac; done < /proc/self/mounts'
)


@dataclass(frozen=True)
class Site:
    """`env` is that of a user's shell on the login node; `home` is that user's home."""

    env: dict[str, str]
    folder: Path
    home: Path
    nodes: tuple[str, ...]

    def mounts(self) -> list[str]:
        """What jobs have mounted on the nodes and not taken away."""
        found = []
        for path in (self.folder / "holders").glob("*"):
            with contextlib.suppress(OSError):  # a lost node has none
                lines = Path(f"/proc/{path.read_text()}/mountinfo").read_text().splitlines()
                found += [f"{path.name}: {line.split()[4]}" for line in lines if _FUSE.search(line)]
        return found

    def lose(self, node: str) -> None:
        """Kill everything that runs on a node, and the node: nothing starts there any more."""
        holder = int((self.folder / "holders" / node).read_text())
        namespace = Path(f"/proc/{holder}/ns/mnt")
        with namespace.open("rb"):  # while it is open, no other namespace gets its number
            number = namespace.readlink()
            os.kill(holder, signal.SIGKILL)  # first, so that nothing new starts
            for path in Path("/proc").glob("[0-9]*/ns/mnt"):
                with contextlib.suppress(OSError):
                    if path.readlink() == number:
                        os.kill(int(path.parts[2]), signal.SIGKILL)


def real() -> str:
    """`flux` or `pbs` where the tests run inside the real one, else empty."""
    return os.environ.get("WINDLASS_TEST_REAL", "")


@contextlib.contextmanager
def _real_flux(folder: Path) -> Iterator[Site]:
    """The instance that the tests run in. What a test leaves in its queue is cancelled."""
    home = folder / "home"
    home.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WINDLASS_"))}
    nodes = tuple(f"node{number}" for number in range(1, 5))
    try:
        yield Site(env=env | {"HOME": str(home)}, folder=folder, home=home, nodes=nodes)
    finally:
        for argv in (["flux", "cancel", "--all"], ["flux", "queue", "drain", "--timeout=60s"]):
            subprocess.run(argv, env=env, capture_output=True, timeout=90, check=False)


def _plain_env(path: Sequence[Path], home: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    found = os.pathsep.join([*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"])
    return env | {"PATH": found, "HOME": str(home), "SHELL": "/bin/bash", "USER": "user", "LOGNAME": "user"}


def _hosts_file(folder: Path, nodes: Sequence[str]) -> Path:
    """Every pretended host has a loopback address of its own."""
    lines = ["127.0.0.1 localhost"]
    for at, node in enumerate(nodes):
        lines.append(" ".join(dict.fromkeys((f"127.0.0.{11 + at}", node, node.split(".", 1)[0]))))
    path = folder / "hosts"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextlib.contextmanager
def _held(folder: Path, nodes: Sequence[str]) -> Iterator[Path]:
    """A process per node that holds its name, its /etc/hosts and its mounts, where this user may have such; the folder
    that says which. With the process the mounts go."""
    holders = folder / "holders"
    holders.mkdir()
    script = f'hostname "$0" && mount --bind "$1" /etc/hosts && {_FORGET_OTHERS} && echo held && exec sleep infinity'
    private = ("setpriv", "--pdeathsig", "KILL", "unshare", "--uts", "--mount", "--propagation", "private")
    hosts = str(_hosts_file(folder, nodes))
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for node in nodes:
            argv = (*private, "sh", "-c", script, node.split(".", 1)[0], hosts)
            started[node] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        for node, child in started.items():
            assert child.stdout
            if child.stdout.readline() == b"held\n":
                (holders / node).write_text(str(child.pid))
        yield holders
    finally:
        for child in started.values():
            child.kill()
            child.communicate()


@contextlib.contextmanager
def pbs_site(folder: Path, nodes: Sequence[str] = ()) -> Iterator[Site]:
    """A login node with qsub, qstat and qdel, and PALS mpiexec in the jobs."""
    if real() == "pbs":
        home = folder / "home"
        home.mkdir(parents=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WINDLASS_"))}
        yield Site(env=env, folder=folder, home=home, nodes=())
        return
    for name in ("jobs", "scripts", "aux", "spool", "tmp", "deleted", "pids", "home"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    commands = (_HERE / "pbs", _HERE / "pals")
    # A job's shell is a login shell: what a site puts into PATH, it puts there.
    (home / ".bash_profile").write_text("".join(f"PATH='{path}':$PATH\n" for path in commands))
    names = tuple(nodes) or ("node1.cluster.test", "node2.cluster.test", "node3.cluster.test")
    env = _plain_env(commands, home) | {
        "STANDIN_PBS": str(folder),
        "STANDIN_NODES": " ".join(names),
    }
    with _held(folder, names) as holders:
        try:
            yield Site(env=env | {"STANDIN_HOLDERS": str(holders)}, folder=folder, home=home, nodes=names)
        finally:
            _kill_all(folder / "pids")


@contextlib.contextmanager
def flux_site(folder: Path, nodes: Sequence[str] = (), *, cores: int = 2, gpus: int = 0) -> Iterator[Site]:
    """A login node of a Flux machine."""
    if real() == "flux":
        with _real_flux(folder) as site:
            yield site
        return
    for name in ("jobs", "scripts", "cancelled", "expired", "ending", "pids", "home"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = tuple(nodes) or ("node1", "node2", "node3", "node4")
    env = _plain_env((_HERE / "flux",), folder / "home") | {
        "STANDIN_FLUX": str(folder),
        "STANDIN_NODES": " ".join(names),
        "STANDIN_CORES": str(cores),
        "STANDIN_GPUS": str(gpus),
        "FLUX_URI": f"local://{folder}/local-0",
    }
    with _held(folder, names) as holders:
        try:
            yield Site(env=env | {"STANDIN_HOLDERS": str(holders)}, folder=folder, home=folder / "home", nodes=names)
        finally:
            _kill_all(folder / "pids")


def _kill_all(pids: Path) -> None:
    """Runners first, then what they ran: ranks die with their parent, shells are in the runner's children."""
    for path in pids.iterdir():
        for pid in path.read_text().split():
            _kill_tree(int(pid))


def _kill_tree(pid: int) -> None:
    for child in _children(pid):
        _kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
