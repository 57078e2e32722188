"""The next start: other hosts, the same secrets, the batch script without bad nodes; nodes remembered and forgiven."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from planning import PLAIN, plan_for
from unit.cli.typed import in_process
from windlass.base.settings import Settings
from windlass.errors import UsageError
from windlass.model.request import Allocation
from windlass.plan.inputs import PlanningContext
from windlass.plan.render.batch_script import batch_script, launch_argv
from windlass.plan.shape import choose_hosts
from windlass.plan.show import plan_text
from windlass.run.bad_nodes import bad_hosts, forgive, read_nodes, remember_node
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.folder import RunFolder
from windlass.run.supervise.attempts import Owner, own, read_owner
from windlass.run.supervise.replan import in_job, next_plan, resubmit, spare_hosts, with_excluded
from windlass.run.supervise.runs import RunState, cleanable
from windlass.sites.catalog import load_site

_FOUR = Allocation(scheduler="slurm", job_id="7", hosts=("n1", "n2", "n3", "n4"))


def context(site: str = "generic-slurm", allocation: Allocation = _FOUR) -> PlanningContext:
    return PlanningContext(site=load_site(site), topology=PLAIN, allocation=allocation)


def test_spares_stay_idle_and_take_the_place_of_a_bad_host() -> None:
    plan, _ = plan_for("generic-slurm", "true", allocation=_FOUR, spares=1, ranks_per_node=1)
    assert (plan.nodes, plan.hosts) == (3, "n[1-3]")
    assert "--nodelist=n[1-3]" in launch_argv(plan, "/r")
    assert spare_hosts(plan, context(), frozenset()) == 1
    again = next_plan(plan, context(), frozenset({"n2"}))
    assert again.hosts == "n[1,3-4]"
    words = launch_argv(again, "/r")
    assert "--nodelist=n[1,3-4]" in words and "--overlap" in words
    assert spare_hosts(again, context(), frozenset({"n2"})) == 0


def test_a_start_without_a_bad_host_changes_nothing_but_the_overlap() -> None:
    plan, _ = plan_for("generic-slurm", "true", allocation=_FOUR, restarts=1)
    again = next_plan(plan, context(), frozenset())
    assert again.hosts == plan.hosts
    assert set(launch_argv(again, "/r")) - set(launch_argv(plan, "/r")) == {"--overlap"}
    assert next_plan(again, context(), frozenset()) == again


def test_secrets_stay_hidden_in_a_plan_for_other_hosts() -> None:
    options = {"spares": 1, "env": (("MY_TOKEN", "hush"),)}
    plan, secrets = plan_for("generic-slurm", "x", "--password=hush", allocation=_FOUR, **options)
    assert secrets
    again = next_plan(plan, context(), frozenset({"n1"}))
    assert again.secret_words == plan.secret_words and again.command == plan.command
    assert b"hush" not in msgspec.json.encode(again)
    assert next(s for s in again.environment if s.name == "MY_TOKEN").secret


def test_in_a_later_job_the_plan_takes_that_jobs_hosts_and_leaves_bad_ones_to_the_end() -> None:
    plan, _ = plan_for("generic-slurm", "true", allocation=_FOUR, spares=1, ranks_per_node=1)
    later = Allocation(scheduler="slurm", job_id="9", hosts=("m1", "m2", "m3", "m4"))
    where = msgspec.structs.replace(context(allocation=later), bad_hosts=("m2",))
    moved = in_job(plan, where)
    assert (moved.hosts, moved.job_id) == ("m[1,3-4]", "9")


def test_hosts_to_avoid_are_used_only_where_there_are_no_others() -> None:
    assert choose_hosts(("a", "b", "c"), 2, {"a"}) == ("b", "c")
    assert choose_hosts(("a", "b", "c"), 3, {"a"}) == ("a", "b", "c")


def test_a_job_with_spares_asks_for_more_nodes_and_survives_the_loss_of_one() -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=4, spares=2)
    words = [word for argument in plan.directives for word in argument.words]
    assert "--nodes=6" in words and "--no-kill" in words
    pbs, _ = plan_for("polaris", "true", nodes=4, spares=2, account="a", time="30")
    text = " ".join(word for argument in pbs.directives for word in argument.words)
    assert "select=6" in text and "tolerate_node_failures=all" in text


def test_more_spares_than_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="--spares 4"):
        plan_for("generic-slurm", "true", allocation=_FOUR, spares=4)


def test_bad_hosts_are_left_out_of_a_new_submission_where_the_scheduler_can() -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=2, until_done=True)
    script = batch_script(plan, "/r", ("windlass",))
    once = with_excluded(script, plan, frozenset({"n2"}))
    assert "#SBATCH --exclude=n2\n" in once
    twice = with_excluded(once, plan, frozenset({"n2", "n3"}))
    assert twice.count("--exclude") == 1 and "#SBATCH '--exclude=n[2-3]'\n" in twice
    assert twice.startswith("#!/bin/bash\n")
    pbs, _ = plan_for("polaris", "true", nodes=2, account="a", time="30")
    assert with_excluded("#!/bin/bash\n", pbs, frozenset({"n2"})) == "#!/bin/bash\n"


def test_a_run_without_a_batch_script_cannot_be_sent_again(tmp_path: Path) -> None:
    plan, _ = plan_for("generic-slurm", "true", allocation=_FOUR)
    with pytest.raises(UsageError, match="not made by `windlass submit`"):
        resubmit(plan, RunFolder(tmp_path), {}, frozenset())


def test_a_suspect_is_avoided_only_after_a_second_run_had_trouble_with_it(tmp_path: Path) -> None:
    def suspect(run: str) -> tuple[str, ...]:
        remember_node(tmp_path, site="x", host="n1", reason="died twice", run=run, proven=False)
        return bad_hosts(Settings(state_dir=tmp_path), "x")

    assert suspect("a") == ()
    assert suspect("a") == (), "the same run again says nothing new"
    assert suspect("b") == ("n1",)
    assert forgive(tmp_path, frozenset({"n1"}), run="a") == (), "what another run put there stays"
    assert len(forgive(tmp_path, frozenset({"n1"}), run="b")) == 1
    suspect("a")
    forgive(tmp_path, frozenset({"n1"}), run="a")
    assert suspect("b") == (), "the suspicion was lifted"


def test_bad_nodes_are_remembered_for_a_time_and_longer_when_they_come_back(tmp_path: Path) -> None:
    remember_node(tmp_path, site="x", host="n1", reason="lost", keep_s=100, now=1000)
    assert bad_hosts(Settings(state_dir=tmp_path), "x", now=1099) == ("n1",)
    assert bad_hosts(Settings(state_dir=tmp_path), "y", now=1099) == ()
    assert bad_hosts(Settings(state_dir=tmp_path), "x", now=1101) == ()
    remember_node(tmp_path, site="x", host="n1", reason="lost again", keep_s=100, now=1050)
    (node,) = read_nodes(tmp_path, now=1060)
    assert (node.times, node.until, node.reason) == (2, 1250, "lost again")


def test_a_damaged_list_of_nodes_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{ torn")
    assert read_nodes(tmp_path) == ()
    remember_node(tmp_path, site="x", host="n1", reason="lost")
    assert bad_hosts(Settings(state_dir=tmp_path), "x") == ("n1",)


def test_nodes_are_listed_and_forgiven_by_command(tmp_path: Path) -> None:
    state = tmp_path / "state"
    env = {"WINDLASS_STATE": str(state)}
    assert "no node is avoided" in in_process("nodes", "list", cwd=tmp_path, env=env).stdout
    for host in ("nid0001", "nid0002", "nid0003"):
        remember_node(state, site="x", host=host, reason="lost")
    assert in_process("nodes", "list", cwd=tmp_path, env=env).stdout.count("lost") == 3
    assert in_process("nodes", "forgive", "nid[0001-0002]", cwd=tmp_path, env=env).code == 0
    assert [node.host for node in read_nodes(state)] == ["nid0003"]
    assert in_process("nodes", "forgive", "nid0009", cwd=tmp_path, env=env).code == 2
    assert in_process("nodes", "forgive", cwd=tmp_path, env=env).code == 2
    assert len(forgive(state, None)) == 1


def test_the_ledger_passes_over_torn_lines(tmp_path: Path) -> None:
    (tmp_path / "snapshots.tsv").write_text(
        "1.5\tsaved\t4\t/a\n2.5\tsav\n3.5\tloaded\t9\t/a\nx\tsaved\t10\t/a\n4.5\tsa"
    )
    found = read_ledger(tmp_path)
    assert [(line.what, line.step) for line in found] == [("saved", 4), ("loaded", 9)]
    assert newest_step(found) == 9


def test_an_owner_is_known_to_live_here_and_unknown_elsewhere(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    own(folder, "7")
    owner = read_owner(folder)
    assert owner is not None and owner.alive() and owner.job_id == "7"
    assert msgspec.structs.replace(owner, ticks="1").alive() is False
    assert Owner(host="other", pid=1, ticks="1", boot="other").alive() is None


def test_clean_takes_old_ended_runs_only() -> None:
    def run(name: str, state: str, changed: float) -> RunState:
        return RunState(path=name, name=name, state=state, changed=changed)  # type: ignore[arg-type]

    states = [run("a", "done", 0), run("b", "done", 90), run("c", "failed", 0), run("d", "running", 0)]
    assert [s.path for s in cleanable(states, older_s=50, keep=0, failed=False, now=100)] == ["a"]
    assert [s.path for s in cleanable(states, older_s=0, keep=1, failed=False, now=100)] == ["a"]
    assert [s.path for s in cleanable(states, older_s=50, keep=0, failed=True, now=100)] == ["a", "c"]


def test_a_plan_says_how_it_is_kept_alive() -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=4, spares=1, hang_after_s=600.0, until_done=True)
    text = plan_text(plan)
    assert "kept alive: 3 restarts in a row without a newer snapshot, 1 spare node, a hang after 600 s" in text
    assert "submitted again until it is done" in text
    plain, _ = plan_for("generic-slurm", "true", nodes=4)
    assert "kept alive" not in plan_text(plain)


def test_a_job_without_windlass_in_it_cannot_be_kept_alive(tmp_path: Path) -> None:
    words = ("submit", "--site", "generic-slurm", "--standalone", "--dry-run", "--restarts", "1", "--", "true")
    done = in_process(*words, cwd=tmp_path)
    assert done.code == 2 and "--standalone" in done.stderr
