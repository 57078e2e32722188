"""A request has one plan, whichever command makes it: on a login node for compute nodes, as on a laptop with --site;
inside an allocation for the nodes that it has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from looping import each
from surroundings import SITES, stand_on
from unit.cli.typed import environment, in_process
from windlass import api
from windlass.cli.options import PLACEHOLDER_COMMAND
from windlass.diagnose.doctor import examine
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.run import planning
from windlass.run.folder import make_folder

OPTIONS = ("--nodes", "2", "--account", "proj", "--time", "30", "--python", sys.executable)
REQUEST = Request(command=("true",), nodes=2, account="proj", time="30", python=sys.executable, name="job")

LEFT_OUT = ("request", "windlass", "remarks", "interpreter_because")
"""Of the digest: what was asked for (the site's name among it), the version, remarks about the place where the plan was
made, and why the interpreter was chosen. The run folder stands in the log's directive, see `_fields`."""
WHAT_RUNS = ("command", "name", "agents", "caches", "secret_words")
"""A shell, a copy and a check are other programs than that of `plan`: these fields differ, and the job's name."""
COMMANDS = {
    "plan": ("plan", *OPTIONS, "--name", "job", "--json", "--", "true"),
    "submit": ("submit", *OPTIONS, "--name", "job", "--", "true"),
    "submit --dry-run": ("submit", *OPTIONS, "--name", "job", "--dry-run", "--", "true"),
    "explain": ("explain", "OMP_NUM_THREADS", *OPTIONS[:-2]),
    "alloc": ("alloc", *OPTIONS[:-2], "--name", "job", "--dry-run"),
    "stage": ("stage", "/usr/share", "--to", "/tmp/x", *OPTIONS[:2], "--dry-run"),
}
SAME_PROGRAM = ("plan", "submit", "submit --dry-run", "api")
IN_A_JOB = ("plan", "explain", "stage", "api", "doctor", "run")


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every argv, directive, module, variable, binding and mount of a plan, each with the path to it."""
    if isinstance(value, dict):
        for name in sorted(value):
            if path or name not in LEFT_OUT:
                yield from _fields(value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield f"{path}.count", str(len(value))
        for number, item in enumerate(value):
            yield from _fields(item, f"{path}[{number}]")
    elif isinstance(value, str) and ("/runs/" in value or "RUN_DIR" in value):
        yield path, "the run folder"
    else:
        yield path, str(value).replace(PLACEHOLDER_COMMAND, "job")  # explain has no --name


def _first_difference(one: Plan, other: Plan, *, without: tuple[str, ...] = ()) -> str | None:
    left, right = (dict(_fields(json.loads(msgspec.json.encode(plan)))) for plan in (one, other))
    for name in sorted(left.keys() | right.keys()):
        if name.split(".")[0].split("[")[0] not in without and left.get(name) != right.get(name):
            return f"{name}: {left.get(name)} and {right.get(name)}"
    return None


class Recorder:
    """Every plan that is made while a command runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Plan] = []
        monkeypatch.setattr(planning, "plan_whole", self._recording(planning.plan_whole))
        monkeypatch.setattr(examine, "make_plan", self._recording(examine.make_plan))

    def _recording(self, real: Any) -> Any:
        def make(*args: Any) -> Any:
            made = real(*args)
            self.plans.append(made[0])
            return made

        return make

    def plan_of(self, name: str, folder: Path, env: Mapping[str, str], *more: str) -> Plan:
        self.plans.clear()
        env = environment(folder, **env)
        request = msgspec.structs.replace(REQUEST, cwd=str(folder), site=more[1] if more else None)
        if name == "api":
            return api.plan_request(request, environ=env).plan
        if name == "run":
            return planning.plan_to_run(request, env).plan
        if name == "doctor":
            return examine.admit(request, make_folder(None, folder / "runs", "x"), env).job_plan
        command, *rest = COMMANDS[name]
        done = in_process(command, *more, *rest, cwd=folder, env=env)
        assert done.code == 0 or name == "explain", f"{name}: {done.text}"  # it does not know every name on every site
        return self.plans[-1]


@each("site", SITES)
def test_every_command_makes_the_same_plan(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    wrong: list[str] = []

    def compare(what: str, one: Plan, other: Plan, *, without: tuple[str, ...] = ()) -> None:
        difference = _first_difference(one, other, without=without)
        if difference:
            wrong.append(f"{what}: {difference}")

    env = stand_on("login", site, tmp_path, monkeypatch)
    login = {name: recorder.plan_of(name, tmp_path, env) for name in (*COMMANDS, "api", "doctor")}
    env = stand_on("laptop", site, tmp_path, monkeypatch)
    laptop = {
        name: recorder.plan_of(name, tmp_path, env, "--site", site)
        for name in (*COMMANDS, "api", "doctor")
        if name != "submit"
    }
    env = stand_on("compute", site, tmp_path, monkeypatch)
    job = {name: recorder.plan_of(name, tmp_path, env) for name in IN_A_JOB}

    assert login["plan"].site == site and login["plan"].nodes == 2
    assert login["plan"].binding.ranks[0].devices, "a plan for compute nodes has their devices"
    for name, plan in login.items():
        what_differs = () if name in SAME_PROGRAM else (*WHAT_RUNS, *_of_agents(name))
        compare(f"login: {name} and plan", plan, login["plan"], without=what_differs)
    for name, plan in laptop.items():
        compare(f"{name}: login and laptop --site", login[name], plan)
    for name, plan in job.items():
        what_differs = () if name in ("plan", "api", "run") else (*WHAT_RUNS, *_of_agents(name))
        compare(f"job: {name} and plan", plan, job["plan"], without=what_differs)
    assert not wrong, "\n".join(wrong)


def _of_agents(name: str) -> tuple[str, ...]:
    """Staging needs agents, which get cores of their own."""
    return ("binding", "environment", "launch", "directives", "activate_on_node") if name == "stage" else ()


def test_here_asks_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = stand_on("login", "lumi", tmp_path, monkeypatch)
    for here, devices in ((("--here",), 0), ((), 8)):
        done = in_process("plan", *here, "--json", "--", "true", cwd=tmp_path, env=env)
        plan = json.loads(done.stdout)
        assert len(plan["topology"].get("devices", ())) == devices, done.text


def test_a_site_that_is_named_inside_another_ones_job_is_planned_for_its_own_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = stand_on("compute", "lumi", tmp_path, monkeypatch)
    plans = {}
    for site in ("lumi", "aurora"):
        done = in_process("plan", "--site", site, "--json", "--", "true", cwd=tmp_path, env=env)
        plans[site] = json.loads(done.stdout)
    assert plans["lumi"]["job_id"] == "4242" and plans["lumi"]["nodes"] == 2
    assert plans["aurora"].get("job_id") is None and plans["aurora"]["nodes"] == 1
