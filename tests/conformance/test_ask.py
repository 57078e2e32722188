"""Every program of the node tree, asked through every launcher: each host answers, under the name that the plan has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.running import Machine, machine
from planning import plan_for
from windlass.agents.step import Question, ask
from windlass.backends.launchers import get_launcher
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.node.libs.decide import ImageFacts, facts_as_json
from windlass.run.folder import RunFolder, make_folder

CASES = [
    pytest.param("srun", marks=pytest.mark.slurm),
    pytest.param("hydra", marks=pytest.mark.mpi),
    pytest.param("openmpi", marks=pytest.mark.mpi),
    pytest.param("pals"),
    pytest.param("flux"),
    pytest.param("local"),
]


@pytest.fixture(params=CASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(request.param, tmp_path, request) as found, found.inside() as inside:
        yield inside


def _plan(place: Machine) -> Plan:
    """A plan of this machine, as far as a question needs one."""
    plan, _ = plan_for("generic-slurm", "true", nodes=1)
    program = place.site.executable or get_launcher(place.name).executable
    launch = (Argument(words=(program,), because="test"),) if program else ()
    return msgspec.structs.replace(
        plan, launcher=place.name, launch=launch, modules=(), modules_use=(), prologue=(), name="ask"
    )


def _programs(folder: RunFolder) -> dict[str, tuple[dict[str, Any], str]]:
    """Entry, settings, and the field that its answer has."""
    image = facts_as_json(ImageFacts(machine="x86_64", glibc="2.31", libc="glibc", libraries={}, providers=()))
    spec = {"image": image, "root": "/", "names": [], "folders": [], "provider": "", "own": "/nowhere", "given": []}
    libs = folder.write("image.json", json.dumps({**spec, "parent": str(folder.part("libs"))}))
    checks = {"nodes": 1, "seconds": 30, "nics": [], "interfaces": [], "folders": [], "job": "", "meeting": None}
    return {
        "probe.main:main": ({}, "hardware"),
        "checks.main:main": (checks, "findings"),
        "agent.diagnostics:main": ({"what": "stacks", "run_dir": str(folder.path)}, "done"),
        "agent.diagnostics:alive": ({}, "done"),
        "libs.place:main": ({"spec": str(libs)}, "libraries"),
    }


def test_every_program_of_the_nodes_answers_on_every_host(place: Machine) -> None:
    folder = make_folder(str(place.folder / "run"), place.folder, "ask")
    wrong = []
    for entry, (settings, field) in _programs(folder).items():
        question = Question(entry=f"windlass.node.{entry}", purpose="ask", deadline_s=60.0, settings=settings)
        said = ask(_plan(place), folder, place.env, question, place.hosts)
        fields = sorted(message["host"] for message in said.messages if field in message)
        if said.answered != frozenset(place.hosts) or fields != sorted(place.hosts):
            wrong.append((entry, said))
    assert not wrong


def test_one_host_alone_answers_under_its_own_number(place: Machine) -> None:
    folder = make_folder(str(place.folder / "run"), place.folder, "ask")
    question = Question(entry="windlass.node.probe.main:main", purpose="ask", deadline_s=60.0)
    said = ask(_plan(place), folder, place.env, question, place.hosts[-1:])
    assert [(message["node"], message["host"]) for message in said.messages] == [(0, place.hosts[-1])]


def test_a_program_that_fails_is_no_answer_and_its_complaint_is_kept(place: Machine) -> None:
    folder = make_folder(str(place.folder / "run"), place.folder, "ask")
    question = Question(entry="windlass.node.probe.main:nothing", purpose="ask", deadline_s=60.0, alone=False)
    said = ask(_plan(place), folder, place.env, question, place.hosts)
    assert not said.answered and not said.messages and said.complaint
