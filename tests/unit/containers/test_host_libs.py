"""When a container gets the host's network libraries, and what that adds to it."""

from __future__ import annotations

import pytest

from looping import each
from planning import plan_for
from windlass.backends.containers.host_libs import host_libs_plan, host_libs_settings, site_means
from windlass.errors import UsageError
from windlass.model.condition import Facts
from windlass.model.origin import BUILTIN
from windlass.model.site import HostLibrariesSpec
from windlass.run.submit import print_submission
from windlass.sites.catalog import load_site

SLINGSHOT = HostLibrariesSpec(names=("libfabric.so.1",), folders=("/opt/*/lib64",), provider="cxi")
TWO = Facts(nodes=2, ranks_per_node=1, scheduler="slurm", launcher="srun")
ONE = Facts(nodes=1, ranks_per_node=1, scheduler="slurm", launcher="srun")


def test_they_come_by_themselves_only_where_nothing_else_brings_them() -> None:
    assert host_libs_plan(SLINGSHOT, None, (), TWO, BUILTIN) is not None
    assert host_libs_plan(SLINGSHOT, None, ("module x",), TWO, BUILTIN) is None
    assert host_libs_plan(SLINGSHOT, None, (), ONE, BUILTIN) is None
    assert host_libs_plan(HostLibrariesSpec(), None, (), TWO, BUILTIN) is None
    assert host_libs_plan(SLINGSHOT, "none", (), TWO, BUILTIN) is None


def test_the_user_has_the_last_word() -> None:
    asked = host_libs_plan(HostLibrariesSpec(), "/a:/b", ("module x",), ONE, BUILTIN)
    assert asked is not None
    assert (asked.own, asked.origin.where) == ("/a:/b", "--host-libs")


def test_network_libraries_stand_in_front_and_the_rest_behind() -> None:
    front, behind = host_libs_settings(host_libs_plan(SLINGSHOT, None, (), TWO, BUILTIN))
    assert front.prepend and (front.value or "").endswith("/host-libs/front")
    assert behind.append and (behind.value or "").endswith("/host-libs/behind")
    assert host_libs_settings(None) == ()


@each(
    ("runtime", "image"),
    [("apptainer", "/i/x.sif"), ("podman-hpc", "x:1"), ("shifter", "x:1"), ("charliecloud", "/i/x")],
)
def test_every_runtime_carries_both_parts_inside(runtime: str, image: str) -> None:
    plan, _ = plan_for("elcapitan", "true", nodes=2, container=image, runtime=runtime, account="A")
    assert plan.container is not None
    assert plan.container.host_libs is not None
    assert [s.value for s in plan.container.settings if "host-libs" in (s.value or "")] == [
        "${WINDLASS_CACHE_DIR}/../host-libs/front",
        "${WINDLASS_CACHE_DIR}/../host-libs/behind",
    ]


def test_a_script_without_windlass_cannot_look_at_nodes() -> None:
    plan, _ = plan_for("elcapitan", "true", nodes=2, container="/i/x.sif", account="A", host_libs="/a")
    with pytest.raises(UsageError, match="--standalone and --host-libs"):
        print_submission(plan.request, {}, standalone=True)


@each(
    ("site", "by"),
    [("lumi", "/opt/cray"), ("perlmutter", "nccl-plugin"), ("clariden", "aws_ofi_nccl"), ("elcapitan", "")],
)
def test_what_a_site_brings_in_by_itself_is_known_without_a_plan(site: str, by: str) -> None:
    found = site_means(load_site(site))
    assert any(by in means for means in found) or not by
    assert bool(found) == bool(by)
