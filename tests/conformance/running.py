"""Runs a program through a launcher's exact words: the real srun, hydra and Open MPI, and stand-ins for PALS and Flux.

Each launcher gets the surroundings in which it really runs: an allocation, a host file, a job. What comes back are the
lines of each rank and those of the launcher itself, however the launcher hands them over.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import leftovers
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require, require_mpi
from standins.sites import flux_site, pbs_site
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import LaunchSpec, LineReader
from windlass.model.origin import ArgumentSpec, argv_of
from windlass.model.site import LauncherSpec

TIMEOUT_S = 60


@dataclass(frozen=True)
class Ended:
    """What a launch left: its code, each rank's lines, and the launcher's own."""

    code: int
    ranks: dict[int, list[str]]
    own: list[str]

    def __str__(self) -> str:
        return f"code {self.code}\nranks {self.ranks}\nown {self.own}"


@dataclass(frozen=True)
class Machine:
    """Where a launcher runs: words before its own, its environment, and what the site adds to its words."""

    name: str
    folder: Path
    env: Mapping[str, str]
    site: LauncherSpec
    hosts: tuple[str, ...]
    before: tuple[str, ...] = ()
    own_names: bool = False
    """A task can tell by its host's name where it is."""
    cluster: SlurmCluster | None = None

    @contextlib.contextmanager
    def inside(self) -> Iterator[Machine]:
        """The same machine from inside one job that lasts as long as this, for steps beside each other."""
        if self.cluster is None:
            yield self
            return
        asked = ("salloc", "--no-shell", *self.before[2:])
        said = subprocess.run(asked, env=dict(self.env), capture_output=True, text=True, timeout=TIMEOUT_S).stderr
        found = re.search(r"Granted job allocation (\d+)", said)
        assert found, said
        try:
            yield replace(self, before=(), env={**self.env, "SLURM_JOB_ID": found[1], "SLURM_JOBID": found[1]})
        finally:
            subprocess.run(("scancel", found[1]), env=dict(self.env), timeout=TIMEOUT_S)
            self.cluster.wait_quiet()

    def spec(self, nodes: int, ranks_per_node: int) -> LaunchSpec:
        launcher = get_launcher(self.name)
        base = LaunchSpec(nodes=nodes, ranks_per_node=ranks_per_node, output_dir=str(self.folder), unbound=True)
        text = launcher.host_file_text(self.hosts[:nodes], base)
        if text is None:
            return base
        path = self.folder / "hosts"
        path.write_text(text)
        return LaunchSpec(
            nodes=nodes, ranks_per_node=ranks_per_node, output_dir=str(self.folder), unbound=True, host_file=str(path)
        )

    def argv(self, spec: LaunchSpec, program: Sequence[str]) -> list[str]:
        return [*self.before, *argv_of(get_launcher(self.name).arguments(spec, self.site)), *program]

    def start(self, spec: LaunchSpec, program: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(spec, program),
            env=dict(self.env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self, child: subprocess.Popen[bytes], nodes: int) -> Ended:
        """Wait for the end; after the deadline everything is killed and the test fails."""
        try:
            out, err = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate(timeout=30)
            pytest.fail(f"{self.name} still runs after {TIMEOUT_S} s", pytrace=False)
        launcher = get_launcher(self.name)
        streams = [out, err]
        if launcher.output == "files":
            paths = [self.folder / launcher.node_log.format(node_rank=node) for node in range(nodes)]
            streams += [path.read_bytes() for path in paths if path.exists()]
        return _sort(self.name, child.returncode, streams)

    def run(self, spec: LaunchSpec, program: Sequence[str]) -> Ended:
        return self.finish(self.start(spec, program), spec.nodes)


def _sort(name: str, code: int, streams: Sequence[bytes]) -> Ended:
    ranks: dict[int, list[str]] = {}
    own: list[str] = []
    for stream in streams:
        reader = LineReader(get_launcher(name))
        lines = stream.decode(errors="surrogateescape").splitlines()
        for rank, text in (*map(reader.feed, lines), *reader.flush()):
            if rank is None:
                own.append(text)
            else:
                ranks.setdefault(rank, []).append(text)
    return Ended(code=code, ranks=ranks, own=own)


@contextlib.contextmanager
def machine(name: str, folder: Path, request: pytest.FixtureRequest, *, bound: bool = False) -> Iterator[Machine]:
    """The surroundings of one launcher; a missing part is a visible skip. `bound`: nodes that really bind."""
    makers = {"srun": _srun, "hydra": _hydra, "openmpi": _openmpi, "pals": _pals, "flux": _flux, "local": _local}
    with _srun_bound(folder, request) if bound and name == "srun" else makers[name](folder, request) as made:
        yield made
    mark = os.environ[leftovers.MARK_VARIABLE]
    found = leftovers.look_until_clean(mark, folder, patience_s=20)
    if found:
        text = found.text()
        leftovers.remove(found)
        pytest.fail(f"the launcher left behind:\n{text}", pytrace=False)


@contextlib.contextmanager
def _srun_bound(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with _srun(folder, request, "slurm_bound") as made:
        yield made


@contextlib.contextmanager
def _srun(folder: Path, request: pytest.FixtureRequest, fixture: str = "slurm") -> Iterator[Machine]:
    cluster: SlurmCluster = request.getfixturevalue(fixture)
    before = ("salloc", "--quiet", "--nodes=2", "--exclusive")
    site = LauncherSpec(kind="srun")
    yield Machine("srun", folder, cluster.env(), site, cluster.nodes[:2], before, own_names=True, cluster=cluster)


def _plain_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "OMPI", "HYDRA"))}


@contextlib.contextmanager
def _hydra(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Two hosts that are both this machine; `fork` starts their proxies here instead of by ssh."""
    require_mpi()
    own = ArgumentSpec(words=("-launcher", "fork"), because="there is no ssh here", source="test")
    site = LauncherSpec(kind="hydra", executable=str(hydra_mpiexec()), arguments=(own,))
    env = _plain_env() | {"HYDRA_LAUNCHER": "fork"}  # for steps, which take no words of a site
    yield Machine("hydra", folder, env, site, ("127.0.0.1", "127.0.0.2"))


# Its daemons would share one folder for their sessions, which daemons on different hosts never do.
_HERE_INSTEAD_OF_SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
mkdir -p "$TMPDIR/$1"
export TMPDIR="$TMPDIR/$1"
shift
exec sh -c "$*"
"""


@contextlib.contextmanager
def _openmpi(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Debian's Open MPI with two pretended hosts: its remote shell runs the daemon here."""
    program = shutil.which("mpirun.openmpi")
    require("openmpi", program is not None, "no mpirun.openmpi in PATH (Debian's openmpi-bin)")
    shell = folder / "here-instead-of-ssh"
    shell.write_text(_HERE_INSTEAD_OF_SSH)
    shell.chmod(0o755)
    own = ArgumentSpec(words=("--mca", "plm_rsh_agent", str(shell)), because="there is no ssh here", source="test")
    env = _plain_env() | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Not the test's own folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="wlompi.") as temporary:
        env["TMPDIR"] = temporary
        env["OMPI_MCA_plm_rsh_agent"] = str(shell)  # for steps, which take no words of a site
        yield Machine("openmpi", folder, env, LauncherSpec(executable=program, arguments=(own,)), ("node1", "node2"))


@contextlib.contextmanager
def _pals(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with pbs_site(folder / "pbs") as site:
        hosts = site.nodes[:2]
        (folder / "nodefile").write_text("".join(f"{host}\n" for host in hosts))
        env = site.env | {"PBS_JOBID": "7.head", "PBS_NODEFILE": str(folder / "nodefile")}
        yield Machine("pals", folder, env, LauncherSpec(kind="pals"), hosts, own_names=True)


@contextlib.contextmanager
def _flux(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with flux_site(folder / "flux", cores=4) as site:
        yield Machine("flux", folder, site.env, LauncherSpec(kind="flux"), site.nodes[:2], own_names=True)


@contextlib.contextmanager
def _local(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    yield Machine("local", folder, _plain_env(), LauncherSpec(kind="local"), (socket.gethostname(),))
