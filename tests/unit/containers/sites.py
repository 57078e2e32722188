"""What sites document about their containers, in the catalog's own form. The source of each line is the documentation
that the catalog names; here it is the input of the golden command lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import WrapSpec
from windlass.backends.containers.choose import (
    ContainerChoice,
    ContainerRequest,
    ContainerSite,
    plan_container,
    runtime_name,
)
from windlass.model.condition import Facts
from windlass.model.origin import argv_of
from windlass.model.site import ContainerSpec, StorageSpec
from windlass.run.container_paths import look_at_paths

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LUMI = """
links = { "/scratch" = "/pfs", "/flash" = "/pfs", "/project" = "/pfs" }

[[containers]]
runtime = "singularity"
default = true
device_flag = false
activate = "$WITH_CONDA"
activate_images = ["lumi-pytorch-*.sif"]
binds = [
  { source_path = "/var/spool/slurmd", because = "Slurm", source = "s", when = { nodes_min = 2 } },
  { source_path = "/opt/cray", because = "libfabric", source = "s", when = { nodes_min = 2 } },
  { source_path = "/usr/lib64/libcxi.so.1", because = "the NIC", source = "s", when = { nodes_min = 2 } },
  { source_path = "/pfs", because = "all shared file systems", source = "s" },
]

[[containers]]
runtime = "singularity"
images = ["*lumi-multitorch*"]
verb = "run"
device_flag = false
binds = [{ source_path = "/pfs", because = "all shared file systems", source = "s" }]
"""

FRONTIER = """
[[containers]]
runtime = "apptainer"
default = true
modules = ["olcf-container-tools", "apptainer-enable-mpi", "apptainer-enable-gpu"]
binds = [
  { source_path = "/usr/share/libdrm", because = "device names", source = "s" },
  { source_path = "/var/spool/slurmd", because = "Slurm", source = "s" },
  { source_path = "/opt/cray", because = "libfabric and MPI", source = "s" },
]

[[containers.settings]]
name = "LD_LIBRARY_PATH"
value = "${CRAY_MPICH_ROOTDIR}/gtl/lib:/opt/rocm/lib"
expand = true
because = "MPI"
source = "s"

[[containers.settings]]
name = "MPICH_SMP_SINGLE_COPY_MODE"
value = "NONE"
because = "no xpmem inside"
source = "s"
"""

GH200 = """
[[containers]]
runtime = "singularity"
default = true
verb = "run"
binds = [
  { source_path = "/projects", because = "shared", source = "s" },
  { source_path = "$TMPDIR", because = "local", source = "s" },
  { source_path = "$HOME", because = "home", source = "s" },
  { source_path = "/opt/cray/libfabric/1.15.2.0/lib64", target = "/host/lib", because = "libfabric", source = "s" },
  { source_path = "/usr", target = "/host/usr", because = "its dependencies", source = "s" },
]
"""

ISAMBARD = """
[[containers]]
runtime = "apptainer"
default = true
modules = ["brics/apptainer-multi-node"]

[[containers]]
runtime = "podman-hpc"
"""

POLARIS = """
[[containers]]
runtime = "apptainer"
default = true
modules = ["spack-pe-base", "apptainer", "cray-mpich-abi"]
binds = [
  { source_path = "/opt", because = "Cray libraries", source = "s" },
  { source_path = "/var/run/palsd/", because = "PALS", source = "s" },
]

[[containers.settings]]
name = "LD_LIBRARY_PATH"
value = "${CRAY_LD_LIBRARY_PATH}:${LD_LIBRARY_PATH}:/opt/cray/pe/pals/1.2.12/lib"
expand = true
because = "MPI"
source = "s"
"""

PERLMUTTER = """
[[containers]]
runtime = "shifter"
default = true
arguments = [{ words = ["--module=gpu,nccl-plugin"], because = "devices and the plugin", source = "s" }]

[[containers]]
runtime = "podman-hpc"
arguments = [{ words = ["--nccl"], because = "the plugin", source = "s", when = { nodes_min = 2 } }]
"""

CLARIDEN = """
[[containers]]
runtime = "edf"
default = true
binds = [
  { source_path = "/capstor", because = "shared", source = "s" },
  { source_path = "/iopsstor", because = "shared", source = "s" },
]
annotations = { "com.hooks.aws_ofi_nccl.enabled" = "true", "com.hooks.aws_ofi_nccl.variant" = "cuda-dl" }
"""


class SiteText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    containers: tuple[ContainerSpec, ...]
    links: dict[str, str] = {}


def choose(
    text: str,
    image: str,
    *,
    nodes: int = 2,
    runtime: str | None = None,
    environ: Mapping[str, str] | None = None,
    **fields: Any,
) -> ContainerChoice:
    """The container that a site's text gives for this image. With `environ` this machine is the one that will run."""
    site = msgspec.convert(tomllib.loads(text), SiteText)
    offer = ContainerSite(specs=site.containers, storage=StorageSpec(links=site.links))
    return choose_from(
        ContainerRequest(image=image, **{"cwd": "/work/me", **fields}),
        offer,
        nodes=nodes,
        runtime=runtime,
        environ=environ,
    )


def choose_from(
    asked: ContainerRequest,
    site: ContainerSite,
    *,
    nodes: int = 1,
    ranks_per_node: int = 4,
    runtime: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ContainerChoice:
    """The container of a request on a site."""
    facts = Facts(
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        scheduler="slurm",
        launcher="srun",
        container=True,
        runtime=runtime_name(asked.image, runtime, site.specs),
    )
    seen = look_at_paths(asked, site, environ) if environ is not None else None
    return plan_container(asked, site, facts, seen)


def spec_of(choice: ContainerChoice, vendor: str | None, **fields: Any) -> WrapSpec:
    base: dict[str, Any] = {"cwd": "/work/me", "run_dir": "/work/me/runs/1", "settings": (), "rank_variables": ()}
    return WrapSpec(container=choice.plan, vendor=vendor, **{**base, **fields})


def command_line(choice: ContainerChoice, vendor: str | None, **fields: Any) -> str:
    """The words in front of the user's command, separated by single spaces."""
    return " ".join(argv_of(get_runtime(choice.plan.runtime).wrap(spec_of(choice, vendor, **fields))))
