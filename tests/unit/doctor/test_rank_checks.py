"""What ranks say about themselves, against the plan: affinity, Python, torch, the place of the environment, plugins."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planning import plan_for
from windlass.diagnose.doctor import bandwidth, rank_checks
from windlass.diagnose.doctor.comm_log import parse_comm_log
from windlass.model.plan import Plan
from windlass.node.checks import rank as environment
from windlass.node.checks import rank as plugins
from windlass.node.sys import mounts
from windlass.plan.inputs import PlanningContext
from windlass.sites.catalog import load_site


def _plan(site: str = "frontier", **options: Any) -> Plan:
    return plan_for(site, "train.py", kind="script", **{"nodes": 2, "account": "A", **options})[0]


def _context(site: str, plan: Plan) -> PlanningContext:
    return PlanningContext(site=load_site(site), topology=plan.topology)


def _reports(plan: Plan, **wrong: list[int]) -> dict[int, dict[str, Any]]:
    planned = {rank.local_rank: list(rank.cpus) for rank in plan.binding.ranks}
    return {
        rank: {
            "local_rank": rank % plan.ranks_per_node,
            "cpus": wrong.get(f"r{rank}", planned[rank % plan.ranks_per_node]),
        }
        for rank in range(plan.world_size)
    }


def _node(rank: int) -> str:
    return f"n{rank // 8}"


def test_ranks_on_the_cpus_of_the_plan_are_well() -> None:
    plan = _plan()
    found = rank_checks.check_affinity(plan, _reports(plan), _node)
    assert [(f.subject, f.severity) for f in found] == [("n0", "ok"), ("n1", "ok")]


def test_a_rank_that_is_pinned_to_one_core_is_named_with_its_node() -> None:
    plan = _plan()
    found = rank_checks.check_affinity(plan, _reports(plan, r11=[5]), _node)
    assert [(f.subject, f.severity) for f in found] == [("n0", "ok"), ("n1", "error")]
    assert found[1].evidence.startswith("local rank 3 is on CPUs 5 instead of ")


def test_unbound_ranks_with_one_cpu_each_are_told() -> None:
    plan = _plan(cpu_bind="none")
    reports = {rank: {"local_rank": rank % 8, "cpus": [0]} for rank in range(16)}
    found = rank_checks.check_affinity(plan, reports, _node)
    assert {f.severity for f in found} == {"error"} and "pinned to one CPU" in found[0].evidence


def _environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder / "bin" / "python"


def test_the_wrong_python_is_found(tmp_path: Path) -> None:
    mine, other = _environment(tmp_path / "mine"), _environment(tmp_path / "other")
    plan = msgspec.structs.replace(_plan(), command=(str(mine), "train.py"))
    right = {"python": {"executable": str(mine), "prefix": str(tmp_path / "mine"), "version": "3.11.2"}}
    wrong = {"python": {"executable": str(other), "prefix": str(tmp_path / "other"), "version": "3.11.2"}}
    assert rank_checks.check_python(plan, right, {}).severity == "ok"
    found = rank_checks.check_python(plan, wrong, {})
    assert found.severity == "error" and f"where the plan has {mine}" in found.evidence
    active = rank_checks.check_python(plan, right, {"VIRTUAL_ENV": str(tmp_path / "other")})
    assert active.severity == "warning" and "is active here" in active.evidence


def test_a_wrapper_that_the_user_names_may_start_any_python(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text('#!/bin/sh\nexec python3 "$@"\n')
    assert rank_checks.same_python(str(wrapper), "/usr/bin/python3", "/usr")


@pytest.mark.parametrize(
    ("torch", "driver", "severity", "word"),
    [
        ({}, "", "error", "no torch"),
        ({"version": "2.9.0+cpu", "folder": "/t"}, "", "error", "on nodes with devices of nvidia"),
        ({"version": "2.9.0", "cuda": "12.8", "folder": "/t"}, "470.57.02", "error", "the driver is 470.57.02"),
        ({"version": "2.9.0", "cuda": "12.8", "folder": "/t"}, "570.124.06", "ok", "2.9.0 for cuda 12.8"),
        ({"version": "2.9.0", "cuda": "13.0", "folder": "/t"}, "570.124.06", "error", "the driver is"),
        ({"version": "2.9.0", "hip": "6.4", "folder": "/t"}, "570.124.06", "error", "devices of nvidia"),
    ],
)
def test_torch_must_fit_the_devices_and_their_driver(
    torch: dict[str, str], driver: str, severity: str, word: str
) -> None:
    found = rank_checks.check_torch(_plan("perlmutter"), {"torch": torch, "driver": driver})
    assert found.severity == severity and word in found.evidence


def test_versions_are_read_without_importing_torch() -> None:
    text = "__version__ = '2.9.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    assert environment.parse_torch_version(text) == {"version": "2.9.0+cu128", "cuda": "12.8"}
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build\nGCC version: 12\n"
    assert environment.parse_driver(driver) == "570.124.06"
    assert environment.parse_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue\n") == "535.161.08"


LUSTRE = "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n31 22 0:40 / {} rw - lustre 10.0.0.1@o2ib:/scratch rw,flock\n"


@pytest.mark.parametrize(("nodes", "severity"), [(1, "ok"), (512, "warning")])
def test_an_environment_on_a_shared_file_system_is_told_with_the_way_out(
    tmp_path: Path, nodes: int, severity: str
) -> None:
    (tmp_path / "lib").write_text("x")
    there = mounts.parse_mountinfo(LUSTRE.format(str(tmp_path).replace(" ", "\\040")).encode())
    place = environment.place_facts(str(tmp_path), there)
    found = rank_checks.check_place({"places": [{**place, "look_us": 20.0}], "import_s": 3.0}, nodes, "default")
    assert found.severity == severity and "is on Lustre" in found.evidence
    assert (f"--cache {tmp_path}" in found.advice) == (severity == "warning")


def test_a_slow_disk_is_told_by_what_an_import_costs_there() -> None:
    place = {"path": "/env", "kind": "shared", "file_system": "NFS", "mount": "/", "look_us": 2000.0}
    found = rank_checks.check_place({"places": [place]}, 1, "quick")
    assert found.severity == "warning" and "`import torch` takes about 35 s" in found.evidence
    local = {**place, "kind": "local", "look_us": 5.0}
    assert rank_checks.check_place({"places": [local], "import_s": 42.0}, 1, "default").severity == "warning"
    assert rank_checks.check_place({"places": [local], "import_s": 2.0}, 64, "default").severity == "ok"


def _library(folder: Path, name: str) -> Path:
    """A real shared library under another name."""
    import _ctypes

    folder.mkdir()
    return Path(shutil.copy(_ctypes.__file__, folder / name))


def test_the_plugin_and_a_second_one_beside_it_are_found(tmp_path: Path) -> None:
    first = _library(tmp_path / "a", "libnccl-net.so")
    shutil.copy(first, tmp_path / "a" / "libnccl-net-ofi.so")
    second = _library(tmp_path / "b", "libnccl-net.so")
    path = f"{tmp_path / 'a'}:{tmp_path / 'none'}:{tmp_path / 'b'}"
    assert plugins.find_plugins({"LD_LIBRARY_PATH": path}) == [str(first), str(second)]
    facts = plugins.plugin_facts({"LD_LIBRARY_PATH": path})
    assert facts["error"] == ""
    plan = _plan("perlmutter")
    context = _context("perlmutter", plan)
    found = rank_checks.check_plugin(plan, context, {"network": facts})
    assert (
        found.severity == "warning" and str(second) in found.evidence and "another one is installed" in found.evidence
    )
    alone = rank_checks.check_plugin(plan, context, {"network": {**facts, "found": [str(first)]}})
    assert alone.severity == "ok"


def test_a_plugin_that_does_not_load_says_why(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_bytes(b"not a library")
    facts = plugins.plugin_facts({"LD_LIBRARY_PATH": str(tmp_path)})
    plan = _plan("perlmutter")
    found = rank_checks.check_plugin(plan, _context("perlmutter", plan), {"network": facts})
    assert found.severity == "error" and "does not load" in found.evidence and "file too short" in found.evidence


@pytest.mark.parametrize(
    ("site", "nodes", "severity"),
    [("perlmutter", 2, "error"), ("perlmutter", 1, "skipped"), ("leonardo", 2, "skipped")],
)
def test_a_missing_plugin_fails_only_where_the_fabric_needs_one(site: str, nodes: int, severity: str) -> None:
    plan = _plan(site, nodes=nodes)
    assert rank_checks.check_plugin(plan, _context(site, plan), {"network": {"found": []}}).severity == severity


def test_providers_of_libfabric_are_compared_with_the_fabric() -> None:
    text = "cxi:\n    version: 112.0\ntcp;ofi_rxm:\n    version: 122.0\ntcp:\n    version: 122.0\n"
    providers = plugins.parse_providers(text)
    assert providers == ["cxi", "tcp", "tcp;ofi_rxm"]
    plan = _plan()
    context = _context("frontier", plan)
    assert rank_checks.check_providers(plan, context, {"network": {"providers": providers}}).severity == "ok"
    found = rank_checks.check_providers(plan, context, {"network": {"providers": ["tcp"]}})
    assert found.severity == "error" and "cxi is missing" in found.evidence


def test_another_environment_on_one_node_is_found() -> None:
    first = {
        rank: {"python": {"version": "3.11.2"}, "torch": {"version": "2.9.0" if rank != 16 else "2.4.0"}}
        for rank in range(0, 32, 8)
    }
    (found,) = rank_checks._same_everywhere(first, _node)
    assert (found.subject, found.severity) == ("n2", "error")
    assert found.evidence == "torch: 2.4.0, on most nodes 2.9.0"


def test_a_variable_that_only_one_node_has_is_found() -> None:
    first = {
        rank: {"variables": {"NCCL_DEBUG": "WARN"} | ({"LD_PRELOAD": "x.so"} if rank == 8 else {})}
        for rank in (0, 8, 16)
    }
    (found,) = rank_checks._same_everywhere(first, _node)
    assert (found.subject, found.severity) == ("n1", "warning")
    assert "LD_PRELOAD: x.so, on most nodes none" in found.evidence and "--env LD_PRELOAD=" in found.advice


def test_a_look_at_files_is_timed(tmp_path: Path) -> None:
    assert environment.look_us(str(tmp_path)) == 0.0
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert environment.look_us(str(tmp_path)) > 0
    assert environment.torch_facts().get("folder", os.sep).startswith(os.sep)


@pytest.mark.parametrize(("text", "severity"), [("64", "warning"), ("2", "ok"), ("", "ok"), ("many", "ok")])
def test_more_threads_than_cpus_of_a_rank_are_told_with_the_right_number(text: str, severity: str) -> None:
    found = rank_checks.check_threads({"cpus": [0, 1], "omp_threads": text})
    assert found.severity == severity
    assert ("OMP_NUM_THREADS=2" in found.advice) == (severity != "ok")


def test_a_rank_is_blamed_on_the_host_that_it_reports() -> None:
    plan = msgspec.structs.replace(_plan(), hosts="n[1-2]")
    reports = _reports(plan)
    for rank, report in reports.items():  # the launcher has the nodes the other way round
        report["host"] = "n2.site" if rank < plan.ranks_per_node else "n1.site"
    reports[0]["import_error"] = "ImportError: libtorch.so"
    found = rank_checks.check_ranks(plan, _context("frontier", plan), reports, parse_comm_log([]), "quick", {})
    broken = [f.subject for f in found if f.kind == "torch" and "cannot be imported" in f.evidence]
    assert broken == ["n2"]


def test_a_node_whose_ranks_are_silent_gets_the_host_that_is_left() -> None:
    plan = msgspec.structs.replace(_plan(nodes=3), hosts="n[1-3]")
    reports = {rank: {"host": "n3" if rank < plan.ranks_per_node else "n1"} for rank in range(2 * plan.ranks_per_node)}
    assert rank_checks.rank_hosts(plan, reports) == ("n3", "n1", "n2")
    same_name = {rank: {"host": "n1"} for rank in reports}
    assert rank_checks.rank_hosts(plan, same_name) == ("n1", "n2", "n3")


def test_an_import_that_hangs_is_told_only_where_the_ranks_were_ended_for_their_silence() -> None:
    plan = _plan()
    report = {"torch": {"version": "2.9.0"}, "importing": True}
    cold = rank_checks.check_torch(plan, report, 20.0)
    assert (cold.severity, cold.evidence) == ("warning", "`import torch` has not ended after 20 s")
    assert "cold file system" in cold.advice
    hung = rank_checks.check_torch(plan, report, 20.0, elsewhere=True)
    assert (hung.severity, hung.evidence) == ("error", "`import torch` has not ended after 20 s")
    ended = rank_checks.check_torch(plan, {"torch": {"version": "2.9.0", "hip": "6.3"}, "importing": True})
    assert ended.severity == "ok"


def test_an_all_reduce_that_hangs_is_an_error_and_one_that_was_not_tried_is_none() -> None:
    plan, site = _plan(), load_site("frontier")
    imported = {rank: {"import_s": 2.0} for rank in range(plan.world_size)}
    (found,) = bandwidth.check_all_reduce(plan, site, imported, parse_comm_log([]), 20.0)
    assert (found.severity, found.evidence) == ("error", "has not ended after 20 s")
    (found,) = bandwidth.check_all_reduce(plan, site, imported, parse_comm_log([]))
    assert (found.severity, found.evidence) == ("error", "a rank died in it")
    (found,) = bandwidth.check_all_reduce(plan, site, {**imported, 3: {}}, parse_comm_log([]), 20.0)
    assert (found.severity, found.evidence) == ("skipped", "not tried: 15 of 16 ranks imported torch")
