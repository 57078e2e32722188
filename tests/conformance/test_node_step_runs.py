"""What a node step really does on every launcher: on the hosts that were named, beside ranks, with plain lines."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.running import TIMEOUT_S, Machine, machine
from waiting import wait_until
from windlass.agents.step import RunningStep, broker_ranks, run_node_step, start_node_step
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStep, NodeStepSpec
from windlass.errors import DeadlineError, MachineError
from windlass.run.folder import RunFolder, make_folder

CASES = [
    pytest.param("srun", marks=pytest.mark.slurm),
    pytest.param("hydra", marks=pytest.mark.mpi),
    pytest.param("openmpi", marks=pytest.mark.mpi),
    pytest.param("pals"),
    pytest.param("flux"),
    pytest.param("local"),
]
# In one write: hydra hands on what it reads, and two tasks' pieces would end up in one line.
PRINT_ARGUMENTS = "import json, os, sys; os.write(1, (json.dumps(sys.argv[1:]) + chr(10)).encode())"


@pytest.fixture(params=CASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(request.param, tmp_path, request) as found, found.inside() as inside:
        yield inside


@pytest.fixture
def folder(place: Machine) -> RunFolder:
    return make_folder(str(place.folder / "run"), place.folder, "step")


def step(place: Machine, hosts: tuple[str, ...] | None = None, *, in_file: bool = True) -> NodeStep:
    chosen = place.hosts if hosts is None else hosts
    spec = NodeStepSpec(
        nodes=len(chosen),
        hosts=chosen,
        host_file="{run_dir}/step-hosts" if in_file else None,
        executable=place.site.executable or "",
        environment_names=("PATH", "MY_SETTING"),
    )
    return get_launcher(place.name).node_step(spec)


def where(made: NodeStep) -> str:
    """Shell text that prints the place of a task and the host that it is on, as far as hosts differ here."""
    names = " ".join(made.place)
    return (
        f'for v in {names}; do eval n=\\${{$v-}}; [ -n "$n" ] && break; done; '
        'echo "place=$n host=${SLURMD_NODENAME:-$(uname -n)}"'
    )


def run(place: Machine, folder: RunFolder, made: NodeStep, *program: str) -> list[str]:
    done = run_node_step(made, program, environ=place.env, timeout_s=TIMEOUT_S, folder=folder)
    return sorted(line for line in done.stdout.splitlines() if line)


@pytest.mark.parametrize("in_file", [True, False])
def test_one_task_runs_on_each_host_and_knows_its_place(place: Machine, folder: RunFolder, in_file: bool) -> None:
    made = step(place, in_file=in_file)
    lines = run(place, folder, made, "sh", "-c", where(made))
    assert [line.split()[0] for line in lines] == [f"place={n}" for n in range(len(place.hosts))]
    if place.own_names:
        assert [line.split("host=")[1] for line in lines] == [host.split(".", 1)[0] for host in place.hosts]


def test_a_part_of_the_hosts_is_exactly_that_part(place: Machine, folder: RunFolder) -> None:
    made = step(place, place.hosts[-1:])
    lines = run(place, folder, made, "sh", "-c", where(made))
    assert len(lines) == 1 and lines[0].startswith("place=0 ")
    if place.own_names:
        assert lines[0].endswith(f"host={place.hosts[-1].split('.', 1)[0]}")


def test_arguments_arrive_byte_for_byte_and_lines_are_not_labelled(place: Machine, folder: RunFolder) -> None:
    words = ["a b", "'", '"', "$(touch x)", "*", "größe", "-n", "--", "{rank}", "1,2"]
    lines = run(place, folder, step(place), sys.executable, "-c", PRINT_ARGUMENTS, *words)
    expected = subprocess.run(
        [sys.executable, "-c", PRINT_ARGUMENTS, *words], capture_output=True, text=True, timeout=30, check=True
    )
    assert lines == [expected.stdout.strip()] * len(place.hosts)


def test_named_variables_travel(place: Machine, folder: RunFolder) -> None:
    there = replace(place, env={**place.env, "MY_SETTING": "it's $(x)"})
    assert run(there, folder, step(place), "sh", "-c", 'echo "$MY_SETTING"') == ["it's $(x)"] * len(place.hosts)


def test_it_runs_now_beside_ranks_that_hold_their_nodes(place: Machine, folder: RunFolder) -> None:
    """A step that waits for the ranks would wait for ever: they end only after it."""
    if place.name == "local":
        pytest.skip("the local launcher holds nothing")
    started = place.folder / "started"
    started.mkdir()
    script = f"touch {shlex.quote(str(started))}/$$; exec sleep 120"
    ranks = place.start(place.spec(len(place.hosts), 1), ["sh", "-c", script])
    try:
        wait_until(lambda: len(list(started.iterdir())) == len(place.hosts), timeout_s=40, what="ranks run")
        assert run(place, folder, step(place), "echo", "here") == ["here"] * len(place.hosts)
        assert ranks.poll() is None
    finally:
        os.killpg(ranks.pid, signal.SIGTERM)
        place.finish(ranks, len(place.hosts))


def test_a_task_that_fails_is_told(place: Machine, folder: RunFolder) -> None:
    made = step(place)
    program = ("sh", "-c", f'{where(made)}; [ "$n" != 0 ] || exit 3')
    done = run_node_step(made, program, environ=place.env, timeout_s=TIMEOUT_S, folder=folder, check=False)
    assert done.code != 0


def test_a_step_that_takes_too_long_is_ended_and_what_it_said_counts(place: Machine, folder: RunFolder) -> None:
    """On a busy machine the deadline may pass before all tasks have begun: then it is set later."""
    said = place.folder / "said"
    for deadline_s in (4, 20, 50):
        said.mkdir(exist_ok=True)
        program = ("sh", "-c", f"echo early; touch {shlex.quote(str(said))}/{deadline_s}.$$; exec sleep 100")
        with pytest.raises(DeadlineError) as caught:
            run_node_step(step(place), program, environ=place.env, timeout_s=deadline_s, folder=folder)
        if len(list(said.glob(f"{deadline_s}.*"))) == len(place.hosts):
            break
    assert caught.value.output.count("early") == len(place.hosts)


def start(place: Machine, folder: RunFolder, script: str) -> RunningStep:
    environ = {**place.env, "STANDIN_GRACE": "30"}
    return start_node_step(
        step(place), ("sh", "-c", script), environ=environ, folder=folder, files=("step.out", "step.log")
    )


def count(folder: RunFolder, word: str) -> int:
    return folder.part("step.out").read_text().count(word)


def test_a_long_step_is_heard_while_it_runs_and_ends_in_order_when_stopped(place: Machine, folder: RunFolder) -> None:
    """Its tasks get the time to clear up that they need, however their launcher hands the request on."""
    nodes = len(place.hosts)
    if step(place).follows_stdin:
        script = "echo up; cat > /dev/null; sleep 2; echo cleared"
    else:
        script = "trap 'sleep 2; echo cleared; exit 0' TERM USR1; echo up; while :; do sleep 0.1; done"
    running = start(place, folder, script)
    try:
        wait_until(lambda: count(folder, "up") == nodes, timeout_s=40, what="all tasks are heard")
        assert running.code is None
    finally:
        running.stop(30.0)
    assert running.code is not None
    assert count(folder, "cleared") == nodes, folder.part("step.log").read_text()


def test_a_launcher_that_is_not_there_is_a_sentence(place: Machine, folder: RunFolder) -> None:
    made = get_launcher(place.name).node_step(NodeStepSpec(nodes=1, executable="/no/such/launcher"))
    if not made.arguments or made.arguments[0].words[0] != "/no/such/launcher":
        pytest.skip("started by another program")
    with pytest.raises(MachineError, match="cannot start /no/such/launcher"):
        start_node_step(made, ("true",), environ=place.env, folder=folder, files=("step.out", "step.log"))


def test_brokers_are_found_by_their_hosts_in_the_order_of_the_hosts() -> None:
    assert broker_ranks(("a", "b", "c", "d"), ("d", "b")) == (3, 1)
    with pytest.raises(MachineError, match="x has no broker"):
        broker_ranks(("a", "b"), ("a", "x"))
