"""What schedulers say of their nodes, from captured output and in the forms that clusters write."""

from __future__ import annotations

from captured import text
from looping import each
from planning import plan_for
from windlass.backends.schedulers import get_scheduler
from windlass.model.origin import argv_of
from windlass.model.request import NodeOffer, PartitionOffer
from windlass.model.topology import Topology

UNKNOWN = Topology(arch="", cores=())


def offers(scheduler: str, output: str) -> dict[str, PartitionOffer]:
    return {offer.name: offer for offer in get_scheduler(scheduler).parse_offers(output)}


@each(
    ("gres", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:2,gpu:v100:1,nvme:1", 2),
        ("gpu:nvidia_h100_80gb_hbm3:8(S:0-1),tmpfs:1", 8),
        ("gpu:a100:4(S:0-1),shard:40", 4),
        ("nvme:1", 0),
        ("(null)", 0),
        ("", 0),
        ("gpu", 0),
    ],
)
def test_gpus_of_a_slurm_node_are_read_from_its_generic_resources(gres: str, gpus: int) -> None:
    assert offers("slurm", f"gpu*|10|64|{gres}\n")["gpu"].gpus_per_node == gpus


def test_a_partition_of_several_kinds_offers_the_commonest_with_devices() -> None:
    found = offers("slurm", "all*|90|128|(null)\nall*|8|64|gpu:a100:4\nall*|2|96+|gpu:h100:8\ncpu|90|128|(null)\n")
    offer = found["all"]
    assert (offer.nodes, offer.cpus_per_node, offer.gpus_per_node, offer.mixed) == (8, 64, 4, True)
    assert offer.default and len(offer.kinds) == 3
    assert found["cpu"] == PartitionOffer(name="cpu", kinds=(NodeOffer(nodes=90, cpus=128),))


def test_pbs_tells_what_its_nodes_have() -> None:
    found = offers("pbs", text("openpbs/pbsnodes_a_json.out"))
    assert set(found) == {""} and found[""].gpus_per_node == 2 and found[""].cpus_per_node == 4


@each("output", ["", "{", "[]", "null", '{"nodes": 3}', '{"nodes": {"a": 1, "b": {}}}'])
def test_an_answer_that_is_none_offers_nothing(output: str) -> None:
    assert offers("pbs", output) == offers("slurm", output) == offers("flux", output) == {}


def test_flux_tells_sums_per_queue() -> None:
    found = offers("flux", "debug|1|2|2\nbatch|3|6|6\ndebug|0|0|0\n")
    assert found["batch"] == PartitionOffer(name="batch", kinds=(NodeOffer(nodes=3, cpus=2, gpus=(("", 2),)),))
    assert offers("flux", "|4|8|0\n")[""].default


@each(
    ("site", "output", "words"),
    [
        ("generic-slurm", "gpu*|10|64|gpu:a100:4(S:0-1)\n", ("--gres=gpu:4", "--cpus-per-task=16")),
        ("generic-pbs", text("openpbs/pbsnodes_a_json.out"), ("select=2:ncpus=4:mpiprocs=2:ngpus=2",)),
        ("generic-flux", "|4|64|16\n", ("--exclusive",)),
    ],
)
def test_a_job_asks_for_what_is_offered_in_the_scheduler_s_way(site: str, output: str, words: tuple[str, ...]) -> None:
    found = tuple(offers(site.removeprefix("generic-"), output).values())
    plan, _ = plan_for(site, "python", "train.py", nodes=2, topology=UNKNOWN, offers=found)
    said = argv_of(plan.directives)
    assert set(words) <= set(said), said
    assert plan.ranks_per_node == found[0].gpus_per_node
    assert any("devices per node" in remark.evidence for remark in plan.remarks)
