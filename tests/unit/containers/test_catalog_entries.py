"""Every container entry of the catalog can be planned and wrapped, on one node and on several."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import windlass.sites
from looping import each
from unit.containers.sites import choose_from, spec_of
from windlass.backends.containers import get_runtime, runtime_names
from windlass.backends.containers.choose import ContainerRequest, ContainerSite
from windlass.model.origin import argv_of
from windlass.model.site import ContainerSpec, StorageSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = sorted((Path(windlass.sites.__file__).parent / "data" / "sites").glob("*.toml"))
IMAGES = {"podman-hpc": "x/y:1", "shifter": "x/y:1", "edf": "x/y:1", "charliecloud": "/images/x"}


def _entries() -> list[tuple[str, int]]:
    return [(f.stem, n) for f in FILES for n in range(len(tomllib.loads(f.read_text()).get("containers", [])))]


def _read(site: str) -> tuple[tuple[ContainerSpec, ...], StorageSpec]:
    data = tomllib.loads(next(f for f in FILES if f.stem == site).read_text())
    specs = msgspec.convert(data["containers"], tuple[ContainerSpec, ...])
    return specs, msgspec.convert(data.get("storage", {}), StorageSpec)


@each(("site", "number"), _entries())
@each("nodes", [1, 2])
def test_an_entry_of_the_catalog_gives_a_command_line(site: str, number: int, nodes: int) -> None:
    specs, storage = _read(site)
    entry = specs[number]
    assert entry.runtime in runtime_names()
    image = IMAGES.get(entry.runtime, "/images/x.sif")
    if entry.images:
        image = "/images/" + entry.images[0].replace("*", "x")
        image += "" if image.endswith(".sif") else ".sif"
    asked = ContainerRequest(image=image, cwd="/work/me")
    choice = choose_from(asked, ContainerSite(specs=specs, storage=storage), nodes=nodes, runtime=entry.runtime)
    assert choice.plan.verb == entry.verb
    runtime = get_runtime(entry.runtime)
    spec = spec_of(choice, "nvidia")
    if runtime.starts_task:
        assert tomllib.loads(runtime.files(spec)["windlass.edf.toml"])["image"] == image
    else:
        assert any(image in word for word in argv_of(runtime.wrap(spec)))


def test_lumi_in_the_catalog_binds_what_the_site_asks_for_across_nodes() -> None:
    specs, storage = _read("lumi")
    image = "/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif"
    found = {}
    for nodes in (1, 2):
        asked = ContainerRequest(image=image, cwd="/scratch/project_1")
        choice = choose_from(asked, ContainerSite(specs=specs, storage=storage), nodes=nodes)
        found[nodes] = [mount.source for mount in choice.plan.mounts]
        assert choice.plan.activate == "$WITH_CONDA"
    network = ["/var/spool/slurmd", "/opt/cray", "/usr/lib64/libcxi.so.1"]
    assert found[2][:3] == network
    assert not set(network) & set(found[1])
    assert "/pfs" in found[1]
