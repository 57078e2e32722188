"""Inspect the ranks and the kernel messages of one node, in a short program that runs next to the ranks.

`stacks` runs while the ranks live. It collects state and stack of each, one file per rank in `evidence/`. `after` runs
when the ranks should have ended. It collects the kernel messages of the last `seconds`, and kills processes that still
carry the run's `mark` (which ends with the node's number). Both send one message per finding.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from typing import Any

from windlass.node.sampler.on_request import PIPE_SUFFIX, STACK_SIGNAL, STACK_SUFFIX
from windlass.node.sys.identity import kill_marked
from windlass.node.sys.messages import MessageWriter, host_name, node_writer, place_of
from windlass.node.sys.tools import text_of
from windlass.node.wire.ports import listening_uids

_KERNEL = re.compile(
    r"out of memory|oom-kill|killed process|NVRM|\bXid\b|amdgpu|\bxe\b.*(error|reset)|i915.*(error|reset)"
    r"|hardware error|machine check|\bmce\b|I/O error|LustreError|nfs: server|segfault|general protection|cxi"
    r"|link is down",
    re.IGNORECASE,
)
_STACK_S, _WRITTEN_S, _RECORD_S = 10.0, 3.0, 6.0
"""Before torch 2.4 the first flight record of a process takes seconds, because torch looks up source lines."""
_MAX_LINES = 40
_RAS_S, _MAX_RAS = 6.0, 1 << 20


def main(settings: dict[str, Any]) -> int:
    out, place = node_writer(settings), str(place_of(settings["place"]) + settings["first"])
    if settings["what"] == "stacks":
        stacks(out, settings["run_dir"], place)
    else:
        after(out, (settings["mark"] + place).encode("utf-8", "surrogateescape"), settings["seconds"])
    out.send(done=True)
    return 0


def alive(settings: dict[str, Any]) -> int:
    """Report that a program can be started here."""
    node_writer(settings).send(done=True)
    return 0


# While the ranks live


def stacks(out: MessageWriter, run_dir: str, node: str) -> None:
    folder = os.path.join(run_dir, "evidence")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = {rank: rank_process(pid) for rank, pid in seats(run_dir, node)}
    seen = {pid: (state_of(pid), describe(pid)) for pid in found.values() if pid}  # before the signals wake them
    beats = {pid: variable(pid, "WINDLASS_HEARTBEAT") for pid, (state, _) in seen.items() if state not in "TtZX"}
    asked = {pid: ask_for_stack(pid, beat) for pid, beat in beats.items()}
    recording = [pid for pid, beat in beats.items() if ask_for_record(beat)]
    records = [os.path.join(run_dir, "flight", "rank_%d" % rank) for rank, pid in found.items() if pid in recording]
    until = time.monotonic() + _RECORD_S
    spy = shutil.which("py-spy")
    for rank, pid in sorted(found.items()):
        if not pid:
            out.send(rank=rank, state="gone")
            continue
        state, text = seen[pid]
        if pid in asked:
            text += (py_spy(spy, pid) if spy else "") or written_stack(*asked[pid])
        with open(os.path.join(folder, "stack-rank-%d.txt" % rank), "w", encoding="utf-8") as file:
            file.write("rank %d on %s, process %d\n%s" % (rank, host_name(), pid, text))
        out.send(rank=rank, state=state, pid=pid)
    ras = nccl_ras(variable(next(iter(beats)), "NCCL_RAS_ADDR")) if beats else ""
    if ras:
        with open(os.path.join(folder, "nccl-ras-node-%s.txt" % node), "w", encoding="utf-8") as file:
            file.write(ras)
    while time.monotonic() < until and not all(os.path.exists(path) for path in records):
        time.sleep(0.1)


def seats(run_dir: str, node: str) -> list[tuple[int, int]]:
    """Return each rank and its first process, as recorded by the ranks of this node."""
    found: dict[int, int] = {}
    try:
        with open(os.path.join(run_dir, "where", node), encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.rstrip("\n").split("\t")
                if len(fields) == 5 and fields[0].isdigit() and fields[4].isdigit():
                    found[int(fields[0])] = int(fields[4])
    except OSError:
        pass
    return sorted(found.items())


def rank_process(pid: int) -> int:
    """Return the process that does the rank's work, or 0 if it has ended.

    Starts at the rank's first process and descends through wrappers (a container, a profiler) to the first Python
    process. If none is Python, it is the last process.
    """
    if not os.path.exists("/proc/%d" % pid):
        return 0
    for _ in range(8):
        below = children(pid)
        if not below or "python" in name_of(pid):
            break
        pid = below[0]
    return pid


def children(pid: int) -> list[int]:
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def name_of(pid: int) -> str:
    return text_of("/proc/%d/comm" % pid)


def state_of(pid: int) -> str:
    """Return the kernel's state letter: R, S, D (waits for a disk), T (stopped), Z, or X if it has ended."""
    text = text_of("/proc/%d/stat" % pid)
    return text.rpartition(")")[2].split()[0] if ")" in text else "X"


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for this signal. Without a handler the signal would kill it."""
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", text_of("/proc/%d/status" % pid), re.MULTILINE)
    return bool(match and int(match.group(1), 16) >> (number - 1) & 1)


def describe(pid: int) -> str:
    lines = ["state %s, waits in %s" % (state_of(pid), text_of("/proc/%d/wchan" % pid) or "?"), command_text(pid)]
    kernel = text_of("/proc/%d/stack" % pid)
    return "\n".join([*lines, *(["kernel stack:", kernel] if kernel else []), ""])


def command_text(pid: int) -> str:
    """Return the program and its script.

    Other arguments are left out, because any of them may contain a token. The plan has them with secrets hidden.
    """
    argv = text_of("/proc/%d/cmdline" % pid).rstrip("\0").split("\0")
    shown = argv[:1] + [word for word in argv[1:2] if re.fullmatch(r"[\w./+-]+\.py", word)]
    more = len(argv) - len(shown)
    return "command: %s%s" % (" ".join(shown)[:300], " (and %d more words)" % more if more else "")


def variable(pid: int, name: str) -> str:
    """Return a variable of the process's initial environment, or an empty string."""
    environ = text_of("/proc/%d/environ" % pid).split("\0")
    return next((entry.partition("=")[2] for entry in environ if entry.startswith(name + "=")), "")


def nccl_ras(address: str) -> str:
    """Return the report of NCCL's RAS service (2.24 and newer) on the whole job, or an empty string.

    It is empty if no service answers in time, or if another user listens on this port of the node. RAS may report a
    healthy job during a hang. The report is therefore stored for users, and no verdict depends on it.
    """
    host, _, port = (address or "localhost:28028").rpartition(":")
    data, until = b"", time.monotonic() + _RAS_S
    try:
        if any(uid != os.geteuid() for uid in listening_uids((int(port),))):
            return ""
        with socket.create_connection((host.strip("[]"), int(port)), 1.0) as service:

            def piece() -> bytes:
                service.settimeout(max(0.001, until - time.monotonic()))
                return service.recv(1 << 16)

            for request, reply in ((b"CLIENT PROTOCOL 2", b"SERVER PROTOCOL "), (b"TIMEOUT 3", b"OK")):
                service.sendall(request + b"\n")
                if not piece().upper().startswith(reply):
                    return ""
            service.sendall(b"VERBOSE STATUS\n")
            while len(data) < _MAX_RAS and time.monotonic() < until and (more := piece()):
                data += more
    except (OSError, ValueError):
        pass
    return data[:_MAX_RAS].decode("utf-8", "replace")


def ask_for_stack(pid: int, beat: str) -> tuple[str, int]:
    """Request the stacks with a signal. Return their file and its size before the request.

    The name is empty if the rank writes no stacks.
    """
    if not beat or not catches(pid, STACK_SIGNAL):
        return "", 0
    path = beat + STACK_SUFFIX
    before = size_of(path)
    os.kill(pid, STACK_SIGNAL)
    return path, before


def ask_for_record(beat: str) -> bool:
    """Request torch's flight record: write a byte to the pipe next to the heartbeat. False if impossible."""
    try:
        handle = os.open(beat + PIPE_SUFFIX, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, b"1")
        os.close(handle)
    except OSError:
        return False
    return True


def written_stack(path: str, before: int) -> str:
    """Return the text that the rank has appended to this file since `before`, after it stops writing."""
    last, deadline = -1, time.monotonic() + _WRITTEN_S
    while path and time.monotonic() < deadline and (last <= before or size_of(path) > last):
        last = size_of(path)
        time.sleep(0.1)
    return text_of(path)[before:] if path else ""


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def py_spy(program: str, pid: int) -> str:
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid), "--nonblocking"],
            capture_output=True,
            text=True,
            timeout=_STACK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


# After the ranks have ended


def after(out: MessageWriter, mark: bytes, seconds: float) -> None:
    for line in kernel_lines(seconds)[-_MAX_LINES:]:
        out.send(kernel=line)
    swept = kill_marked(mark, 5.0)
    if swept:
        out.send(swept=swept)


def kernel_lines(seconds: float) -> list[str]:
    """Return relevant kernel messages of the last `seconds`. Empty if the user may not read them."""
    try:
        done = subprocess.run(
            ["dmesg"], capture_output=True, text=True, timeout=_STACK_S, errors="replace", check=False
        )
        up = float(text_of("/proc/uptime").split()[0])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return []
    found = []
    for line in done.stdout.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\]", line)
        if match and up - float(match.group(1)) <= seconds and _KERNEL.search(line):
            found.append(line)
    return found


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory in our job's control group.

    If we are in no control group that counts them, it is the count of the whole node.
    """
    for group, name in memory_groups(text_of("/proc/self/cgroup")):
        counts = [_oom_count(os.path.join(group, name))]
        if name == "memory.oom_control":  # version 1 counts each group separately, so add the groups below
            counts += [_oom_count(os.path.join(folder, name)) for folder, _, _ in list(os.walk(group))[1:]]
        known = [count for count in counts if count is not None]
        if known:
            return sum(known)
    return _oom_count("/proc/vmstat") or 0


def memory_groups(text: str) -> list[tuple[str, str]]:
    """Return directory and file of the control group that counts memory kills for us.

    Reads /proc/self/cgroup. The group is the job's, above those of the step and the task, if the scheduler names it so.
    Otherwise it is our own group.
    """
    found = []
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if names and "memory" not in names.split(","):
            continue
        parts = path.strip("/").split("/")
        job = [index for index, part in enumerate(parts) if re.match(r"(job_?|jobid)?\d+([._]|$)", part)]
        own = "/".join(parts[: job[-1] + 1] if job else parts)
        if own:
            root, name = ("memory/", "memory.oom_control") if names else ("", "memory.events")
            found.append(("/sys/fs/cgroup/" + root + own, name))
    return found


def _oom_count(path: str) -> int | None:
    match = re.search(r"^oom_kill\s+(\d+)", text_of(path), re.MULTILINE)
    return int(match.group(1)) if match else None
