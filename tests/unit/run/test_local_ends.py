"""How runs on this machine end: nothing of them survives, whoever is killed and however."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leftovers
from requirements import hydra_mpiexec, require_mpi
from unit.cli.typed import argv, environment, only_run, run_here, running, script
from waiting import wait_until

IGNORING = """
import signal, subprocess, sys, time
for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(sig, signal.SIG_IGN)
print("up", flush=True)
time.sleep(120)
"""
WITH_WORKERS = """
import subprocess, sys, time
# A worker in the rank's own group, and a daemon in a session of its own that holds the rank's output.
subprocess.Popen(["sleep", "120"])
subprocess.Popen(["sleep", "121"], start_new_session=True)
print("up", flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def _nothing_survives(mark: str) -> Iterator[None]:
    """After every test here, no process that it started lives, and no cache of its runs is left on this machine."""
    before = set(Path("/tmp").glob(f"windlass-{os.getuid()}-*"))
    yield
    try:
        wait_until(lambda: not leftovers.marked_processes(mark), timeout_s=30, what="all processes of the test ended")
    except AssertionError:
        found = leftovers.marked_processes(mark)
        leftovers.remove(leftovers.Leftovers(processes=found))
        pytest.fail(f"still running: {found}")
    wait_until(
        lambda: all(_of_others(path) for path in set(Path("/tmp").glob(f"windlass-{os.getuid()}-*")) - before),
        timeout_s=60,  # folders of other tests, which have no owner in them, come and go
        what="the caches of the test's runs are gone",
    )


def _of_others(folder: Path) -> bool:
    """Other tests run at the same time; what is theirs has an owner that lives."""
    try:
        return Path(f"/proc/{(folder / '.owner').read_text().split()[1]}").exists()
    except (OSError, IndexError):
        return not folder.exists()


def _all_up(folder: Path, ranks: int) -> Callable[[], bool]:
    def look() -> bool:
        logs = list((folder / "runs").glob("*/out/*")) if (folder / "runs").exists() else []
        return sum(log.read_text().count("up") for log in logs) == ranks

    return look


def _result(folder: Path) -> dict[str, object]:
    return dict(json.loads((only_run(folder) / "result.json").read_text()))


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_request_to_stop_ends_all_ranks_and_is_recorded(tmp_path: Path, sig: signal.Signals) -> None:
    script(tmp_path, WITH_WORKERS)
    with running("-r", "2", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        child.send_signal(sig)
        text, _ = child.communicate(timeout=20)
    assert child.returncode == 128 + sig
    assert f"{sig.name}, stopping all ranks" in text.decode()
    assert _result(tmp_path)["outcome"] == "stopped"


def test_ranks_that_do_not_listen_are_killed_after_the_grace(tmp_path: Path) -> None:
    script(tmp_path, IGNORING)
    with running("-r", "2", "--grace", "0.3", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=20)
    assert child.returncode == 130


def test_a_second_request_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    script(tmp_path, IGNORING)
    with running("-r", "2", "--grace", "600", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        child.send_signal(signal.SIGINT)
        time.sleep(1)  # two signals of a kind that arrive together are one
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=20)
    assert child.returncode == 130
    assert _result(tmp_path)["outcome"] == "stopped"


def test_impatience_while_clearing_up_leaves_no_half_of_it(tmp_path: Path) -> None:
    script(tmp_path, IGNORING)
    with running("-r", "2", "--grace", "0.2", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        while child.poll() is None and not list((tmp_path / "runs").glob("*/result.json")):
            child.send_signal(signal.SIGTERM)
        child.communicate(timeout=20)
    assert _result(tmp_path)["outcome"] == "stopped"


def _hydra() -> dict[str, str]:
    require_mpi()
    return {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("launcher", ["local", pytest.param("hydra", marks=pytest.mark.mpi)])
@pytest.mark.parametrize("text", [WITH_WORKERS, IGNORING])
def test_windlass_killed_outright_takes_ranks_their_workers_and_secrets_along(
    tmp_path: Path, text: str, launcher: str
) -> None:
    script(tmp_path, text)
    env = _hydra() if launcher == "hydra" else {}
    words = ("-r", "2", "--launcher", launcher, "--env", "A_TOKEN=correct-horse", "place.py")
    with running(*words, cwd=tmp_path, env=env) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        run = only_run(tmp_path)
        assert (run / "secrets.sh").exists()
        child.kill()
        child.communicate(timeout=20)  # nobody holds its output any more
    wait_until(lambda: not (run / "secrets.sh").exists(), timeout_s=30, what="the secrets are removed")


def test_a_killed_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    script(tmp_path, WITH_WORKERS)
    with running("-r", "3", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 3), timeout_s=20, what="all ranks are up")
        seats = (only_run(tmp_path) / "where/0").read_text().splitlines()
        os.kill(next(int(line.split("\t")[4]) for line in seats if line.startswith("1\t")), signal.SIGKILL)
        text, _ = child.communicate(timeout=20)
    assert child.returncode == 137
    assert "rank 1 on" in text.decode() and "was killed by SIGKILL" in text.decode()


@pytest.mark.parametrize(
    "daemon",
    [
        "setsid sleep 120 >/dev/null 2>&1 &",
        "setsid sleep 120 &",
        "sleep 120 &",
        "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 120; sleep 120' &) &",
        "nohup sleep 120 >/dev/null 2>&1 &",
    ],
)
def test_what_a_rank_leaves_behind_is_ended_with_a_good_run_too(tmp_path: Path, daemon: str) -> None:
    ended = run_here("-r", "2", "--", "sh", "-c", f"{daemon} sleep 0.1; echo bye", cwd=tmp_path)
    assert ended.code == 0, ended.text
    assert ended.stdout == "[0] bye\n"


def test_a_rank_that_closes_its_output_runs_on(tmp_path: Path) -> None:
    ended = run_here("--", "sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5", cwd=tmp_path)
    assert ended.code == 5


def test_signals_for_the_ranks_are_handed_on(tmp_path: Path) -> None:
    text = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('warned', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    script(tmp_path, text)
    with running("-r", "2", "--show", "all", "place.py", cwd=tmp_path) as child:
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        child.send_signal(signal.SIGUSR1)
        out, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    assert out.decode().count("warned") == 2


def test_nohup_is_respected(tmp_path: Path) -> None:
    script(tmp_path, "import time; print('up', flush=True); time.sleep(1.0)")
    words = ["nohup", *argv("run", "--python", sys.executable, "place.py")]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as child:
        wait_until(_all_up(tmp_path, 1), timeout_s=20, what="the rank is up")
        child.send_signal(signal.SIGHUP)
        child.communicate(timeout=20)
    assert child.returncode == 0


def test_a_terminal_that_goes_away_stops_the_run_in_order(tmp_path: Path) -> None:
    """The terminal hangs up: SIGHUP to windlass, and whatever it writes then fails."""
    script(tmp_path, WITH_WORKERS)
    main_end, terminal = os.openpty()
    child = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *argv("run", "--python", sys.executable, "-r", "2", "place.py")],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    with child:
        os.close(terminal)
        wait_until(_all_up(tmp_path, 2), timeout_s=20, what="both ranks are up")
        os.close(main_end)
        child.wait(timeout=20)
    assert _result(tmp_path)["outcome"] == "stopped"


def test_many_ranks_on_few_cores_run(tmp_path: Path) -> None:
    ended = run_here("-q", "-r", "64", "--show", "none", "--run-dir", "r", "--", "sh", "-c", "echo up", cwd=tmp_path)
    assert ended.code == 0
    assert sorted(int(line.split(":")[0]) for line in (tmp_path / "r/out/node-0000.log").open()) == list(range(64))


def test_a_flood_of_lines_from_all_ranks_arrives_whole(tmp_path: Path) -> None:
    script(tmp_path, "import sys\nfor i in range(20_000): sys.stdout.write('line %d\\n' % i)")
    ended = run_here("-q", "-r", "4", "--show", "all", "place.py", cwd=tmp_path)
    assert ended.code == 0
    lines = ended.stdout.splitlines()
    for rank in range(4):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [f"[{rank}] line {i}" for i in range(20_000)]


def test_a_line_without_end_and_bytes_of_any_kind_are_kept(tmp_path: Path) -> None:
    text = "import sys; sys.stdout.buffer.write(b'x' * 3_000_000 + b'\\n' + bytes(range(256)) + b'\\n')"
    script(tmp_path, text)
    ended = run_here("-q", "--show", "none", "--run-dir", "r", "place.py", cwd=tmp_path)
    assert ended.code == 0
    kept = (tmp_path / "r/out/node-0000.log").read_bytes()
    assert kept.count(b"x") == 3_000_000 + 1
    whole = kept[kept.index(b"\x00") :]
    assert whole == bytes(range(10)) + b"\n0: " + bytes(range(11, 256)) + b"\n"
