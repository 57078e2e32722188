"""Checks of one node, each with the fault that it is for."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.node.checks import machine, meeting, space
from windlass.node.checks import main as leftovers
from windlass.node.checks import meeting as interfaces
from windlass.node.checks import space as limits
from windlass.node.checks.finding import Finding, ok
from windlass.node.checks.main import run_checks
from windlass.node.sys import mounts

UP = {"lo": "up", "eth0": "up", "hsn0": "up", "hsn1": "down", "docker0": "up"}


def test_a_wrong_interface_name_is_named_with_what_there_is() -> None:
    found = interfaces.check_named([("NCCL_SOCKET_IFNAME", "ib0")], UP)
    assert found["severity"] == "error"
    assert "NCCL_SOCKET_IFNAME=ib0 matches none of docker0, eth0, hsn0, hsn1, lo" in found["evidence"]


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("NCCL_SOCKET_IFNAME", "hsn", ["hsn0", "hsn1"]),
        ("NCCL_SOCKET_IFNAME", "=hsn", []),
        ("NCCL_SOCKET_IFNAME", "=hsn0,eth0", ["eth0", "hsn0"]),
        ("NCCL_SOCKET_IFNAME", "^docker,hsn", ["eth0"]),
        ("GLOO_SOCKET_IFNAME", "hsn", []),
        ("GLOO_SOCKET_IFNAME", "hsn0", ["hsn0"]),
    ],
)
def test_interfaces_are_matched_as_the_libraries_do(variable: str, value: str, names: list[str]) -> None:
    assert interfaces.matching(variable, value, UP) == names


@pytest.mark.parametrize(("value", "severity"), [("hsn1", "error"), ("docker0", "warning"), ("hsn", "ok")])
def test_an_interface_that_is_down_or_leads_nowhere_is_told(value: str, severity: str) -> None:
    assert interfaces.check_named([("NCCL_SOCKET_IFNAME", value)], UP)["severity"] == severity


def test_interfaces_of_the_site_must_be_there_and_up() -> None:
    found = interfaces.check_nics(["hsn0", "hsn1", "hsn2"], UP)
    assert found["severity"] == "error"
    assert found["evidence"] == "missing: hsn2; hsn1 is down"
    assert interfaces.check_nics(["hsn0"], UP)["severity"] == "ok"


def test_states_of_interfaces_come_from_sysfs(tmp_path: Path) -> None:
    for name, state, carrier in (("lo", "unknown", "1"), ("ib0", "down", "0"), ("hsn0", "up", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(state + "\n")
        (tmp_path / name / "carrier").write_text(carrier + "\n")
    assert interfaces.states(str(tmp_path)) == {"lo": "up", "ib0": "down", "hsn0": "up"}


@pytest.mark.parametrize(
    ("files", "locked", "rdma", "severity"),
    [
        (64, -1, False, "error"),
        (2048, -1, False, "warning"),
        (65536, 65536, True, "error"),
        (65536, 65536, False, "ok"),
    ],
)
def test_low_limits_are_found(files: int, locked: int, rdma: bool, severity: str) -> None:
    found = limits.judge_limits({"files": files, "locked": locked, "processes": -1}, rdma)
    assert found["severity"] == severity
    assert ("ulimit" in found["evidence"]) == (severity != "ok")


def test_the_limits_of_the_process_are_read() -> None:
    code = "from windlass.node.checks.space import *; print(judge_limits(read_limits(), False)['evidence'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (97, 97)),
    )
    assert "97 open files" in done.stdout


@pytest.fixture
def tiny_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this machine lets us mount one."""
    target = tmp_path / "tiny"
    target.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(target)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no right to mount a tmpfs")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_a_full_folder_is_found(tiny_tmpfs: Path) -> None:
    (tiny_tmpfs / "rest").write_bytes(b"x" * (64 << 10))
    found = space.check_local_space([str(tiny_tmpfs)])
    assert found["severity"] == "error"
    assert str(tiny_tmpfs) in found["evidence"] and "No space left" in found["evidence"]


def test_a_folder_that_is_made_later_is_judged_by_the_one_above(tmp_path: Path) -> None:
    found = space.judge_space({"/local/job": (100 << 30, 200 << 30, -1)}, {})
    assert found["severity"] == "ok"
    assert "does not exist" not in space.check_local_space([str(tmp_path / "not" / "yet")])["evidence"]


def test_a_limit_of_address_space_is_found() -> None:
    good = {"files": -1, "locked": -1, "processes": -1}
    assert limits.judge_limits({**good, "addresses": 8 << 30}, False)["severity"] == "error"
    assert limits.judge_limits({**good, "addresses": -1}, False)["severity"] == "ok"


def test_a_small_shared_memory_is_found_although_it_is_empty() -> None:
    docker = space.judge_space({"/dev/shm": (64 << 20, 64 << 20, -1)}, {})
    assert docker["severity"] == "warning" and "--shm-size" in docker["advice"]
    assert space.judge_space({"/dev/shm": (60 << 30, 64 << 30, -1)}, {})["severity"] == "ok"


def test_a_temporary_folder_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert space.check_tmpdir({"TMPDIR": str(tmp_path / "gone")})["severity"] == "error"
    assert space.check_tmpdir({"TMPDIR": str(tmp_path)})["severity"] == "ok"
    assert space.check_tmpdir({})["severity"] == "ok"


def test_a_home_is_looked_at_on_every_node(tmp_path: Path) -> None:
    assert space.check_home({"HOME": str(tmp_path)}, os.getuid(), first=False)["severity"] == "ok"
    assert space.check_home({"HOME": "/sys/kernel/security/none"}, os.getuid(), first=False)["severity"] == "warning"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if "ro" in options.split(",") and kind not in {"autofs"} and Path(place).is_dir():
            assert space.check_home({"HOME": place}, os.getuid(), first=False)["severity"] == "error"
            break


def test_a_home_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    found = space.check_home({"HOME": "/proc"}, os.getuid())
    assert found["severity"] in {"error", "warning"}
    assert space.check_home({"HOME": str(tmp_path)}, os.getuid())["severity"] != "error"


def test_a_process_of_another_user_is_named_where_it_runs_all_the_time(tmp_path: Path) -> None:
    def process(state: str) -> None:
        (tmp_path / str(os.getpid())).mkdir(exist_ok=True)
        (tmp_path / str(os.getpid()) / "stat").write_text(f"1 (sh) {state} 0 0")
        os.chown(tmp_path / str(os.getpid()), 1234, -1)

    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    process("R")
    found = machine.check_busy("7", str(tmp_path))
    assert found["severity"] == "warning" and "user 1234" in found["evidence"]
    assert machine.check_busy("", str(tmp_path))["severity"] == "skipped"
    process("S")
    assert machine.check_busy("7", str(tmp_path))["severity"] == "ok"


def test_a_lock_is_stale_only_after_an_hour(tmp_path: Path) -> None:
    lock = tmp_path / "py311" / "mine" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert space.check_locks(environ, time.time())["severity"] == "ok"
    assert f"rm {lock}" in space.check_locks(environ, time.time() + 7200)["advice"]


def test_a_leftover_rank_of_another_job_is_named() -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "nid0001"}
    theirs = (41, "python", {**rank, "SLURM_JOB_ID": "7"})
    ours = (42, "python", {**rank, "SLURM_JOB_ID": "8"})
    shell = (43, "bash", {"SLURM_JOB_ID": "7"})
    found = leftovers.check_leftovers([theirs, ours, shell], "8")
    assert found["severity"] == "warning"
    assert "python (process 41, job 7)" in found["evidence"]
    assert found["advice"].startswith("end them: kill 41")
    assert leftovers.check_leftovers([ours, shell], "8")["severity"] == "ok"
    assert leftovers.check_leftovers([theirs], "")["severity"] == "skipped"


def test_processes_are_read_with_their_environment() -> None:
    with subprocess.Popen(["sleep", "60"], env={"RANK": "3", "PATH": os.environ["PATH"]}) as child:
        try:
            found = {pid: environ for pid, _, environ in leftovers.processes_of(os.getuid())}
            assert found[child.pid]["RANK"] == "3"
        finally:
            child.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _meet(ahead_s: float, callers: int = 2) -> tuple[list[Finding], list[list[Finding]]]:
    """Node 0 with a clock that is ahead, and these callers."""
    port = _free_port()
    held: list[Finding] = []
    first = threading.Thread(
        target=lambda: held.extend(meeting.hold(port, "word", callers, 30, clock=lambda: time.time() + ahead_s))
    )
    first.start()
    said = [meeting.call("127.0.0.1", port, "word", 30) for _ in range(callers)]
    first.join(30)
    return held, said


def test_nodes_meet_and_their_clocks_agree() -> None:
    held, said = _meet(0.0)
    assert [f["kind"] for f in held] == ["port", "rendezvous"] and all(f["severity"] == "ok" for f in held)
    assert [[f["severity"] for f in found] for found in said] == [["ok", "ok"], ["ok", "ok"]]


@pytest.mark.parametrize(("ahead_s", "severity"), [(500.0, "error"), (-20.0, "warning")])
def test_a_clock_that_is_wrong_is_found(ahead_s: float, severity: str) -> None:
    _, said = _meet(ahead_s, callers=1)
    rendezvous, clock = said[0]
    assert rendezvous["severity"] == "ok"
    assert (clock["kind"], clock["severity"]) == ("clock", severity)
    assert f"{abs(ahead_s):.0f}." in clock["evidence"] and ("behind" in clock["evidence"]) == (ahead_s > 0)


def test_a_port_that_is_taken_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        found = meeting.hold(port, "word", 0, 1)
    assert (found[0]["kind"], found[0]["severity"]) == ("port", "error")
    assert f"port {port} is taken" in found[0]["evidence"]


def test_somebody_else_on_the_port_is_not_taken_for_the_first_node() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()

        def greet() -> None:
            caller, _ = stranger.accept()
            caller.recv(100)
            caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            caller.close()

        thread = threading.Thread(target=greet)
        thread.start()
        found = meeting.call("127.0.0.1", int(stranger.getsockname()[1]), "word", 10)
        thread.join(10)
    assert found[0]["severity"] == "error" and "another program answers" in found[0]["evidence"]


def test_a_name_that_does_not_resolve_and_a_node_that_waits_for_itself_are_found() -> None:
    assert "does not resolve" in meeting.call("no-such-host.invalid", 1, "w", 1)[0]["evidence"]
    assert "waits for itself" in meeting.call("localhost", _free_port(), "w", 0.3)[0]["evidence"]


MOUNTINFO = rb"""22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw,size=1g
31 22 0:40 / /lus/scratch rw,nosuid shared:5 - lustre 10.0.0.1@o2ib:/scratch rw,flock
32 22 0:41 / /home rw master:7 - nfs4 server:/home rw,vers=4.2
33 22 0:42 / /opt/my\040env ro - squashfs /dev/loop0 ro
34 32 0:43 / /home/me/remote rw - fuse.sshfs me@far:/ rw,user_id=12,group_id=3
35 22 0:44 / /mnt/env ro - fuse.squashfuse squashfuse ro
36 22 0:45 / /mnt/new rw - newfs server:/ rw
a torn line
"""


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/usr/bin/python3", "local", "ext4"),
        ("/tmp/env", "memory", "tmpfs"),
        ("/lus/scratch/env/bin", "shared", "Lustre"),
        ("/lus/scratchy", "local", "ext4"),
        ("/home/me/env", "shared", "NFS"),
        ("/opt/my env/lib", "image", "squashfs"),
        ("/home/me/remote/x", "shared", "sshfs"),
        ("/mnt/env/lib", "image", "fuse.squashfuse"),
        ("/mnt/new/env", "shared", "newfs"),
    ],
)
def test_the_file_system_of_a_path_is_found(path: str, kind: str, name: str) -> None:
    mount = mounts.mount_of(path, mounts.parse_mountinfo(MOUNTINFO))
    assert (mount.served_by, mount.file_system) == (kind, name)
    assert mount.uid == (12 if name == "sshfs" else None)


def test_a_check_that_hangs_or_breaks_does_not_hide_the_others() -> None:
    never = threading.Event()

    def hang() -> list[Finding]:
        never.wait()
        return []

    def broken() -> list[Finding]:
        raise ValueError("no such thing")

    found = run_checks([("a", lambda: [ok("a", "fine")]), ("b", hang), ("c", broken)], 0.5)
    never.set()
    assert [(f["kind"], f["severity"]) for f in found] == [("a", "ok"), ("b", "error"), ("c", "warning")]
    assert "no answer within 0.5 s" in found[1]["evidence"]
    assert "ValueError: no such thing" in found[2]["evidence"]
