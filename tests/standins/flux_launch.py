"""`flux run` and `flux batch` of the Flux stand-in: the request is checked, then real processes run."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flux_sched
import flux_state as flux
import tasks
from flux_options import DirectiveError, batch_parser, directives, read_script, run_parser

_PACKAGE = "/opt/flux"
_ON_ITS_WAY_S = 0.25
_GRACE_S = float(os.environ.get("STANDIN_GRACE", "2"))


def error(command: str, text: str, code: int = 1) -> int:
    print(f"flux-{command}: ERROR: {text}", file=sys.stderr)
    return code


def run(argv: list[str]) -> int:
    options = run_parser("run").parse_args(argv)
    if not options.command:
        return error("run", "job command and arguments are missing")
    limit = flux.duration(options.time_limit) if options.time_limit else 0.0
    if limit is None:
        return error("run", "invalid Flux standard duration")
    if options.queue:
        return error("run", f"'{options.queue}' is not a valid queue")
    nodes = options.nodes or 1
    per_node = options.tasks_per_node or max(1, (options.ntasks or nodes) // nodes)
    ranks = options.ntasks if options.ntasks is not None else per_node * nodes
    if options.nodes and options.ntasks and options.ntasks < options.nodes:
        return error("run", "node count must not be greater than task count")
    hosts = choose_hosts(options.requires)
    if hosts is None:
        return error(
            "run", f"host constraint contains invalid hosts: host '{options.requires.split(':', 1)[1]}' not found"
        )
    job = flux.new_job(options.job_name or Path(options.command[0]).name, nodes, ranks, limit)
    problem = unsatisfiable(options, nodes, per_node, len(hosts))
    if problem:
        flux.ended(job["id"], 1, {"type": "alloc", "note": problem})
        return raised(job, "alloc", problem, 1)
    exclusive = options.exclusive or options.ntasks is None
    return wait_and_execute(options, job, hosts, None if exclusive else per_node * options.cores_per_task)


def wait_and_execute(
    options: argparse.Namespace, job: dict[str, Any], candidates: list[str], cores_each: int | None
) -> int:
    def refuse(_number: int, _frame: object) -> None:
        print("flux-job: kill: job is not running", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, refuse)
    hosts = flux_sched.allocate(job["id"], candidates, job["nnodes"], cores_each)
    if hosts is None:
        flux.ended(job["id"], 1, {"type": "cancel", "note": ""})
        return raised(job, "cancel", "", 1)
    return execute(options, job, hosts)


def raised(job: dict[str, Any], kind: str, note: str, code: int) -> int:
    print(f"{since(job)}s: job.exception {flux.f58(job['id'])} type={kind} severity=0 {note}", file=sys.stderr)
    return code


def since(job: dict[str, Any]) -> str:
    return f"{time.time() - job['t_submit']:.3f}"


def choose_hosts(requires: str | None) -> list[str] | None:
    """All of the instance that are up, or those that `host:` names; None where it names others."""
    hosts = [host for host in flux.nodes() if not tasks.lost(host)]
    if not requires:
        return hosts
    negative, names = requires.startswith("-"), expand(requires.split(":", 1)[1])
    if not negative and not set(names) <= set(flux.nodes()):
        return None
    return [host for host in hosts if (host in names) != negative]


def expand(text: str) -> list[str]:
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        match = re.match(r"(.*)\[(.*)\]\Z", part)
        for piece in match[2].split(",") if match else [""]:
            low, _, high = piece.partition("-")
            numbers = [f"{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1)] if piece else [""]
            names += [f"{match[1] if match else part}{number}" for number in numbers]
    return names


def unsatisfiable(options: argparse.Namespace, nodes: int, per_node: int, available: int) -> str:
    """Why the request can never be met, in Flux's words; empty where it can."""
    need = per_node * options.cores_per_task
    gpus = options.gpus_per_node or (options.gpus_per_task or 0) * per_node
    exclusive = options.exclusive or options.ntasks is None
    enough = (exclusive and options.tasks_per_node is not None) or need <= flux.cores()
    eligible = available if enough and gpus <= flux.gpus() else 0
    if nodes <= eligible:
        return ""
    per = "" if exclusive else f" with {need} cores{f' and {gpus} GPUs' if gpus else ''} each"
    kind = "exclusive node(s)" if exclusive else "node(s)"
    return f"unsatisfiable request: need {nodes} {kind}{per}, only {eligible} eligible"


def execute(options: argparse.Namespace, job: dict[str, Any], hosts: list[str]) -> int:
    shell = dict(word.partition("=")[::2] for word in options.setopt)
    ranks = job["ntasks"]
    per_node = options.tasks_per_node or max(1, ranks // len(hosts))
    planned = [
        tasks.Task(
            rank,
            local,
            node,
            host,
            environment(options, shell, job, rank, local, node, len(hosts), ranks, per_node),
            cpu_list(shell.get("cpu-affinity", ""), local),
        )
        for rank, local, node, host in tasks.blocks(hosts, per_node, ranks)
    ]
    label = (lambda task: f"{task.rank}: ".encode()) if options.label_io else None
    files = OutputFiles(options.output, flux.f58(job["id"]))
    flux.running(job["id"], hosts)
    files.say_where(ranks)
    try:
        # Lines come by way of the first node's shell, and what is on its way when exit-on-error ends all is lost.
        late_s = 0.0 if options.output or "exit-on-error" not in shell else _ON_ITS_WAY_S
        started = tasks.start(
            planned,
            options.command,
            label,
            options.cwd,
            late_s=late_s,
            end_lines=False,
            targets=files.targets,
            whole_errors=shell.get("output.stderr.buffer.type") == "line",
        )
    except OSError as problem:
        return not_started(job, planned, options.command[0], problem)
    (flux.folder() / "pids" / str(job["id"])).write_text(" ".join(str(c.pid) for c in started.children.values()))
    ends = Ends(job, shell, planned, Path(options.command[0]).name, started, files)
    tasks.wait(
        started,
        end_on_failure=False,
        grace_s=_GRACE_S,
        on_end=ends.on_end,
        asked=ends.asked,
        only_told=(signal.SIGUSR1, signal.SIGUSR2),
    )
    return conclude(job, started, ends.fatal)


@dataclass
class OutputFiles:
    """Where `--output` sends what the tasks write: files, or this command's own streams."""

    template: str | None
    job_id: str
    opened: dict[str, Any] = field(default_factory=dict)

    def targets(self, task: tasks.Task) -> tuple[object, object]:
        if not self.template:
            return sys.stdout.buffer, sys.stderr.buffer
        file = self.open(task.rank, task.node_rank)
        return file, file

    def open(self, rank: int, node: int) -> Any:
        path = (self.template or "").replace("{{id}}", self.job_id).replace("{{node.id}}", str(node))
        path = path.replace("{{taskid}}", str(rank)).replace("{{task.id}}", str(rank))
        if path not in self.opened:
            self.opened[path] = Path(path).open("wb")  # noqa: SIM115 (closed with this process)
        return self.opened[path]

    def say_where(self, ranks: int) -> None:
        for name in ("stdout", "stderr") if self.template else ():
            who = "0" if ranks == 1 else f"[0-{ranks - 1}]"
            print(f"{who}: {name} redirected to {self.template}", file=sys.stderr)

    def fatal(self, since_s: str, text: str) -> None:
        """The shell's last words go where the output of the tasks goes."""
        if self.template:
            file = self.open(0, 0)
            file.write(f"flux-shell[0]: FATAL: {text}\n".encode())
            file.flush()
        else:
            print(f"{since_s}s: flux-shell[0]: FATAL: {text}", file=sys.stderr, flush=True)


@dataclass
class Ends:
    """Judges the ends of tasks as Flux does: only the first one counts, for exit-on-error and for exit-timeout."""

    job: dict[str, Any]
    shell: dict[str, str]
    planned: list[tasks.Task]
    command: str
    started: tasks.Running
    files: OutputFiles
    fatal: dict[str, Any] = field(default_factory=dict)
    first: tuple[float, int, int] | None = None

    def on_end(self, rank: int, code: int) -> None:
        if self.first is not None or tasks.lost(self.planned[rank].host):
            return
        self.first = (time.monotonic(), rank, code)
        if code and "exit-on-error" in self.shell and not self.started.stopped:
            if self.started.lines.late_s:
                self.started.lines.forgotten.add(rank)
            self.give_up("failed", "exit-on-error is set")

    def give_up(self, what: str, why: str) -> None:
        assert self.first is not None
        _, rank, code = self.first
        how = f"Exit {code}" if code >= 0 else signal.strsignal(-code)
        note = f"{self.command}: task rank {rank} on host {self.planned[rank].host} {what} ({how}) and {why}"
        self.fatal.update(type="exec", note=note, code=max(1, 128 - code if code < 0 else code))
        self.files.fatal(since(self.job), f"task-exit: {note}")
        raised(self.job, "exec", note, 0)

    def lose(self, node: int, host: str) -> None:
        note = f"node failure on {host}"
        self.fatal.update(type="exec", note=f"{note} (rank {node})", code=128 + signal.SIGTERM)
        raised(self.job, "exec", f"{note} (rank {node})", 0)
        print(f"{since(self.job)}s: flux-shell[0]:  WARN: exception: {note} (shell rank {node})", file=sys.stderr)

    def asked(self) -> int | None:
        if self.fatal.get("type") == "exec":
            return int(signal.SIGTERM)
        for task in self.planned:
            if tasks.lost(task.host):
                self.lose(task.node_rank, task.host)
                return int(signal.SIGTERM)
        if (flux.folder() / "cancelled" / str(self.job["id"])).exists() or flux.ending() == "cancel":
            self.fatal.update(type="cancel", note="")
            raised(self.job, "cancel", "", 0)
            return int(signal.SIGTERM)
        expires = flux.expires_at(self.job["id"])
        if (expires and time.time() > expires) or flux.ending() == "timeout":
            self.fatal.update(type="timeout", note="resource allocation expired")
            raised(self.job, "timeout", "resource allocation expired", 0)
            return int(signal.SIGALRM)
        timeout = self.shell.get("exit-timeout", "30s")
        if timeout != "none" and self.first and time.monotonic() > self.first[0] + (flux.duration(timeout) or 0):
            self.give_up("exited" if self.first[2] == 0 else "failed", f"exit-timeout={timeout} has expired")
            return int(signal.SIGTERM)
        return None


def conclude(job: dict[str, Any], started: tasks.Running, fatal: dict[str, Any]) -> int:
    codes = [128 - code if code < 0 else code for _, code in started.ended]
    # A task that Flux gave up for decides; those that were ended because of it do not.
    code = fatal.pop("code") if fatal.get("type") == "exec" else max(codes, default=0)
    flux.ended(job["id"], code, fatal or None)
    if code > 128:
        print(f"flux-job: task(s) {signal_words(code - 128)}", file=sys.stderr)
    elif code:
        print(f"flux-job: task(s) exited with exit code {code}", file=sys.stderr)
    return code


def signal_words(number: int) -> str:
    try:
        return signal.strsignal(number) or f"Unknown signal {number}"
    except ValueError:
        return f"Unknown signal {number}"


def not_started(job: dict[str, Any], planned: list[tasks.Task], command: str, problem: OSError) -> int:
    note = f"task 0 (host {planned[0].host}): start failed: {command}: {problem.strerror}"
    print(f"{since(job)}s: flux-shell[0]: FATAL: {note}", file=sys.stderr)
    raised(job, "exec", note, 0)
    print("flux-job: task(s) exited with exit code 127", file=sys.stderr)
    flux.ended(job["id"], 127, {"type": "exec", "note": note})
    return 127


def cpu_list(affinity: str, local: int) -> frozenset[int]:
    if not affinity.startswith("map:"):
        return frozenset()
    cpus: set[int] = set()
    for piece in affinity.removeprefix("map:").split(";")[local].split(","):
        low, _, high = piece.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def visible_devices(options: argparse.Namespace, shell: dict[str, str], local: int, per_node: int) -> str:
    count = options.gpus_per_node or (options.gpus_per_task or 0) * per_node
    if options.exclusive or (options.nodes and options.ntasks is None):
        count = max(count, flux.gpus())
    if shell.get("gpu-affinity") == "per-task" and count:
        each = max(1, count // per_node)
        return ",".join(str(n) for n in range(local * each, (local + 1) * each))
    return ",".join(str(n) for n in range(count)) or "-1"


def environment(
    options: argparse.Namespace,
    shell: dict[str, str],
    job: dict[str, Any],
    rank: int,
    local: int,
    node: int,
    nodes: int,
    ranks: int,
    per_node: int,
) -> dict[str, str]:
    name = flux.f58(job["id"])
    temporary = flux.folder() / f"jobtmp-{node}-{name}"
    temporary.mkdir(exist_ok=True)
    env = {key: value for key, value in os.environ.items() if key != "FLUX_ENCLOSING_ID" or flux.instance()}
    env |= instance_environment(f"local-{node}") | {
        "FLUX_JOB_ID": name,
        "FLUX_JOB_ID_PATH": f"/{flux.instance()}/{name}" if flux.instance() else f"/{name}",
        "FLUX_JOB_NNODES": str(nodes),
        "FLUX_JOB_SIZE": str(ranks),
        "FLUX_JOB_TMPDIR": str(temporary),
        "FLUX_KVS_NAMESPACE": f"job-{job['id']}",
        "FLUX_PMI_LIBRARY_PATH": f"{_PACKAGE}/lib/flux/libpmi.so",
        "FLUX_TASK_LOCAL_ID": str(local),
        "FLUX_TASK_RANK": str(rank),
        "OMPI_MCA_btl_vader_backing_directory": str(temporary),
        "PMI_FD": "24",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(ranks),
    }
    if shell.get("gpu-affinity") != "off":
        env |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible_devices(options, shell, local, per_node),
        }
    return env


def instance_environment(socket: str) -> dict[str, str]:
    return {
        "FLUX_CONNECTOR_PATH": f"{_PACKAGE}/lib/flux/connectors",
        "FLUX_EXEC_PATH": f"{_PACKAGE}/libexec/flux/cmd",
        "FLUX_MODULE_PATH": f"{_PACKAGE}/lib/flux/modules",
        "FLUX_START_URI": f"local://{flux.folder()}/start",
        "FLUX_TERMINUS_SESSION": "0",
        "FLUX_URI": f"local://{flux.folder()}/{socket}",
        "LUA_CPATH": f"{_PACKAGE}/lib/lua/5.1/?.so;;;",
        "LUA_PATH": f"{_PACKAGE}/share/lua/5.1/?.lua;;;",
    }


def batch(argv: list[str]) -> int:
    parser = batch_parser()
    options = parser.parse_args(argv)
    try:
        text = "#!/bin/sh\n" + " ".join(options.script) + "\n" if options.wrap else read_script(options.script[0])
        words = [] if options.wrap else directives(text, options.script[0])
    except DirectiveError as problem:
        return error("batch", str(problem))
    arguments = [] if options.wrap else options.script[1:]
    options = parser.parse_args([*words, *argv])
    nslots = options.nslots or options.nodes
    if nslots is None:
        return error("batch", "Number of slots to allocate must be specified")
    limit = flux.duration(options.time_limit) if options.time_limit else 0.0
    if limit is None:
        return error("batch", "invalid Flux standard duration")
    if options.queue and options.queue not in flux.QUEUES:
        return error("batch", f"Invalid queue '{options.queue}' specified")
    name = options.job_name or ("sh" if options.wrap else Path(options.script[0]).name)
    job = flux.new_job(name, options.nodes or 1, nslots, limit)
    shown = flux.f58(job["id"])
    script = flux.folder() / "scripts" / str(job["id"])
    script.write_text(text, errors="surrogateescape")
    script.chmod(0o700)
    output = (options.output or "flux-{{id}}.out").replace("{{id}}", shown)
    subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("flux_batch.py")),
            str(job["id"]),
            output,
            options.requires or "",
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    print(shown)
    return 0
