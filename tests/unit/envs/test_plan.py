"""What a plan of an environment decides: the wheel, the wrapper, the place; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from unit.cli.typed import in_process
from windlass.build.envs.place import place_findings
from windlass.build.envs.plan import EnvPlan, EnvRequest, MachineFacts, plan_env
from windlass.build.envs.render import plan_text, script_text
from windlass.build.envs.wheels import choose_wheel, parse_torch, wheel_table
from windlass.errors import UsageError
from windlass.model.finding import finding_lines
from windlass.sites.catalog import load_site, site_names


def _plan(site: str, **chosen: object) -> EnvPlan:
    return plan_env(EnvRequest(**chosen), load_site(site), MachineFacts())  # type: ignore[arg-type]


def test_a_new_driver_gets_the_newest_cuda_and_an_older_one_what_it_can_run() -> None:
    new = choose_wheel(said="", site="", site_source="", vendor="nvidia", machine="x86_64", driver="580.65.06")
    old = choose_wheel(said="", site="", site_source="", vendor="nvidia", machine="x86_64", driver="535.104.05")
    assert new.warnings == () and old.warnings == ()
    assert old.build.startswith("cu12") and old.version == "2.10.0"
    forced = choose_wheel(said="+cu130", site="", site_source="", vendor="nvidia", machine="x86_64", driver="535.1")
    assert forced.warnings == ("driver 535.1 is too old for cu130, which needs 580",)


def test_an_unknown_combination_is_planned_with_a_warning() -> None:
    wheel = choose_wheel(said="2.4.0+rocm7.1", site="", site_source="", vendor="amd", machine="x86_64")
    assert wheel.requirement == "torch==2.4.0" and "not among the known combinations" in wheel.warnings[0]
    arm = choose_wheel(said="+rocm7.1", site="", site_source="", vendor="nvidia", machine="aarch64")
    assert len(arm.warnings) == 2, "neither the machine nor its devices fit"


def test_the_machines_rocm_decides_where_nobody_else_does() -> None:
    wheel = choose_wheel(said="", site="", site_source="", vendor="amd", machine="x86_64", runtime="6.4.1")
    assert wheel.build == "rocm6.4"


@each("text", ["", "newest", "2.1+", "2.1 ; rm", "+CU128!"])
def test_what_is_no_version_of_torch_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no version of torch"):
        parse_torch(text)


def test_every_row_of_the_table_names_a_source_and_a_default_that_it_lists() -> None:
    table = wheel_table()
    for build in table.builds:
        assert build.source in table.sources
        wheel = choose_wheel(
            said=f"+{build.name}", site="", site_source="", vendor=build.vendor, machine=build.machines[0], driver="999"
        )
        assert wheel.warnings == (), build.name
    for vendor in ("nvidia", "amd", "intel"):
        assert sum(build.preferred for build in table.builds if build.vendor == vendor) == 1


@each(
    ("chosen", "said"),
    [
        ({"extras": ("torch",)}, "torch is not one of the extras"),
        ({"extras": ("einops; rm -rf /",)}, "is no name of a package"),
        ({"extras": ("--index-url=x",)}, "is no name of a package"),
        ({"torch": "2.10.0+cu999"}, "no build of torch is known"),
        ({"path": "envs/x"}, "is not an absolute path"),
        ({"image": "x.sif"}, "no image lies beneath"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(chosen: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _plan("workstation", **chosen)


def test_conda_takes_a_version_and_no_interpreter() -> None:
    assert "python=3.12" in script_text(_plan("frontier", python="3.12"))
    with pytest.raises(UsageError, match="conda takes a version"):
        _plan("frontier", python="/usr/bin/python3")


@each("site", site_names())
def test_every_site_has_a_plan_with_a_reason_for_each_step(site: str) -> None:
    plan = _plan(site, extras=("mpi4py", "torchvision", "einops==0.8.0"))
    assert all(step.because and step.commands for step in (*plan.steps, *plan.use))
    assert plan_text(plan, finding_lines(plan.findings))
    assert script_text(plan) == script_text(_plan(site, extras=plan.extras)), "the same, the same"
    beneath = load_site(site).file.python.beneath
    assert (plan.torch is None) == (beneath != "nothing"), "torch is installed where nothing beneath has it"


def test_nfs_and_home_are_warned_of_with_what_somebody_measured() -> None:
    frontier = load_site("frontier")
    nfs = place_findings("/ccs/proj/abc/env", frontier)
    assert nfs[0].severity == "warning" and "236 s on 8 nodes" in nfs[0].evidence and "/lustre/orion" in nfs[0].advice
    assert nfs[1].kind == "quota" and "50 GB" in nfs[1].evidence
    lustre = place_findings("/lustre/orion/abc/env", frontier)
    assert [finding.severity for finding in lustre] == ["note"] and "--cache" in lustre[0].advice
    assert place_findings("${HOME}/env", load_site("perlmutter"))[0].severity == "warning"
    assert place_findings("/opt/aurora/env", load_site("aurora"))[0].severity == "ok"
    assert place_findings("/data/env", load_site("workstation")) == ()
    assert place_findings("/data/env", load_site("workstation"), seen="NFS")[0].severity == "warning"


@each("site", site_names())
def test_no_plan_shows_placeholders_of_the_catalog_or_words_for_shellcheck(site: str) -> None:
    plan = _plan(site)
    assert "{account" not in plan_text(plan, finding_lines(plan.findings)) and "{account" not in script_text(plan)
    assert "shellcheck" not in plan_text(plan, finding_lines(plan.findings))
    assert ("export ACCOUNT=" in plan_text(plan, finding_lines(plan.findings))) == ("ACCOUNT" in plan.variables)


def test_the_project_is_put_into_the_sites_place() -> None:
    plan = _plan("frontier", account="ABC123")
    assert plan.path == "/lustre/orion/abc123/proj-shared/${USER}/envs/torch" and plan.variables == ()
    assert "ACCOUNT" not in plan_text(plan, finding_lines(plan.findings)) + script_text(plan)
    at_home = _plan("frontier", account="ABC123", path="/ccs/home/me/env")
    assert "put it below /lustre/orion/abc123/" in at_home.findings[0].advice
    with pytest.raises(UsageError, match="no name of a project"):
        _plan("frontier", account="../abc")


def test_the_command_takes_the_project_from_its_option_or_from_the_configuration(tmp_path: Path) -> None:
    assert in_process("init", "--account", "mine", cwd=tmp_path).code == 0
    assert in_process("init", "--for", "aurora", "--account", "flares", cwd=tmp_path).code == 0
    for words, told in (
        (("--site", "frontier"), "/lustre/orion/mine/"),
        (("--site", "aurora"), "/projects/flares/"),
        (("--site", "aurora", "--account", "abc123"), "/projects/abc123/"),
    ):
        plan = in_process("env", "plan", *words, cwd=tmp_path)
        assert plan.code == 0 and told in plan.stdout, plan.text
