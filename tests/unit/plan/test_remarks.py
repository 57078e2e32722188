"""Remarks at scale: what the catalog knows of plans like this one is said, and only there."""

from __future__ import annotations

import msgspec

from looping import each
from planning import plan_for
from windlass.plan.inputs import EnvironmentPlace


def remarks(site: str, **options: object) -> str:
    plan, _ = plan_for(site, "train.py", kind="script", account="ACCOUNT", **options)  # type: ignore[arg-type]
    return "\n".join(
        f"{remark.kind}: {remark.severity}: {remark.evidence} ({remark.advice})" for remark in plan.remarks
    )


@each(
    ("site", "nodes", "python", "said"),
    [
        (
            "aurora",
            8192,
            "/lus/flare/projects/p/venv/bin/python",
            "import torch from Lustre took 1020 s on as many nodes",
        ),
        ("aurora", 4000, "/lus/flare/projects/p/venv/bin/python", "took 420 s on 2048 nodes"),
        ("frontier", 1000, "/ccs/home/user/env/bin/python", "from NFS took 236 s on 8 nodes"),
        ("frontier", 8, "/lustre/orion/p/env/bin/python", "from Lustre took 51 s on as many nodes"),
    ],
)
def test_an_environment_whose_start_was_measured_to_be_slow_is_named(
    site: str, nodes: int, python: str, said: str
) -> None:
    text = remarks(site, nodes=nodes, interpreter=python)
    assert "slow-start: warning: " in text and said in text and "--cache" in text


@each(
    ("site", "options"),
    [
        ("aurora", {"nodes": 2, "interpreter": "/lus/flare/p/venv/bin/python"}),
        ("aurora", {"nodes": 8192, "interpreter": "/opt/aurora/frameworks/bin/python3"}),
        ("frontier", {"nodes": 4, "interpreter": "/ccs/home/user/env/bin/python"}),
        ("lumi", {"nodes": 1000, "interpreter": "/scratch/p/env/bin/python"}),
        ("aurora", {"nodes": 8192, "interpreter": "/lus/flare/p/venv/bin/python", "cache": ("/lus/flare/p/venv",)}),
    ],
)
def test_nothing_is_said_where_nobody_measured_or_something_is_done(site: str, options: dict[str, object]) -> None:
    assert "slow-start" not in remarks(site, **options)


def test_replacing_a_path_that_modules_fill_is_warned_about() -> None:
    assert "--env-prepend LD_LIBRARY_PATH" in remarks("frontier", nodes=2, env=(("LD_LIBRARY_PATH", "/x"),))
    assert "path-replaced" not in remarks("frontier", nodes=2, env_prepend=(("LD_LIBRARY_PATH", "/x"),))


def test_one_device_per_rank_is_said_with_the_number_that_scripts_must_use() -> None:
    assert "cuda:0, and cuda:LOCAL_RANK is there in the first rank alone" in remarks("frontier", devices="one")
    assert "xpu:0" in remarks("aurora", devices="one", device_unit="card")
    assert "LOCAL_RANK" not in remarks("frontier")


def test_a_module_for_another_number_of_ranks_is_warned_about() -> None:
    text = remarks("aurora", modules=("frameworks_optimized",), ranks_per_node=6)
    assert "module-ranks: warning: module frameworks_optimized" in text
    assert "module-ranks" not in remarks("aurora", modules=("frameworks_optimized",))


def test_a_list_of_ones_own_in_which_ranks_share_cpus_is_warned_about() -> None:
    text = remarks("polaris", ranks_per_node=2, cpu_bind="0-3:3-6")
    assert "cpus-shared: warning: --cpu-bind: ranks 0 and 1" in text
    assert "cpus-shared" not in remarks("polaris", ranks_per_node=2, cpu_bind="0-3:4-7")


SITE_IMAGE = "/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif"


@each(
    ("site", "options", "remedy"),
    [
        ("frontier", {"container": "mine.sif"}, "--env-prepend LD_LIBRARY_PATH"),
        ("frontier", {"no_modules": True}, "--module rccl-net-plugin"),
        ("lumi", {}, "/appl/local/containers/sif-images"),
        ("lumi", {"container": "mine.sif"}, "/appl/local/containers/sif-images"),
        ("perlmutter", {}, "--module pytorch"),
        ("polaris", {"container": "mine.sif"}, "/soft/libraries/aws-ofi-nccl"),
        ("elcapitan", {}, "/collab/usr/global/tools/rccl"),
        ("frontier", {"env": (("NCCL_NET", "Socket"),)}, "do not set NCCL_NET"),
    ],
)
def test_several_nodes_without_the_fabrics_plugin_are_warned_of_tcp(
    site: str, options: dict[str, object], remedy: str
) -> None:
    said = [line for line in remarks(site, nodes=2, **options).splitlines() if line.startswith("tcp-fallback: ")]
    assert len(said) == 1 and said[0].startswith("tcp-fallback: warning: ") and remedy in said[0]


@each(
    ("site", "options"),
    [
        ("frontier", {}),
        ("frontier", {"container": "mine.sif", "nodes": 1}),
        ("frontier", {"container": "mine.sif", "env_prepend": (("LD_LIBRARY_PATH", "/plugin/lib"),)}),
        ("frontier", {"options": ("force-net",), "no_modules": True}),  # RCCL stops by itself
        ("frontier", {"gpus_per_node": 0, "no_modules": True}),
        ("lumi", {"container": SITE_IMAGE}),
        ("lumi", {"modules": ("aws-ofi-rccl",)}),
        ("perlmutter", {"modules": ("pytorch/2.6.0",)}),
        ("perlmutter", {"container": "nersc/pytorch:25.06.01"}),
        ("elcapitan", {"users": {"LD_LIBRARY_PATH": "/collab/usr/global/tools/rccl/x/rocm-6.4.1/install/lib"}}),
        ("clariden", {}),
        ("aurora", {}),
        ("vista", {}),
    ],
)
def test_nothing_is_said_of_tcp_where_the_plugin_comes_or_none_is_needed(site: str, options: dict[str, object]) -> None:
    assert "tcp-fallback" not in remarks(site, **{"nodes": 2, **options})


def test_software_of_the_machine_itself_needs_no_cache() -> None:
    said = "needless-cache: note: "
    assert said in remarks("aurora", nodes=8192, cache=("/opt/aurora/25.190.0/frameworks",))
    assert said not in remarks("aurora", nodes=8192, cache=("/lus/flare/projects/p/venv",))


SHARED = EnvironmentPlace(path="/work/env", file_system="nfs4", shared=True, stat_ms=1.0, open_ms=2.0)


@each(
    ("nodes", "changes", "said"),
    [
        (4, {}, "a stat takes 1 ms and an open 2 ms from here, so an import of torch's size (9,000 calls) 14 s"),
        (16, {"stat_ms": 0.01, "open_ms": 0.02}, "on one of 16 nodes"),
        (2, {"answered": False, "stat_ms": None, "open_ms": None}, "did not answer at once"),
    ],
)
def test_a_look_at_the_environment_is_told_where_it_matters(nodes: int, changes: dict[str, object], said: str) -> None:
    text = remarks("lumi", nodes=nodes, place=msgspec.structs.replace(SHARED, **changes))
    assert "slow-start: warning: " in text and "nfs4 (/work/env)" in text and said in text
    assert "(--cache auto reads it once for all nodes)" in text


@each(
    ("nodes", "changes"),
    [(1, {}), (4, {"stat_ms": 0.1, "open_ms": 0.2}), (64, {"shared": False}), (4, {"stat_ms": None, "open_ms": None})],
)
def test_a_look_at_the_environment_is_not_told_where_it_does_not(nodes: int, changes: dict[str, object]) -> None:
    text = remarks("lumi", nodes=nodes, place=msgspec.structs.replace(SHARED, **changes))
    assert "slow-start" not in text


def test_what_the_catalog_and_the_look_say_is_one_remark() -> None:
    python = "/lus/flare/projects/p/venv/bin/python"
    text = remarks("aurora", nodes=8192, interpreter=python, place=SHARED)
    assert text.count("slow-start: ") == 1 and "took 1020 s" in text and "a stat takes 1 ms" in text


def test_variables_that_pbs_does_not_carry_are_named_and_others_are_not() -> None:
    users = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "secret", "EDITOR": "vi", "CCL_ALLREDUCE": "ring"}
    text = remarks("aurora", nodes=2, users=users, env=(("CCL_ALLREDUCE", "topo"),))
    assert "not-carried: note: " in text and ": NCCL_DEBUG, WANDB_API_KEY (" in text
    assert "secret" not in text
    assert "not-carried" not in remarks("lumi", nodes=2, users=users)


def test_many_more_ranks_than_cpus_are_warned_about() -> None:
    assert "crowded: warning: 64 ranks share the 4 CPUs" in remarks("workstation", ranks_per_node=64)
    assert "crowded" not in remarks("workstation", ranks_per_node=8)
