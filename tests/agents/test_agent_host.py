"""The agent as nodes run it: from one file, with a Python that the node has, until its standard input ends."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements import missing_programs, require
from waiting import wait_until
from windlass.agents.ship import agent_argv, agent_file, fits, pack_interpreter, program_argv, script_text, stop_argv
from windlass.agents.start import AgentManifest, ServiceSpec, agent_bytes
from windlass.node.agent import host
from windlass.node.sys.identity import start_of
from windlass.node.sys.messages import read_messages

KEY = b"k" * 32
NODE = "TEST_NODE"


def write_bundle(folder: Path, hosts: int = 1, until: str = "stdin", run_id: str = "", **settings: object) -> Path:
    manifest = AgentManifest(
        run_id=run_id or "run1",
        hosts=tuple(f"host{n}" for n in range(hosts)),
        node_variables=("NOT_SET", NODE),
        folder=str(folder / (f"windlass-{os.getuid()}-{run_id}.agents" if run_id else "node local")),
        until=until,
        services=(ServiceSpec(name="echo", entry="tests_agent.echo_service:make", settings=settings),),
    )
    path = folder / f"agent{run_id}.pyz"
    path.write_bytes(agent_bytes(manifest, KEY, {"tests_agent": Path(__file__).parent}))
    path.chmod(0o600)
    return path


class Agent:
    """A started agent and what it says."""

    def __init__(self, bundle: Path, node: str = "0", words: tuple[str, ...] = (), **env: str) -> None:
        mark = {name: value for name, value in os.environ.items() if name.startswith("WLTEST")}
        self.child = subprocess.Popen(
            words or agent_argv(str(bundle), sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.defpath, NODE: node, **mark, **env},
            text=True,
        )

    def line(self) -> dict[str, Any]:
        assert self.child.stdout
        return read_messages([self.child.stdout.readline()])[0]

    def worker(self) -> int:
        """The agent proper, below its keeper."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def kill_both(self) -> None:
        worker = self.worker()
        self.child.kill()
        os.kill(worker, signal.SIGKILL)
        self.child.wait(timeout=30)
        wait_until(lambda: not start_of(worker), timeout_s=30, what="the agent is gone")

    def rest(self) -> tuple[list[dict[str, Any]], str]:
        out, err = self.child.communicate(timeout=20)
        return read_messages(out.splitlines()), err


@pytest.fixture
def started() -> Iterator[list[Agent]]:
    agents: list[Agent] = []
    yield agents
    for agent in agents:
        agent.child.kill()
        agent.child.communicate(timeout=30)


def test_agent_is_up_tells_news_and_ends_with_its_standard_input(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path, word="bye"))
    started.append(agent)
    assert agent.line()["up"] < 10
    own = tmp_path / "node local" / "a" / "run1.0"
    assert stat.S_IMODE((tmp_path / "node local").stat().st_mode) == 0o700
    assert stat.S_IMODE((own / "agent.pyz").stat().st_mode) == 0o600
    assert agent.line()["news"] == f"0 of 1, key of 32 bytes, {Path.cwd()}"
    lines, _ = agent.rest()
    assert lines == [{"node": 0, "ended": {"echo": {"ended": "bye"}}}]
    assert agent.child.returncode == 0
    assert not own.exists()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_agent_in_order(tmp_path: Path, started: list[Agent], sig: signal.Signals) -> None:
    agent = Agent(write_bundle(tmp_path, until="signal"))
    started.append(agent)
    agent.line()
    agent.child.send_signal(sig)
    lines, _ = agent.rest()
    assert "ended" in lines[-1]
    assert not (tmp_path / "node local").exists()


def test_service_that_cannot_start_is_told_with_its_reason(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path, fails=True))
    started.append(agent)
    lines, _ = agent.rest()
    assert lines[-1] == {"node": 0, "failed": "told to fail", "kind": "RuntimeError"}
    assert agent.child.returncode == 1
    assert not (tmp_path / "node local").exists()


def test_folder_of_somebody_else_is_refused(tmp_path: Path, started: list[Agent]) -> None:
    bundle = write_bundle(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "node local").symlink_to(tmp_path / "elsewhere")
    agent = Agent(bundle)
    started.append(agent)
    lines, _ = agent.rest()
    assert "is a link" in lines[-1]["failed"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_a_killed_agent_left_is_swept_and_the_living_are_left_alone(tmp_path: Path, started: list[Agent]) -> None:
    bundle = write_bundle(tmp_path, hosts=3)
    dead, alive = Agent(bundle, "0"), Agent(bundle, "1")
    started += [dead, alive]
    dead.line(), alive.line()
    dead.kill_both()
    folder = tmp_path / "node local" / "a"
    assert sorted(path.name for path in folder.iterdir()) == ["run1.0", "run1.1"]
    third = Agent(bundle, "2")
    started.append(third)
    third.line()
    assert sorted(path.name for path in folder.iterdir()) == ["run1.1", "run1.2"]


@pytest.mark.parametrize("until", ["stdin", "signal"])
def test_keeper_takes_the_place_of_an_agent_that_was_killed(tmp_path: Path, started: list[Agent], until: str) -> None:
    agent = Agent(write_bundle(tmp_path, until=until, word="bye"))
    started.append(agent)
    agent.line(), agent.line()
    os.kill(agent.worker(), signal.SIGKILL)
    assert "killed by signal 9" in agent.line()["agent"]
    assert "news" in agent.line(), "the services are watched as before"
    if until == "signal":
        agent.child.terminate()
    lines, _ = agent.rest()
    assert lines == [{"node": 0, "ended": {"echo": {"ended": "bye"}}}] and agent.child.returncode == 0
    assert not (tmp_path / "node local").exists()


def test_agent_outlives_its_keeper_until_its_standard_input_ends(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path, word="bye"))
    started.append(agent)
    agent.line(), agent.line()
    agent.child.kill()
    assert "keeper" in agent.line()["agent"]
    lines, _ = agent.rest()
    assert lines == [{"node": 0, "ended": {"echo": {"ended": "bye"}}}]
    assert not (tmp_path / "node local").exists()


def test_agent_that_only_a_signal_ends_goes_with_its_keeper(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path, until="signal"))
    started.append(agent)
    agent.line(), agent.line()
    agent.child.kill()
    lines, _ = agent.rest()
    assert "keeper" in lines[0]["agent"] and "ended" in lines[-1]
    assert not (tmp_path / "node local").exists()


def test_agent_that_is_killed_while_it_starts_is_told(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path, kills_itself=True))
    started.append(agent)
    assert "killed by signal 9 before it was up" in agent.line()["failed"]
    assert agent.rest()[0] == [] and agent.child.returncode == 1
    assert not (tmp_path / "node local").exists()


def test_what_other_runs_left_is_swept_and_a_folder_goes_with_its_last_agent(
    tmp_path: Path, started: list[Agent]
) -> None:
    dead, alive = Agent(write_bundle(tmp_path, run_id="dead")), Agent(write_bundle(tmp_path, run_id="alive"))
    started += [dead, alive]
    dead.line(), alive.line()
    dead.kill_both()
    stranger = tmp_path / f"windlass-{os.getuid()}-stranger.agents"
    stranger.symlink_to(tmp_path)
    third = Agent(write_bundle(tmp_path, run_id="third"))
    started.append(third)
    third.line()
    names = {path.name.split("-")[-1] for path in tmp_path.glob("windlass-*")}
    assert names == {"alive.agents", "third.agents", "stranger.agents"}
    third.rest(), alive.rest()
    assert list(tmp_path.glob("windlass-*")) == [stranger]


def test_second_agent_of_a_run_on_a_node_is_refused(tmp_path: Path, started: list[Agent]) -> None:
    bundle = write_bundle(tmp_path)
    first, second = Agent(bundle), None
    started.append(first)
    first.line()
    second = Agent(bundle)
    started.append(second)
    lines, _ = second.rest()
    assert "already" in lines[-1]["failed"]


def test_node_without_a_number_says_so(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path), node="x")
    started.append(agent)
    assert "NOT_SET, TEST_NODE" in agent.rest()[0][-1]["failed"]


def test_launcher_that_counts_nodes_in_another_order_is_refused() -> None:
    environ = {"A": "1", "SLURMD_NODENAME": "nid0001"}
    with pytest.raises(host.AgentError, match="nid0001"):
        host.node_number(["A"], ["nid0001", "nid0002"], environ)
    assert host.node_number(["A"], ["nid0000-hsn", "nid0001-hsn"], environ) == 1


def test_file_of_a_newer_version_is_refused() -> None:
    assert host.run_agent(b"", {"version": 99}, b"") == 1


def test_stop_words_end_the_agent_and_are_content_without_one(tmp_path: Path, started: list[Agent]) -> None:
    bundle = write_bundle(tmp_path, until="signal")
    agent = Agent(bundle)
    started.append(agent)
    agent.line()
    words = stop_argv("${PLACE}/node local", "run1", ("NOT_SET", NODE))
    for _ in range(2):
        reaper = subprocess.Popen(words, env={"PATH": os.defpath, NODE: "0", "PLACE": str(tmp_path)})
        wait_until(lambda: agent.child.poll() is not None, timeout_s=15, what="the agent has ended")
        assert reaper.wait(timeout=30) == 0


def test_a_program_runs_from_the_living_agents_copy(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(write_bundle(tmp_path))
    started.append(agent)
    agent.line()
    file = agent_file("${PLACE}/node local", "run1", 0)
    words = program_argv("tests_agent.echo_service:program", {"word": "a 'b' $HOME"}, file=file)
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, env={"PLACE": str(tmp_path)})
    assert done.stdout == "a 'b' $HOME\n", done.stderr


@pytest.mark.parametrize("how", ["argv", "script"])
def test_a_program_runs_from_its_command_line_with_the_modules_that_it_imports(tmp_path: Path, how: str) -> None:
    entry, told = "windlass.node.probe.main:main", {"place": [NODE], "first": 3, "word": "$(x) 'y' \"z\""}
    script = tmp_path / "rank.py"
    script.write_text(script_text(entry, told))
    words = program_argv(entry, told) if how == "argv" else (sys.executable, "-I", "-S", str(script))
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env={NODE: "1"}, cwd="/")
    (said,) = read_messages(done.stdout.splitlines())
    assert said["node"] == 4 and said["hardware"]["cores"] and said["done"], done.stderr


def test_every_program_of_the_nodes_fits_into_an_argument() -> None:
    programs = ("agent.diagnostics", "checks.main", "checks.rank", "checks.selftest", "libs.place", "probe.main")
    for name in programs:
        assert max(map(len, program_argv(f"windlass.node.{name}:main", {}))) < 100_000, name


def test_same_sources_give_the_same_file_and_another_key_another() -> None:
    manifest = AgentManifest(run_id="r", hosts=("a",), node_variables=("N",), folder="/tmp/x")
    assert agent_bytes(manifest, KEY, {}) == agent_bytes(manifest, KEY, {})
    assert agent_bytes(manifest, KEY, {}) != agent_bytes(manifest, b"x" * 32, {})


def test_start_of_an_agent_opens_its_file_once_and_no_other_of_that_folder(tmp_path: Path) -> None:
    """What N agents ask of the shared file system is a handful of calls each, whatever the package's size."""
    why = missing_programs("strace")
    require("strace", not why, why)
    shared = tmp_path / "shared"
    shared.mkdir()
    bundle = write_bundle(shared)
    trace = tmp_path / "trace"
    words = agent_argv(str(bundle), sys.executable)
    child = subprocess.Popen(
        ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=%file,read,pread64,fstat,lseek,close", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={"PATH": os.defpath, NODE: "0"},
    )
    child.communicate(timeout=60)
    there = [line for line in trace.read_text(errors="replace").splitlines() if f"{shared}/agent.pyz" in line]
    calls = [re.split(r"\s+", line, maxsplit=1)[1].partition("(")[0] for line in there if "execve" not in line]
    assert calls.count("openat") == 1, calls
    assert len(calls) <= 8, calls


def test_many_agents_that_start_at_once_do_not_sweep_each_other(tmp_path: Path, started: list[Agent]) -> None:
    bundle = write_bundle(tmp_path, hosts=12)
    started += [Agent(bundle, str(node)) for node in range(12)]
    assert all("up" in agent.line() for agent in started)


def test_interpreter_travels_where_the_node_has_none_and_goes_again(tmp_path: Path, started: list[Agent]) -> None:
    archive = pack_interpreter(tmp_path / "python.tar.gz")
    bundle = write_bundle(tmp_path, word="bye")
    folder = tmp_path / "node local"
    options = {"archive": str(archive), "folder": "${PLACE}/node local"}
    words = agent_argv(str(bundle), "/nowhere", pythons=("/nowhere/python3",), **options)
    left = folder / "py.4194305.x"
    (left / "lib").mkdir(parents=True)
    folder.chmod(0o700)
    agent = Agent(bundle, words=words, PLACE=str(tmp_path))
    started.append(agent)
    assert "up" in agent.line(), agent.rest()
    assert not left.exists(), "what a killed one left is swept"
    assert Path(os.readlink(f"/proc/{agent.child.pid}/exe")).is_relative_to(folder)  # noqa: PTH115
    agent.rest()
    assert not list(folder.glob("py.*"))
    assert archive.stat().st_size < 60_000_000


def test_node_without_any_python_says_so(tmp_path: Path, started: list[Agent]) -> None:
    agent = Agent(tmp_path, words=agent_argv("x", "/nowhere", pythons=("/nowhere/python3",)))
    started.append(agent)
    assert "no Python from 3.9 on" in agent.rest()[0][-1]["failed"]


def test_interpreter_that_is_too_old_does_not_fit(tmp_path: Path) -> None:
    assert fits(sys.executable, (3, 9)) and not fits(sys.executable, (99, 0)) and not fits(str(tmp_path), (3, 9))
