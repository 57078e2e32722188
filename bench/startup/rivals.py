"""The same bytes by others' means, on the same links: Slurm's sbcast and MPI_Bcast. Both are the real thing.

A Slurm of the measurement's own is started for it, one slurmd per node, each seeing a folder of its own in the place
that sbcast writes to. All of it lives below one process in a process namespace, so its end is the end of everything.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from startup import broadcast
from startup.cases import NotMeasuredError
from startup.machine import Network
from windlass.base.notation.shell import quote
from windlass.base.procs.command import run_command, which
from windlass.errors import CommandError

_PIECE_BYTES = 64 << 20
_DAEMONS = ("munged", "slurmctld", "slurmd", "salloc", "sbcast", "sinfo", "unshare", "setpriv")
_SBIN = os.pathsep.join((os.defpath, "/usr/sbin", "/sbin"))
_FIRST_PORT = 17817
_LAUNCHER = "/dev/shm/launch.sh"
# MPICH leaves files in shared memory where it is killed; in a mount namespace they go with it. $0: the launcher's text.
_OWN_MEMORY = f'mount -t tmpfs shm /dev/shm && printf %s "$0" >{_LAUNCHER} && chmod 700 {_LAUNCHER} && exec "$@"'


class Loopback:
    """Nodes that are addresses of this machine, for what is measured without links."""

    def __init__(self, nodes: int) -> None:
        self.hosts = tuple(f"127.0.0.{11 + node}" for node in range(nodes))

    def inside(self, node: int) -> tuple[str, ...]:
        return ()


# MPI


def mpi_bcast(network: Network, nodes: int, size: int, work: Path, timeout_s: float, *, apart: bool) -> float:
    """Seconds of MPI_Bcast of `size` bytes. `apart`: the nodes are namespaces, reached through a launcher of ours."""
    mpiexec = _beside_python("mpiexec")
    if mpiexec is None or run_command((sys.executable, "-I", "-c", "import mpi4py"), timeout_s=60, check=False).code:
        raise NotMeasuredError("no mpiexec and mpi4py here")
    rank = (sys.executable, broadcast.__file__, str(size), str(_PIECE_BYTES))
    # Ranks of one machine would meet in its memory; TCP over the nodes' links is what is measured.
    env = {"PATH": os.defpath, "HOME": str(work), "FI_PROVIDER": "tcp", "MPIR_CVAR_CH4_NETMOD": "ofi"}
    env |= {"MPIR_CVAR_NOLOCAL": "1", "OMP_NUM_THREADS": "1"}
    words: tuple[str, ...] = (mpiexec, "-launcher", "fork", "-n", str(nodes))
    if apart:
        env["FI_TCP_IFACE"] = "eth0"
        hosts = ("-hosts", ",".join(network.hosts), "-localhost", "none", "-iface", "eth0")
        words = (*network.inside(0), mpiexec, "-launcher", "rsh", "-launcher-exec", _LAUNCHER, *hosts)
        words = (*words, "-ppn", "1", "-n", str(nodes))
    if os.geteuid() == 0:
        words = ("sh", "-c", _OWN_MEMORY, launcher_text(network), *words)
    return _seconds(_said((*_dies_with_us(), *words, *rank), timeout_s, env))


def launcher_text(network: Network) -> str:
    """What hydra takes for rsh: its first word is the host, the rest is a shell's line."""
    cases = "".join(
        f'{host}) exec {" ".join(map(quote, network.inside(node)))} sh -c "$*" ;;\n'
        for node, host in enumerate(network.hosts)
    )
    return f'#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}esac\necho "no node $host" >&2; exit 1\n'


def _beside_python(name: str) -> str | None:
    """A program of this Python's environment, or of the machine."""
    own = Path(sys.executable).parent / name
    return str(own) if os.access(own, os.X_OK) else which(name)


# Slurm


@dataclass(frozen=True, kw_only=True, slots=True)
class Broadcast:
    """What sbcast took: seconds, and processor seconds of all of Slurm's processes meanwhile."""

    seconds: float
    cpu_s: float


def sbcast(network: Network, nodes: int, source: Path, work: Path, timeout_s: float) -> Broadcast:
    """Broadcast from the first node to all nodes, itself included."""
    missing = [name for name in _DAEMONS if which(name, {"PATH": _SBIN}) is None]
    if missing or os.geteuid() != 0:
        raise NotMeasuredError(f"not here: {', '.join(missing)}" if missing else "a Slurm of its own needs root")
    folder = work / "slurm"
    for name in ("state", "to", *(f"{kind}.{_name(node)}" for kind in ("spool", "to") for node in range(nodes))):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    conf = folder / "slurm.conf"
    conf.write_text(conf_text(network, nodes, folder))
    script = folder / "run.sh"
    script.write_text(script_text(network, nodes, folder, source))
    env = {"PATH": _SBIN, "SLURM_CONF": str(conf), "HOME": str(work)}
    said = _said((*_dies_with_us(), "sh", str(script)), timeout_s, env)
    sizes = {path.stat().st_size for path in folder.glob("to.*/copy")}
    if len(list(folder.glob("to.*/copy"))) != nodes or sizes != {source.stat().st_size}:
        raise NotMeasuredError("sbcast did not bring the whole file to every node")
    return Broadcast(seconds=_seconds(said), cpu_s=_figure(said, "cpu"))


def _name(node: int) -> str:
    return f"wl{node}"


def conf_text(network: Network, nodes: int, folder: Path) -> str:
    """slurm.conf of a cluster that lives for one command; what sbcast does is left at its defaults."""
    host = socket.gethostname()
    settings: Mapping[str, object] = {
        "ClusterName": "push",
        "SlurmctldHost": f"{host}({network.hosts[0]})",
        "SlurmctldPort": _FIRST_PORT,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool.%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.%n.log",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": 2,
        "SlurmdParameters": "config_overrides",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        # A block to many nodes over one slow link takes longer than the usual ten seconds.
        "MessageTimeout": 100,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    for node in range(nodes):
        place = f"NodeHostname={host} NodeAddr={network.hosts[node]} Port={_FIRST_PORT + 1 + node}"
        lines.append(f"NodeName={_name(node)} {place} CPUs=2 RealMemory=500")
    return "\n".join([*lines, "PartitionName=batch Nodes=ALL Default=YES State=UP", ""])


# Ticks of all processes of this process namespace and of those that ended; a name may hold spaces and brackets.
_TICKS = r"""cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | awk '{t += $12 + $13 + $14 + $15} END {print t}'"""


def script_text(network: Network, nodes: int, folder: Path, source: Path) -> str:
    """Starts the daemons, waits for idle nodes, and times sbcast. The end of this shell ends all of them."""
    at, conf = quote(str(folder)), quote(str(folder / "slurm.conf"))
    copy = quote(str(folder / "to" / "copy"))
    first = _words(network.inside(0))
    lines = [
        f"munged --foreground --force --socket={at}/munge.socket --key-file={at}/munge.key --pid-file={at}/munged.pid "
        f"--log-file={at}/munged.log --seed-file={at}/munged.seed &",
        f"for i in $(seq 100); do [ -S {at}/munge.socket ] && break; sleep 0.1; done",
        f"{first} slurmctld -D -f {conf} >/dev/null 2>&1 &",
    ]
    for node in range(nodes):
        # Each node sees its own folder in the place that sbcast writes to.
        own = f"mount --bind {at}/to.{_name(node)} {at}/to && exec slurmd -D -f {conf} -N {_name(node)}"
        lines.append(f"{_words(network.inside(node))} unshare --mount sh -c {quote(own)} >/dev/null 2>&1 &")
    timed = f"t=$({_TICKS}); a=$(date +%s.%N); sbcast --force {quote(str(source))} {copy} || exit 1; "
    timed += f"b=$(date +%s.%N); echo $a $b $t $({_TICKS}) $(getconf CLK_TCK)"
    lines += [
        f"for i in $(seq 300); do [ $({first} sinfo -h -N -o %t 2>/dev/null | grep -c idle) = {nodes} ] && break; "
        "sleep 0.1; done",
        f"{first} salloc --quiet -N {nodes} --exclusive sh -c {quote(timed)} >{at}/times || exit 1",
        f"""awk '{{printf "seconds %.6f\\ncpu %.2f\\n", $2 - $1, ($4 - $3) / $5}}' {at}/times""",
    ]
    return "\n".join([*lines, ""])


def _words(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))


def _dies_with_us() -> tuple[str, ...]:
    """A measurement that is killed takes its rivals along: with their first process the kernel ends the rest."""
    if which("setpriv") is None:
        return ()
    alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc") if os.geteuid() == 0 else ()
    return ("setpriv", "--pdeathsig", "KILL", *alone)


def _said(words: tuple[str, ...], timeout_s: float, env: Mapping[str, str]) -> str:
    """What a rival says. One that fails, or takes too long, is not measured: that is its figure, not our error."""
    try:
        return run_command(words, timeout_s=timeout_s, env=env, cwd="/").stdout
    except CommandError as error:
        raise NotMeasuredError(error.message) from error


def _seconds(said: str) -> float:
    return _figure(said, "seconds")


def _figure(said: str, name: str) -> float:
    found = re.search(rf"^{name} ([0-9.]+)$", said, re.MULTILINE)
    if found is None:
        raise NotMeasuredError(f"no {name} told: {said.strip()[-200:]}")
    return float(found[1])
