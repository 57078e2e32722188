"""A real Slurm of several nodes on this machine, for the time of a test session.

One slurmctld, one slurmd per node on a port and a loopback address of its own, and a munge of its own, so that nothing
of the system's Slurm is touched. State lies in a temporary folder; every process is below the keeper (`keeper.py`) and
dies with the session, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from cluster.keeper import descendants
from leftovers import MARK_VARIABLE
from waiting import wait_until
from windlass.base.procs.command import pdeathsig

Flavour = Literal["bound", "wide"]
_PORTS = range(10_000, 15_000)
_SHARES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the nodes say they are. `bound`: this machine's real cores, and ranks are really bound (task/affinity).
    `wide`: 16 CPUs each, more than this machine may have, and nobody binds."""

    flavour: Flavour
    nodes: int = 4
    preempting: bool = False
    """Has a partition `urgent` that takes nodes from jobs of `cancelled`, `requeued` and `warned`, each in its way."""

    gpus: int = 0
    """Generic resources of this name and number on all nodes but the last, which is alone in a partition `cpu`."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"nid{number:04d}" for number in range(1, self.nodes + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A command that ended in the cluster's environment."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """All of it, for a failure's message."""
        return f"{self.argv} ended with code {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; held together until all are found, so that none comes twice. Not from the range
    from which the kernel takes ports for connections: one of those could be gone before a daemon has it. Tests that run
    in parallel take from ranges of their own, for the same reason."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker % _SHARES :: _SHARES]
    sockets: dict[int, socket.socket] = {}
    try:
        for port in random.sample(own, len(own)):
            sock = socket.socket()
            try:
                sock.bind(("", port))
            except OSError:
                sock.close()
                continue
            sockets[port] = sock
            if len(sockets) == count:
                return list(sockets)
        raise OSError(f"fewer than {count} ports are free from {_PORTS[0]} to {_PORTS[-1]}")
    finally:
        for sock in sockets.values():
            sock.close()


def node_words(flavour: Flavour) -> str:
    """The hardware words of a NodeName line."""
    if flavour == "wide":
        return "CPUs=16 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000"
    seen = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, timeout=20, check=True, env=daemon_env())
    line = seen.stdout.splitlines()[0]
    return " ".join(word for word in line.split() if not word.startswith("NodeName="))


def daemon_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of daemons and clients: no mark of the test that happened to start a daemon first."""
    env = {key: value for key, value in os.environ.items() if key != MARK_VARIABLE and not key.startswith("SLURM_")}
    env["PATH"] = os.pathsep.join((env.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return env | dict(extra or {})


def conf_text(shape: Shape, folder: Path, ports: Sequence[int]) -> str:
    """slurm.conf. Times are short but real: KillWait is the pause between SIGTERM and SIGKILL."""
    host = socket.gethostname()
    lines = [
        "ClusterName=sim",
        # Rendezvous ports follow from job ids: clusters of parallel tests share the addresses of their nodes.
        f"FirstJobId={random.randrange(1, 11000)}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # A job that is put back into the queue waits until credentials of its former start cannot be used any more.
        f"AuthInfo=socket={folder}/munge.socket" + (",cred_expire=10" if shape.preempting else ""),
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool.%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd.%n.log",
        "ProctrackType=proctrack/pgid",  # finds children of a dead rank too, as the control groups of real sites do
        f"TaskPlugin=task/{'affinity' if shape.flavour == 'bound' else 'none'}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
        "EnforcePartLimits=ALL",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "SlurmdTimeout=60",
        "KillWait=5",
        "UnkillableStepTimeout=30",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "TreeWidth=2",
    ]
    words = node_words(shape.flavour)
    for at, name in enumerate(shape.names):
        gres = f" Gres=gpu:{shape.gpus}" if shape.gpus and name != shape.names[-1] else ""
        lines.append(f"NodeName={name} NodeHostname={host} NodeAddr={address(at)} Port={ports[at + 1]} {words}{gres}")
    batch = ",".join(shape.names[:-1]) if shape.gpus else "ALL"
    lines.append(f"PartitionName=batch Nodes={batch} Default=YES MaxTime=INFINITE State=UP")
    if shape.gpus:
        lines += ["GresTypes=gpu", f"PartitionName=cpu Nodes={shape.names[-1]} MaxTime=INFINITE State=UP"]
    if shape.preempting:
        lines += preemption_lines()
    return "\n".join(lines) + "\n"


def preemption_lines() -> list[str]:
    """`warned` jobs get SIGTERM in their steps and some seconds more before they are ended."""
    low = "Nodes=ALL State=UP PriorityTier=1"
    return [
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"PartitionName=cancelled {low} PreemptMode=CANCEL",
        f"PartitionName=requeued {low} PreemptMode=REQUEUE",
        f"PartitionName=warned {low} PreemptMode=CANCEL GraceTime=20",
        "PartitionName=urgent Nodes=ALL State=UP PriorityTier=100 PreemptMode=OFF",
    ]


def address(at: int) -> str:
    """The loopback address of the node at this position."""
    return f"127.0.0.{11 + at}"


def hosts_text(shape: Shape) -> str:
    """The machine's /etc/hosts, and the nodes."""
    nodes = "".join(f"{address(at)} {name}\n" for at, name in enumerate(shape.names))
    return Path("/etc/hosts").read_text().rstrip("\n") + "\n" + nodes


class SlurmCluster:
    """Start with `start()` or `with`; `run` gives commands the environment in which Slurm's clients find it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.folder = Path()
        self._keeper: subprocess.Popen[str] | None = None
        self._daemons: dict[str, int] = {}

    def __enter__(self) -> SlurmCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.shape.names

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a user's shell on this cluster has, with the mark of the running test."""
        mark = {MARK_VARIABLE: os.environ[MARK_VARIABLE]} if MARK_VARIABLE in os.environ else {}
        return daemon_env({"SLURM_CONF": str(self.conf), **mark, **(extra or {})})

    def start(self) -> None:
        """All nodes are idle on return; otherwise everything is stopped and the logs are in the error."""
        # Not pytest's folder: a socket's path must be shorter than 108 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="wlslurm."))
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        self.conf.write_text(conf_text(self.shape, self.folder, free_ports(1 + len(self.nodes))))
        (self.folder / "hosts").write_text(hosts_text(self.shape))
        if self.shape.gpus:
            with_gpus = ",".join(self.shape.names[:-1])
            files = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")[: self.shape.gpus]
            lines = [f"NodeName={with_gpus} Name=gpu File={file}\n" for file in files]
            (self.folder / "gres.conf").write_text("AutoDetect=off\n" + "".join(lines))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        try:
            self._start_keeper()
            self._start_daemons()
            self.wait_idle(timeout_s=30)
        except BaseException as error:
            logs = self.logs()
            self.stop()
            raise RuntimeError(f"Slurm did not start: {error}\n{logs}") from error

    def _start_keeper(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("keeper.py")), str(self.folder / "hosts")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=daemon_env({"SLURM_CONF": str(self.conf)}),
        )

    def _start_daemons(self) -> None:
        at = self.folder
        self._ask_start(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={at}/munge.socket", f"--key-file={at}/munge.key"),
            *(f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed"),
        )
        wait_until((at / "munge.socket").exists, timeout_s=30, what="munged listens")
        self._ask_start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._ask_start(node, "slurmd", "-D", "-f", str(self.conf), "-N", node)

    def stop_node(self, node: str) -> None:
        """Stop the slurmd of a node, as an administrator does; its steps go on."""
        del self._daemons[node]
        self._ask({"stop": node})

    def daemon_pid(self, node: str) -> int:
        """The slurmd of a node, for tests that take it away without asking."""
        return self._daemons[node]

    def _ask_start(self, name: str, *argv: str) -> None:
        full = shutil.which(argv[0], path=daemon_env()["PATH"]) or argv[0]
        pid = self._ask({"start": name, "argv": [full, *argv[1:]], "log": f"{self.folder}/{name}.out"})
        self._daemons[name] = int(str(pid))

    def _ask(self, request: Mapping[str, object]) -> object:
        keeper = self._keeper
        assert keeper and keeper.stdin and keeper.stdout
        keeper.stdin.write(json.dumps(request) + "\n")
        keeper.stdin.flush()
        return json.loads(keeper.stdout.readline())

    def stop(self) -> None:
        """Kill everything and remove the folder."""
        if self._keeper is not None:
            assert self._keeper.stdin and self._keeper.stdout
            self._keeper.stdin.close()
            self._keeper.stdout.close()
            self._keeper.wait(timeout=30)
            self._keeper = None
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = False,
    ) -> Ended:
        """Run a command to its end. After `timeout_s` it is killed, and the test fails with the cluster's state."""
        child = self.popen(argv, env=env, cwd=cwd)
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            child.kill()
            stdout, stderr = child.communicate(timeout=30)
            raise AssertionError(
                f"{argv!r} still runs after {timeout_s:g} s\nstdout: {stdout}\nstderr: {stderr}\n{self.state()}"
            ) from error
        ended = Ended(argv=tuple(argv), code=child.returncode, stdout=stdout, stderr=stderr)
        assert not check or ended.code == 0, f"{ended.text}\n{self.state()}"
        return ended

    def inside(self, argv: Sequence[str], *, timeout_s: float = 20) -> None:
        """Run a command where the nodes are: what it mounts they see, nobody else does, and it is gone with them."""
        assert self._keeper
        self.run(["nsenter", "--mount", "--target", str(self._keeper.pid), *argv], timeout_s=timeout_s, check=True)

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """A command that goes on while the test watches; its output is text through pipes."""
        return subprocess.Popen(
            list(argv),
            env=self.env(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
            preexec_fn=pdeathsig(signal.SIGKILL),  # noqa: PLW1509 (one system call, nothing that could lock)
        )

    def node_states(self) -> dict[str, str]:
        said = self.run(["sinfo", "-h", "-N", "-o", "%N %t"], timeout_s=30)
        return dict(line.split()[:2] for line in said.stdout.splitlines())

    def wait_idle(self, *, timeout_s: float) -> None:
        """Every node is idle and answering."""
        wait_until(
            lambda: list(self.node_states().values()) == ["idle"] * len(self.nodes),
            timeout_s=timeout_s,
            what="all nodes are idle",
            every_s=0.1,
            state=self.state,
        )

    def jobs(self) -> dict[str, str]:
        """Jobs that are not over, id to state."""
        said = self.run(["squeue", "-h", "-o", "%i %T"], timeout_s=30, check=True)
        return dict(line.split()[:2] for line in said.stdout.splitlines())

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says, key to value."""
        said = self.run(["scontrol", "-o", "show", "job", job_id], timeout_s=30, check=True)
        return dict(word.split("=", 1) for word in said.stdout.split() if "=" in word)

    def wait_job(self, job_id: str, *, timeout_s: float) -> dict[str, str]:
        """The job's last word, when it has left the queue."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        wait_until(
            lambda: self.job(job_id)["JobState"] in over,
            timeout_s=timeout_s,
            what=f"job {job_id} is over",
            every_s=0.2,
            state=self.state,
        )
        return self.job(job_id)

    def step_processes(self) -> dict[int, str]:
        """Everything that runs in jobs, or was left by them: all but the daemons. Pid to command line."""
        assert self._keeper
        found = {}
        own = set(self._daemons.values()) | descendants(self._daemons["slurmctld"])  # it has a helper of its own
        for pid in descendants(self._keeper.pid) - own:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            found[pid] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        return {pid: words for pid, words in found.items() if words}

    def wait_quiet(self, *, timeout_s: float = 20) -> None:
        """No job, no step daemon, no rank, no orphan of one."""
        wait_until(
            lambda: not self.jobs() and not self.step_processes(),
            timeout_s=timeout_s,
            what="no job and no process of a job is left",
            every_s=0.1,
            state=self.state,
        )

    def clear(self) -> None:
        """Cancel every job and kill what is left of any, so that the next test finds the cluster quiet."""
        for job_id in self.jobs():
            self.run(["scancel", job_id], timeout_s=30)
        for pid in self.step_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_idle(timeout_s=30)

    def state(self) -> str:
        """For a failure's message: nodes, jobs, steps, and the ends of the logs."""
        said = [self._said("sinfo", "-N", "-l"), self._said("squeue"), self._said("squeue", "-s")]
        said += [f"{pid} {words}" for pid, words in self.step_processes().items()] if self._keeper else []
        return "\n".join([*said, self.logs()])

    def _said(self, *argv: str) -> str:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, env=self.env())
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{argv[0]}: {error}"
        return f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}"

    def logs(self, *, lines: int = 8) -> str:
        """The last lines of every daemon's log."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(parts)
