"""Plans of every site at 1, 2 and the largest number of nodes, reviewed as text.

A change of the catalog or of planning shows here as a diff that a person reads. To write them anew:
`WINDLASS_GOLDEN=write pytest tests/golden`, then read `git diff tests/golden`.
"""

from __future__ import annotations

from pathlib import Path

from golden.reviewed import compare
from looping import each
from planning import plan_for
from windlass.plan.render.batch_script import batch_script, standalone_script
from windlass.plan.show import plan_text
from windlass.sites.catalog import load_site, site_names

FOLDER = Path(__file__).parent / "plans"
GENERIC = {"generic-slurm", "generic-pbs", "generic-flux"}
# The only partition that takes the whole machine, where the default does not.
WHOLE_MACHINE = {"lumi": "bench"}
MAIN = ("aurora", "frontier", "lumi", "hpe-gh200")


def sizes(site: str) -> tuple[int, ...]:
    if site == "workstation":
        return (1,)
    largest = load_site(site).file.largest_nodes
    return (1, 2) if site in GENERIC or largest is None else (1, 2, largest)


CASES = [(site, nodes) for site in site_names() for nodes in sizes(site)]


@each(("site", "nodes"), CASES, ids=str)
def test_plan_is_as_reviewed(site: str, nodes: int) -> None:
    partition = WHOLE_MACHINE.get(site) if nodes > 2 else None
    plan, _ = plan_for(
        site, "python", "train.py", "--epochs", "3", nodes=nodes, account="ACCOUNT", time="1h", partition=partition
    )
    compare(FOLDER, f"{site}-{nodes}.txt", plan_text(plan, explain=True) + "\n")


@each("site", MAIN)
def test_scripts_of_the_main_sites_are_as_reviewed(site: str) -> None:
    plan, _ = plan_for(
        site, "python", "train.py", "--rank={rank}", "two words", nodes=2, account="ACCOUNT", time="1h", name="train"
    )
    compare(FOLDER, f"{site}-2-batch.sh", batch_script(plan, "RUN_DIR", ("windlass",)))
    compare(FOLDER, f"{site}-2-standalone.sh", standalone_script(plan, "RUN_DIR"))


@each(
    ("site", "image"),
    [
        ("lumi", "/images/torch.sif"),
        ("frontier", "/images/torch.sif"),
        ("hpe-gh200", "/images/torch.sif"),
        ("elcapitan", "/images/torch.sif"),
    ],
)
@each("nodes", [1, 2])
def test_container_plans_are_as_reviewed(site: str, image: str, nodes: int) -> None:
    plan, _ = plan_for(site, "python", "train.py", nodes=nodes, container=image, account="ACCOUNT", name="train")
    compare(FOLDER, f"{site}-{nodes}-container.txt", plan_text(plan, explain=True, script=True) + "\n")


def test_a_plan_with_pyxis_is_as_reviewed() -> None:
    plan, _ = plan_for(
        *("generic-slurm", "python", "train.py"),
        nodes=2,
        container="nvcr.io/nvidia/pytorch:25.06-py3",
        runtime="pyxis",
        binds=("/data:/data:ro",),
        name="train",
    )
    compare(FOLDER, "generic-slurm-2-pyxis.txt", plan_text(plan, explain=True, script=True) + "\n")


@each("site", ["frontier", "perlmutter", "aurora"])
def test_plans_with_ray_are_as_reviewed(site: str) -> None:
    plan, _ = plan_for(site, "python", "train.py", nodes=2, account="ACCOUNT", options=("ray",), name="train")
    compare(FOLDER, f"{site}-2-ray.txt", plan_text(plan, explain=True) + "\n")


def test_a_plan_with_several_ranks_per_nvidia_device_is_as_reviewed() -> None:
    plan, _ = plan_for("perlmutter", "python", "train.py", nodes=2, account="ACCOUNT", ranks_per_device=4, name="train")
    compare(FOLDER, "perlmutter-2-mps.txt", plan_text(plan, explain=True, script=True) + "\n")


AGENTS = {"restarts": {"restarts": 2}, "cache": {"cache": ("/shared/env",)}}
WITH_AGENTS = ("aurora", "frontier", "lumi", "perlmutter")


@each("kind", sorted(AGENTS))
@each("site", WITH_AGENTS)
def test_plans_with_agents_are_as_reviewed(site: str, kind: str) -> None:
    options = AGENTS[kind]
    plan, _ = plan_for(site, "python", "train.py", nodes=2, account="ACCOUNT", time="1h", **options)
    compare(FOLDER, f"{site}-2-{kind}.txt", plan_text(plan, explain=True) + "\n")


def test_no_reviewed_plan_is_left_over() -> None:
    """A file that no test writes any more is a claim that nobody checks."""
    expected = {f"{site}-{nodes}.txt" for site, nodes in CASES}
    expected |= {f"{site}-2-{kind}.sh" for site in MAIN for kind in ("batch", "standalone")}
    expected |= {f"{site}-{n}-container.txt" for site in ("lumi", "frontier", "hpe-gh200", "elcapitan") for n in (1, 2)}
    expected |= {f"{site}-2-{kind}.txt" for site in WITH_AGENTS for kind in AGENTS} | {
        "generic-slurm-2-pyxis.txt",
        "perlmutter-2-mps.txt",
    }
    expected |= {f"{site}-2-ray.txt" for site in ("frontier", "perlmutter", "aurora")}
    assert {path.name for path in FOLDER.iterdir()} == expected
