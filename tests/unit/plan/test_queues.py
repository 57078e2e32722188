"""Queues: a job goes where it fits, and one that no queue takes is refused before it is submitted."""

from __future__ import annotations

import pytest

from looping import each
from planning import plan_for
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.plan import Plan
from windlass.model.request import Allocation, Request
from windlass.plan.queues import refuse_incomplete
from windlass.sites.catalog import load_site, site_names


def planned(site: str, **options: object) -> Plan:
    return plan_for(site, "python", "train.py", account="ACCOUNT", **options)[0]  # type: ignore[arg-type]


def directives(plan: Plan) -> str:
    return " ".join(argv_of(plan.directives))


def notes(plan: Plan) -> str:
    return "\n".join(f"{remark.severity}: {remark.evidence}" for remark in plan.remarks)


@each(
    ("site", "nodes", "time", "said"),
    [
        ("aurora", 2, "30m", "-q debug"),
        ("aurora", 2, "6h", "-q capacity"),
        ("aurora", 100, "1h", "-q debug-scaling"),
        ("polaris", 1, "1h", "-q debug"),
        ("polaris", 4, "100h", "-q capacity"),
        ("frontier", 50, "8h", "--partition=extended"),
        ("perlmutter", 4, "6h", "--qos=regular"),
        ("clariden", 2, "20h", "--partition=low"),
        ("leonardo", 65, "1h", "--qos=boost_qos_bprod"),
        ("leonardo", 256, "1h", "--qos=boost_qos_bprod"),
    ],
)
def test_a_job_that_the_default_refuses_goes_to_the_first_queue_that_takes_it(
    site: str, nodes: int, time: str, said: str
) -> None:
    plan = planned(site, nodes=nodes, time=time)
    assert said in directives(plan)
    assert "note: " in notes(plan) and said.split("=")[-1].split()[-1] in notes(plan)


@each(
    ("site", "nodes", "time"),
    [
        ("aurora", 300, "1h"),
        ("frontier", 100, "5h"),
        ("perlmutter", 2, "30m"),
        ("lumi", 4, "2h"),
        ("leonardo", 64, "1h"),
    ],
)
def test_the_default_is_left_alone_where_it_fits(site: str, nodes: int, time: str) -> None:
    plan = planned(site, nodes=nodes, time=time)
    default = load_site(site).file.scheduler.default_partition
    assert plan.partition == default
    assert "-q " not in directives(plan) and "--qos" not in directives(plan)


@each(
    ("site", "options", "message", "hint"),
    [
        (
            "aurora",
            {"nodes": 4, "partition": "prod", "time": "1h"},
            "256 nodes or more, not 4",
            "debug-scaling",
        ),
        (
            "aurora",
            {"nodes": 500, "time": "20h", "partition": "prod"},
            "at most 12:00:00 to 500 nodes",
            "change",
        ),
        (
            "frontier",
            {"nodes": 91, "time": "3h", "partition": "batch"},
            "at most 02:00:00 to 91 nodes",
            "change",
        ),
        ("lumi", {"nodes": 8, "partition": "small-g"}, "at most 4 nodes, not 8", "standard-g"),
        ("lumi", {"nodes": 2000}, "at most 1024 nodes, not 2000", "bench"),
        ("perlmutter", {"nodes": 9, "qos": "debug"}, "at most 8 nodes, not 9", "regular"),
        ("lumi", {"nodes": 1, "partition": "standrad-g"}, "no such partition", "did you mean standard-g"),
        ("aurora", {"nodes": 1, "partition": "debgu"}, "no such queue", "did you mean debug"),
        ("lumi", {"nodes": 1, "partition": "standard"}, "without accelerators", "standard-g"),
        ("frontier", {"nodes": 9472, "spares": 1}, "at most 9472 nodes, not 9473", "change"),
    ],
)
def test_a_job_that_must_fail_is_refused_with_what_to_do(
    site: str, options: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        planned(site, **options)
    assert message in str(error.value) and hint in str(error.value.hint)


def test_a_name_that_the_catalog_does_not_know_gets_a_warning_and_is_used() -> None:
    plan = planned("frontier", nodes=2, time="1h", partition="mytraining")
    assert "--partition=mytraining" in directives(plan)
    assert "warning: --partition mytraining is not among the partitions" in notes(plan)


def test_limits_that_somebody_reported_warn_and_do_not_refuse() -> None:
    plan = planned("juwels-booster", nodes=2, time="30h", partition="booster")
    assert "warning: juwels-booster: partition booster gives at most 24:00:00" in notes(plan)


def test_a_qos_decides_where_it_lifts_the_limit_of_its_partition() -> None:
    plan = planned("leonardo", nodes=4, time="3-00:00:00", qos="boost_qos_lprod")
    assert "--qos=boost_qos_lprod" in directives(plan)


def test_inside_an_allocation_nothing_is_checked_or_chosen() -> None:
    allocation = Allocation(scheduler="pbs", job_id="1", hosts=("x1", "x2"))
    plan = plan_for("aurora", "python", "train.py", allocation=allocation)[0]
    assert plan.partition is None and "queue" not in notes(plan)


@each(("site", "missing"), [("aurora", "time limit"), ("frontier", None), ("polaris", "time limit")])
def test_what_a_scheduler_insists_on_is_asked_for_before_it_is_submitted(site: str, missing: str | None) -> None:
    request = Request(command=("true",), account="ACCOUNT")
    if missing is None:
        refuse_incomplete(request, load_site(site))
        return
    with pytest.raises(UsageError, match=missing):
        refuse_incomplete(request, load_site(site))
    with pytest.raises(UsageError, match="account"):
        refuse_incomplete(Request(command=("true",), time="1h"), load_site(site))


@each("site", site_names())
def test_every_queue_of_the_catalog_takes_a_job_of_its_own_limits(site: str) -> None:
    for queue in load_site(site).file.queues:
        if not queue.devices:
            continue
        name = {"qos": queue.name} if queue.kind == "qos" else {"partition": queue.name}
        last = queue.bins[-1].nodes_max if queue.bins else 0
        nodes = queue.nodes_max or max(queue.nodes_min or 1, last + 1)
        plan = planned(site, nodes=nodes, time=queue.time_max, **name)
        assert not [remark for remark in plan.remarks if remark.severity == "warning" and queue.name in remark.evidence]


def test_a_queue_that_counts_gpus_is_asked_for_gpus_of_one_node() -> None:
    """Sophia's select counts nodes in one queue and GPUs in the other."""
    by_node = directives(planned("sophia", nodes=2, time="1h"))
    assert "-l select=2 " in by_node and "-l place=scatter" in by_node and "-q by-node" in by_node
    by_gpu = directives(planned("sophia", partition="by-gpu", gpus_per_node=4, time="1h"))
    assert "-l select=4 " in by_gpu and "place=" not in by_gpu
    with pytest.raises(UsageError, match="gives 1, 2, 4, 8 GPUs, not 3"):
        planned("sophia", partition="by-gpu", gpus_per_node=3, time="1h")


def test_a_job_without_a_time_is_told_that_its_queue_ends_it_soon() -> None:
    assert "note: without --time the job goes to qos debug" in notes(planned("perlmutter", nodes=2))
    assert "without --time" not in notes(planned("perlmutter", nodes=2, time="20m"))
    assert "without --time" not in notes(planned("frontier", nodes=2))


def test_limits_that_are_a_report_warn_and_do_not_refuse() -> None:
    assert "warning: perlmutter: qos regular gives at most" in notes(planned("perlmutter", qos="regular", time="3d"))
    assert "is not among" not in notes(planned("perlmutter", qos="preempt", time="2h"))


def test_downloads_go_to_the_project_of_the_allocation() -> None:
    allocation = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"), account="ABC123")
    plan = plan_for("frontier", "python", "train.py", allocation=allocation)[0]
    found = {setting.name: setting.value for setting in plan.environment}
    assert (found["HF_DATASETS_CACHE"] or "").startswith("/lustre/orion/abc123/scratch/")


def test_an_option_of_the_site_that_holds_twice_is_said_once() -> None:
    said = directives(planned("aurora", nodes=2, time="1h", options=("daos",)))
    assert said.count("filesystems=") == 1 and "filesystems=flare:home:daos_user_fs" in said
