"""What the program of node diagnostics and the heartbeat service find on a node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from looping import each
from waiting import wait_until
from windlass.node.agent import diagnostics
from windlass.node.agent.heartbeat import ALIVE, WatchService, read_beats, sweep, work_done, written_bytes


def test_a_process_is_seen_stopped_and_its_handlers_are_known() -> None:
    code = "import signal, time; signal.signal(signal.SIGUSR1, print); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "up\n"
            assert diagnostics.catches(child.pid, signal.SIGUSR1)
            assert not diagnostics.catches(child.pid, signal.SIGUSR2)
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: diagnostics.state_of(child.pid) == "T", timeout_s=30, what="it is stopped")
            assert "state T" in diagnostics.describe(child.pid)
        finally:
            child.kill()
    assert diagnostics.state_of(child.pid) == "X"


def test_a_rank_writes_its_stack_when_asked_and_keeps_its_own_handler_of_sigusr1(tmp_path: Path) -> None:
    code = """
import signal, sys, time
from windlass.node.sampler.on_request import stacks_on_request
def load():
    print('up', flush=True)
    time.sleep(60)
signal.signal(signal.SIGUSR1, lambda *_: print('requeued', flush=True))
stacks_on_request(sys.argv[1])
load()
"""
    beat = str(tmp_path / "0")
    with subprocess.Popen([sys.executable, "-c", code, beat], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "up\n"
            assert " in load\n" in diagnostics.written_stack(*diagnostics.ask_for_stack(child.pid, beat))
            assert diagnostics.ask_for_stack(child.pid, "") == ("", 0), "a rank without a heartbeat is left alone"
        finally:
            child.kill()
        assert child.stdout.read() == ""


@each(("greeting", "kept"), [(b"SERVER PROTOCOL 2\n", "rank 3 does not respond\n"), (b"220 mail\n", "")])
def test_the_report_of_ncclras_is_kept_and_other_services_are_left_alone(greeting: bytes, kept: str) -> None:
    """A stand-in that speaks the text protocol of NCCL's own client."""
    heard = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rwb") as stream:
            for reply in (greeting, b"OK\n", b"rank 3 does not respond\n"):
                heard.append(stream.readline())
                if heard[-1]:
                    stream.write(reply)
                    stream.flush()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        assert diagnostics.nccl_ras(f"127.0.0.1:{listening.getsockname()[1]}") == kept
        thread.join(30)
    asked = [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 3\n", b"VERBOSE STATUS\n"]
    assert heard == (asked if kept else [asked[0], b"", b""])
    assert diagnostics.nccl_ras("127.0.0.1:nonsense") == ""


def test_beats_are_read_and_torn_ones_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0").write_text(f"{17:>15d} {1.5:>18.3f}\n")
    (tmp_path / "1").write_text("")
    (tmp_path / "x").write_text("9 1\n")
    assert read_beats(str(tmp_path)) == {0: 17}


def test_what_a_killed_watch_left_is_swept_and_the_living_are_left_alone(tmp_path: Path) -> None:
    for name in ("w/old.0", "w/living.0", "a/living.0"):
        (tmp_path / name).mkdir(parents=True)
    sweep(str(tmp_path))
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["living.0"]


def test_what_the_main_thread_writes_is_counted_and_what_others_write_is_not() -> None:
    code = """
import os, sys, threading
def other():
    os.write(1, b"x" * 1000)
for line in iter(sys.stdin.readline, ""):
    if line == "other\\n":
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    else:
        os.write(1, b"y" * 1000)
"""
    environ = {**os.environ, "TEST_MARK": "1.0"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            counts = []
            for line in (b"main\n", b"other\n", b"main\n"):
                child.stdin.write(line)
                child.stdin.flush()
                assert len(child.stdout.read(1000)) == 1000
                counts.append(written_bytes(b"TEST_MARK=1.0")[child.pid])
        finally:
            child.kill()
    assert counts[1] - counts[0] < 1000 <= counts[2] - counts[1]


def test_memory_kills_are_counted_from_something() -> None:
    assert diagnostics.oom_kills() >= 0
    assert isinstance(diagnostics.kernel_lines(1e9), list)


def test_a_sign_of_life_is_sent_and_what_ranks_do_is_counted(tmp_path: Path) -> None:
    node = cast(Any, SimpleNamespace(number=0, folder=str(tmp_path), run_id="ab"))
    service = WatchService(node, {"mark": "TEST_WORK=1.", "silent_s": None, "alive_s": 0.0})
    service.start()
    assert service.news() == [ALIVE]
    program = "import sys; open('/dev/zero','rb').read(1 << 20); print('read', flush=True); sys.stdin.read()"
    environ = {**os.environ, "TEST_WORK": "1.0"}
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"read\n"
        io, seconds = work_done(b"TEST_WORK=1.0")[child.pid]
        assert io >= 1 << 20 and seconds >= 0
        assert child.stdin is not None
        child.stdin.close()
