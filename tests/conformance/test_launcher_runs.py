"""What a launcher's words really do: ranks in blocks, arguments intact, lines labelled, one failure ends all."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from conformance.launcher_cases import HOSTILE
from conformance.running import Ended, Machine, machine
from standins.sites import real
from waiting import wait_until
from windlass.backends.launchers import get_launcher

CASES = [
    pytest.param("srun", marks=pytest.mark.slurm),
    pytest.param("hydra", marks=pytest.mark.mpi),
    pytest.param("openmpi", marks=pytest.mark.mpi),
    pytest.param("pals"),
    pytest.param("flux"),
]
PRINT_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture(params=CASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(request.param, tmp_path, request) as found:
        yield found


def rank_of(name: str) -> str:
    """Shell text for the rank, by the first variable that the launcher's table trusts."""
    return f"${{{get_launcher(name).variables.rank[0]}}}"


def fail_in_rank_1(name: str, how: str) -> list[str]:
    return ["sh", "-c", f'if [ "{rank_of(name)}" = 1 ]; then {how}; fi; exec sleep 45']


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_ranks_find_their_place_in_blocks(place: Machine, nodes: int, per_node: int) -> None:
    if real() == place.name and per_node > len(os.sched_getaffinity(0)):
        pytest.skip("Flux gives every rank a core, and this machine has fewer")
    variables = get_launcher(place.name).variables
    named = {
        "rank": variables.rank[0],
        "local": variables.local_rank[0] if variables.local_rank else None,
        "node": variables.node_rank[0] if variables.node_rank else None,
        "size": variables.world_size[0] if variables.world_size else None,
    }
    text = " ".join(f"{key}=${{{name}-unset}}" for key, name in named.items() if name)
    ended = place.run(place.spec(nodes, per_node), ["sh", "-c", f'echo "{text}"'])
    assert ended.code == 0, ended
    assert sorted(ended.ranks) == list(range(nodes * per_node)), ended
    for rank, lines in ended.ranks.items():
        said = dict(pair.split("=") for pair in lines[0].split())
        expected = {"rank": rank, "local": rank % per_node, "node": rank // per_node, "size": nodes * per_node}
        assert said == {key: str(expected[key]) for key in said}


def test_arguments_arrive_byte_for_byte(place: Machine) -> None:
    ended = place.run(place.spec(2, 1), [sys.executable, "-c", PRINT_ARGUMENTS, *HOSTILE])
    assert ended.code == 0, ended
    assert [json.loads(lines[0]) for _, lines in sorted(ended.ranks.items())] == [list(HOSTILE)] * 2


def test_every_line_of_both_streams_arrives_under_its_rank(place: Machine) -> None:
    """Unbuffered Python writes a line in two pieces. Lines are as long as people's: see the note in `openmpi.py`."""
    count = 300
    script = (
        "import os, sys\n"
        f"for i in range({count}):\n"
        f"    print('out', i, os.environ['{get_launcher(place.name).variables.rank[0]}'], 'x' * 30)\n"
        "    print(' err', i, 'y' * 30, file=sys.stderr)\n"
    )
    ended = place.run(place.spec(2, 2), [sys.executable, "-u", "-c", script])
    assert ended.code == 0, ended.own
    for rank in range(4):
        lines = ended.ranks[rank]
        assert [line for line in lines if line.startswith("out")] == [
            f"out {i} {rank} {'x' * 30}" for i in range(count)
        ]
        assert [line for line in lines if line.startswith(" err")] == [f" err {i} {'y' * 30}" for i in range(count)]


@pytest.mark.parametrize(
    "name",
    [pytest.param("srun", marks=pytest.mark.slurm), *(n for n in ("pals", "flux") if get_launcher(n).binds_lists)],
)
def test_each_rank_really_gets_the_cpus_of_its_list(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("this machine has one CPU")
    lists = ((cpus[1],), (cpus[0],))
    with machine(name, tmp_path, request, bound=True) as place:
        spec = msgspec.structs.replace(place.spec(2, 2), cpu_lists=lists, unbound=False)
        ended = place.run(spec, [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"])
    assert ended.code == 0, ended
    assert [lines for _, lines in sorted(ended.ranks.items())] == [[str(list(lists[rank % 2]))] for rank in range(4)]


def test_the_environment_travels_to_every_rank(place: Machine) -> None:
    """Open MPI passes on only what it is told to; the others pass on everything."""
    value = "it's $(x) größe"
    there = replace(place, env={**place.env, "MY_SETTING": value})
    spec = msgspec.structs.replace(there.spec(2, 1), environment_names=("MY_SETTING",))
    ended = there.run(spec, ["sh", "-c", 'echo "$MY_SETTING"'])
    assert [lines for _, lines in sorted(ended.ranks.items())] == [[value], [value]]


def check_the_named(place: Machine, ended: Ended, code: int | None, number: int | None) -> None:
    """A launcher that promises to name the rank does; another one names it or says nothing, but blames no other."""
    launcher = get_launcher(place.name)
    failure = launcher.parse_failure(ended.own, ended.code)
    assert failure is not None or not launcher.names_failed_rank, ended
    if failure is not None and (launcher.names_failed_rank or failure.rank is not None):
        assert (failure.rank, failure.code, failure.signal) == (1, code, number)


def test_a_rank_that_exits_with_3_ends_all_and_is_named(place: Machine) -> None:
    if not get_launcher(place.name).ends_others:
        check_that_ranks_need_a_parent(place, "exit 3", 3)
        return
    start = time.monotonic()
    ended = place.run(place.spec(2, 2), fail_in_rank_1(place.name, "echo last words; exit 3"))
    assert time.monotonic() - start < 30
    assert ended.code != 0
    assert "last words" in ended.ranks[1]
    check_the_named(place, ended, 3, None)


def check_that_ranks_need_a_parent(place: Machine, how: str, code: int) -> None:
    """The launcher lets the others go on and does not say who failed: why the rank script has to stay their parent."""
    script = f'if [ "{rank_of(place.name)}" = 1 ]; then {how}; fi; sleep 1; echo survived'
    ended = place.run(place.spec(2, 2), ["sh", "-c", script])
    assert ended.code == code, ended
    assert sorted(rank for rank, lines in ended.ranks.items() if "survived" in lines) == [0, 2, 3]
    assert get_launcher(place.name).parse_failure(ended.own, ended.code) is None


def test_a_killed_rank_ends_all(place: Machine) -> None:
    if place.name == "flux":  # hydra ends the others then, although not after a code
        check_that_ranks_need_a_parent(place, "kill -KILL $$", 137)
        return
    start = time.monotonic()
    ended = place.run(place.spec(2, 2), fail_in_rank_1(place.name, "kill -KILL $$"))
    assert time.monotonic() - start < 30
    assert ended.code != 0
    check_the_named(place, ended, None, int(signal.SIGKILL))


def test_sigterm_to_the_launcher_ends_every_rank(place: Machine) -> None:
    started = place.folder / "started"
    started.mkdir()
    script = f"touch {shlex.quote(str(started))}/{rank_of(place.name)}; exec sleep 45"
    child = place.start(place.spec(2, 1), ["sh", "-c", script])
    wait_until(lambda: len(list(started.iterdir())) == 2, timeout_s=20, what="both ranks run")
    os.killpg(child.pid, signal.SIGTERM)
    assert place.finish(child, 2).code != 0
