"""How many nodes and ranks, on which scheduler and launcher; contradictions by name."""

from __future__ import annotations

import pytest

from looping import each
from planning import PLAIN, plan_for
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.request import Allocation, Request
from windlass.plan.shape import run_name

SLURM = Allocation(scheduler="slurm", job_id="7", hosts=("n1", "n2", "n3"))


@each(
    ("command", "kind", "name"),
    [
        (("train.py",), "script", "train"),
        (("/a/b/my train.py",), "script", "my-train"),
        (("package.module",), "module", "package.module"),
        (("run.sh",), "command", "run"),
        (("ünï.py",), "script", "n"),
        (("---.py",), "script", "run"),
        (("a-very-long-name-for-a-script-indeed.py",), "script", "a-very-long-nam"),
    ],
)
def test_a_run_is_named_after_its_script(command: tuple[str, ...], kind: str, name: str) -> None:
    assert run_name(Request(command=command, kind=kind)) == name  # type: ignore[arg-type]


def test_a_name_that_was_asked_for_is_kept() -> None:
    assert run_name(Request(command=("x",), name="mine")) == "mine"


def test_an_allocation_decides_scheduler_launcher_and_nodes() -> None:
    plan, _ = plan_for("workstation", allocation=SLURM, topology=PLAIN)
    assert (plan.scheduler, plan.launcher, plan.nodes, plan.hosts) == ("slurm", "srun", 3, "n[1-3]")
    assert plan.job_id == "7"


def test_none_as_scheduler_stays_on_this_machine() -> None:
    plan, _ = plan_for("lumi", scheduler="none", topology=PLAIN)
    assert (plan.launcher, plan.nodes) == ("local", 1)


@each(("scheduler", "launcher"), [("slurm", "srun"), ("pbs", "hydra"), ("flux", "flux"), ("none", "local")])
def test_a_scheduler_has_a_usual_launcher(scheduler: str, launcher: str) -> None:
    assert plan_for("workstation", scheduler=scheduler)[0].launcher == launcher


def test_some_hosts_of_the_allocation_can_be_named() -> None:
    plan, _ = plan_for("generic-slurm", allocation=SLURM, topology=PLAIN, hosts="n[2-3]")
    assert (plan.nodes, plan.hosts) == (2, "n[2-3]")


def test_a_part_of_one_node_is_left_to_the_launcher_which_knows_its_cores() -> None:
    part = Allocation(scheduler="slurm", job_id="7", hosts=("n1",), cpus_per_node=1, tasks_per_node=1)
    plan, _ = plan_for("generic-slurm", allocation=part, topology=PLAIN)
    assert len(PLAIN.usable_cores()) > 1
    assert "--cpus-per-task=1" in argv_of(plan.launch)
    assert not any(word.startswith("--cpu-bind=mask") for word in argv_of(plan.launch))
    assert all(not rank.cpus for rank in plan.binding.ranks)


def test_tasks_that_nodes_cannot_share_evenly_are_refused() -> None:
    uneven = Allocation(scheduler="slurm", job_id="7", hosts=("n1", "n2"), tasks_per_node=1, uneven_tasks=(2, 1))
    with pytest.raises(UsageError, match="made for 3 tasks, not the same number on each node: 2, 1"):
        plan_for("generic-slurm", allocation=uneven, topology=PLAIN)
    assert plan_for("generic-slurm", allocation=uneven, topology=PLAIN, ranks_per_node=1)[0].world_size == 2


def test_named_hosts_are_numbered_as_the_launcher_numbers_them_so_that_rank_0_is_on_the_first() -> None:
    plan, _ = plan_for("generic-slurm", allocation=SLURM, topology=PLAIN, hosts="n3,n1")
    assert (plan.nodes, plan.hosts) == (2, "n[1,3]")


@each(
    ("options", "told"),
    [
        ({"hosts": "n[2-4]"}, "n4 is not in this job's allocation"),
        ({"hosts": "n1", "nodes": 2}, "--hosts names 1"),
        ({"nodes": 4}, "has 3"),
        ({"scheduler": "pbs"}, "this is a job of slurm"),
        ({"launcher": "local"}, "only on this machine"),
        ({"launcher": "srn"}, "srn"),
    ],
)
def test_contradictions_with_the_job_are_named(options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("[", r"\[")):
        plan_for("generic-slurm", allocation=SLURM, topology=PLAIN, **options)


def test_one_rank_per_device_and_idle_devices_are_told() -> None:
    assert plan_for("lumi")[0].ranks_per_node == 8
    few, _ = plan_for("lumi", ranks_per_node=3)
    assert any("5 of 8 devices per node stay idle" in remark.evidence for remark in few.remarks)


def test_several_ranks_share_a_device_when_asked() -> None:
    plan, _ = plan_for("perlmutter", ranks_per_device=2)
    assert plan.ranks_per_node == 8
    assert sorted(d for rank in plan.binding.ranks for d in rank.devices) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_short_names_of_hosts_stand_for_the_full_ones_of_the_allocation() -> None:
    names = ("n1.site.org", "n2.site.org", "n3.site.org")
    allocation = Allocation(scheduler="slurm", job_id="7", hosts=names)
    plan, _ = plan_for("generic-slurm", allocation=allocation, topology=PLAIN, hosts="n3,n1.site.org")
    assert plan.hosts is not None and expand_hostlist(plan.hosts) == ("n1.site.org", "n3.site.org")


@each("share", [1, 2, 4])
def test_tiles_that_several_ranks_share_are_split_for_them(share: int) -> None:
    plan, _ = plan_for("aurora", "train.py", nodes=2, ranks_per_device=share)
    assert plan.ranks_per_node == 12 * share
    split = {setting.value for setting in plan.environment if setting.name == "ZEX_NUMBER_OF_CCS"}
    assert split == ({",".join(f"{tile}:{share}" for tile in range(12))} if share > 1 else set())


def test_a_tile_cannot_be_split_into_three() -> None:
    with pytest.raises(UsageError, match="--ranks-per-device 3"):
        plan_for("aurora", "train.py", nodes=2, ranks_per_device=3)
