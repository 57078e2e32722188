"""The agents are in the plan: whoever needs them, what they host, their cores, and why."""

from __future__ import annotations

from pathlib import Path

import msgspec

from looping import each
from planning import plan_for
from windlass.model.origin import argv_of
from windlass.model.plan import PLAN_VERSION, plan_from_json, plan_to_json
from windlass.model.request import Allocation
from windlass.plan.agents import agents_step, plan_agents
from windlass.plan.explain import diff_lines, find_name
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.plan.show import plan_text
from windlass.run.folder import read_plan
from windlass.sites.catalog import load_site

OLD = Path(__file__).parents[2] / "data" / "plan-0.1.0.json"


@each(
    ("options", "services", "flag"),
    [
        ({"cache": ("/lustre/env",)}, ("cache",), "--cache"),
        ({"restarts": 2}, ("heartbeat",), "--restarts"),
        ({"spares": 1}, ("heartbeat",), "--spares"),
        ({"hang_after_s": 60.0}, ("heartbeat", "sampler"), "--hang-after"),
        ({"until_done": True}, ("heartbeat",), "--until-done"),
        ({"cache": ("/lustre/env",), "restarts": 2}, ("cache", "heartbeat"), "--cache, --restarts"),
        ({"watch": True}, ("sampler",), "--watch"),
        ({"watch": True, "restarts": 2}, ("heartbeat", "sampler"), "--restarts, --watch"),
        ({"stage": ("/lustre/env",), "kind": "none"}, ("stage",), "windlass stage"),
    ],
)
def test_agents_are_planned_by_whoever_needs_them(
    options: dict[str, object], services: tuple[str, ...], flag: str
) -> None:
    plan, _ = plan_for("frontier", "python", "train.py", nodes=2, account="A", **options)
    assert plan.agents is not None
    assert plan.agents.services == services
    assert plan.agents.origin.where == flag
    assert plan.agents.because and all(argument.because for argument in plan.agents.launch)
    assert plan.agents.ready_s > 0
    assert plan_from_json(plan_to_json(plan)) == plan


@each("options", [{}, {"restarts": 0}])
def test_a_plain_run_has_none(options: dict[str, object]) -> None:
    plan, _ = plan_for("frontier", "python", "train.py", nodes=2, account="A", **options)
    assert plan.agents is None
    assert b'"agents"' not in plan_to_json(plan)


def test_cores_that_the_site_keeps_for_agents_are_set_aside_with_restarts_as_with_a_cache() -> None:
    plain, _ = plan_for("aurora", "x", nodes=2, account="A")
    watched, _ = plan_for("aurora", "x", nodes=2, account="A", restarts=2)
    cached, _ = plan_for("aurora", "x", nodes=2, account="A", cache=("/lus/env",))
    assert watched.agents is not None and cached.agents is not None
    assert watched.agents.cpus == cached.agents.cpus == watched.binding.agent_cpus != ()
    assert not plain.binding.agent_cpus
    assert watched.binding.ranks == cached.binding.ranks


def test_where_no_core_is_to_spare_the_masks_stay_and_agents_share() -> None:
    plain, _ = plan_for("perlmutter", "x", nodes=2, account="A")
    watched, _ = plan_for("perlmutter", "x", nodes=2, account="A", restarts=2)
    assert watched.agents is not None and watched.agents.cpus == ()
    assert "share" in watched.agents.cpus_because
    assert watched.binding == plain.binding and watched.launch == plain.launch


def test_a_core_that_no_rank_is_bound_to_is_the_agents() -> None:
    plan, _ = plan_for("generic-slurm", "x", nodes=2, ranks_per_node=1, restarts=1, cpu_bind="0-2")
    assert plan.agents is not None and plan.agents.cpus == (3,)


def test_the_step_names_the_hosts_of_the_run() -> None:
    hosts = ("nid0001", "nid0002", "nid0003")
    allocation = Allocation(scheduler="slurm", job_id="7", hosts=hosts)
    plan, _ = plan_for("frontier", "x", allocation=allocation, nodes=2, restarts=1, account="A")
    assert plan.agents is not None
    assert "--nodelist=nid[0001-0002]" in argv_of(plan.agents.launch)
    assert agents_step(plan).arguments == plan.agents.launch


@each("site", ["aurora", "frontier", "tuolumne", "workstation"])
def test_plan_explain_and_diff_show_them(site: str) -> None:
    plain, _ = plan_for(site, "x", nodes=1, account="A")
    watched, _ = plan_for(site, "x", nodes=1, account="A", restarts=2)
    text = plan_text(watched, explain=True)
    assert "\nagents\n  one on every node: heartbeat" in text and "--restarts" in text
    assert "AGENT RUN_DIR/agent.pyz" in text
    found = find_name("agents", watched, load_site(site))
    assert found[0].where == "agents" and found[0].active and found[0].note
    lines = diff_lines(plain, watched)
    assert "agents" in lines and "  + services heartbeat" in lines
    assert "\nagents\n" not in plan_text(plain, explain=True)


def test_a_plan_of_version_1_is_read_and_gets_its_agents(tmp_path: Path) -> None:
    """Written by windlass 0.1.0 with `--cache --restarts 2`, whose agents were decided when it ran."""
    raw = msgspec.json.decode(OLD.read_bytes())
    assert raw["version"] == 1 and "launch" in raw["cache"] and "agents" not in raw
    plan = read_plan(OLD)
    assert plan.version == PLAN_VERSION
    assert plan.agents is not None and plan.agents.services == ("cache", "heartbeat")
    assert plan.agents == plan_agents(plan)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_agents_that_sample_see_the_devices_and_the_ranks_find_the_hook() -> None:
    watched, _ = plan_for("frontier", "python", "train.py", nodes=2, account="A", watch=True)
    plain, _ = plan_for("frontier", "python", "train.py", nodes=2, account="A", restarts=1)
    assert watched.agents is not None and plain.agents is not None
    assert "--gres=none" in argv_of(plain.agents.launch)
    assert "--gres=none" not in argv_of(watched.agents.launch)
    script = rank_script(watched, JobFacts(run_dir="/r", run_id="ab12", master_addr="m", master_port=1, job_id="1"))
    assert "w_hook=" in script and "PYTHONPATH=" in script
    assert "w_hook=" not in rank_script(plain, JobFacts(run_dir="/r", run_id="ab12", master_addr="m", master_port=1))
    (finding,) = find_name("sampler", watched, load_site("frontier"))
    assert finding.active and "windlass watch" in finding.because
