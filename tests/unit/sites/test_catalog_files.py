"""Rules that every file of the catalog keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from looping import each
from unit.sites.loading import SLINGSHOT, directives, launcher_words, variables
from windlass.backends.containers import runtime_names
from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names
from windlass.base.notation.counts import parse_bindings, parse_cpulist
from windlass.model.origin import argument_key
from windlass.model.site import Site
from windlass.sites import facts
from windlass.sites.catalog import load_site, site_names
from windlass.sites.check import check_file
from windlass.sites.folders import DATA_DIR, catalog_path, read_builtin, read_detect
from windlass.sites.topology.described import topology_from_spec
from windlass.sites.topology.split import in_unit

FILES = sorted(DATA_DIR.glob("*/*.toml"))
SITES = site_names()
OF_THE_SOURCE_DOCUMENTS = ("aurora", "frontier", "hpe-gh200", "lumi")


@each("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_passes_its_check(path: Path) -> None:
    assert [problem.sentence() for problem in check_file(path)] == []


def test_all_machines_that_were_promised_are_there() -> None:
    assert set(SITES) == {
        *("aurora", "frontier", "lumi", "perlmutter", "clariden", "isambard-ai", "hpe-gh200", "polaris", "sophia"),
        *("elcapitan", "tuolumne", "vista", "juwels-booster", "jupiter", "leonardo", "marenostrum5"),
        *("workstation", "generic-slurm", "generic-pbs", "generic-flux"),
    }


@each("name", SITES)
def test_every_site_loads_and_says_what_it_is(name: str) -> None:
    file = load_site(name).file
    assert file.name == name
    assert file.title
    assert file.status, "what was never run on the machine must be said"
    assert file.largest_nodes


@each("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_table_of_facts_names_its_source(path: Path) -> None:
    data = read_builtin(path)
    assert data.get("source"), "the facts at the top of the file"
    for key in ("detect", "scheduler", "launcher", "rendezvous", "binding", "devices", "node", "storage"):
        assert key not in data or not _has_facts(data[key]) or data[key].get("source"), key
    for key in ("settings", "modules", "queues", "containers", "notes", "peaks", "references", "limits", "prologue"):
        for item in data.get(key, ()):
            assert item.get("source"), (key, item)


def _has_facts(table: dict[str, Any]) -> bool:
    return any(not isinstance(value, list) or not value or not isinstance(value[0], dict) for value in table.values())


@each("name", SITES)
def test_everything_in_a_merged_site_can_say_where_it_comes_from(name: str) -> None:
    site = load_site(name)
    for spec in _with_origin(site):
        assert spec.origin is not None
        assert spec.origin.where and spec.origin.checked and spec.origin.grade and spec.origin.file, spec
    for spec in (*site.file.queues, *site.file.notes, *site.file.peaks, *site.file.modules, *site.file.containers):
        assert spec.source in site.file.sources


def _with_origin(site: Site) -> Iterator[Any]:
    file = site.file
    yield from (*file.settings, *file.scheduler.directives, *file.launcher.arguments, *file.limits, *file.prologue)
    yield from file.binding.presets
    yield from (setting for preset in file.binding.presets for setting in preset.settings)
    for container in file.containers:
        yield from (*container.settings, *container.arguments, *container.binds)


@each("name", SITES)
def test_what_a_site_drops_would_be_there_without_it(name: str) -> None:
    path = catalog_path("site", name)
    assert path is not None
    data = read_builtin(path)
    inherited: dict[str, list[str]] = {"settings": [], "options": []}
    for kind in ("hardware", "network"):
        lower = catalog_path(kind, data[kind]) if data.get(kind) else None
        table = read_builtin(lower) if lower else {}
        inherited["settings"] += [item["name"] for item in table.get("settings", ())]
        for place, key in (("scheduler", "directives"), ("launcher", "arguments")):
            words = [tuple(item["words"]) for item in table.get(place, {}).get(key, ())]
            inherited["options"] += [argument_key(entry) for entry in words]
    for pattern in data.get("drop", ()):
        names = inherited["options" if pattern.startswith("-") else "settings"]
        assert any(fnmatchcase(entry, pattern) for entry in names), pattern


@each("name", SITES)
def test_detection_reads_the_same_as_the_full_parser(name: str) -> None:
    path = catalog_path("site", name)
    assert path is not None
    data, head = read_builtin(path), read_detect(path)
    assert head.detect == data.get("detect", {})
    assert head.hardware == data.get("hardware")
    assert head.scheduler == data.get("scheduler", {}).get("kind")


def test_names_in_conditions_are_those_of_the_backends() -> None:
    assert runtime_names() == facts.RUNTIMES
    assert scheduler_names() == facts.SCHEDULERS
    assert launcher_names() == facts.LAUNCHERS


@each("name", SITES)
def test_presets_keep_ranks_on_the_socket_of_their_device_and_off_reserved_cores(name: str) -> None:
    file = load_site(name).file
    if not file.node.domains:
        return
    reserved = set(parse_cpulist(file.node.reserved))
    for preset in file.binding.presets:
        unit = preset.device_unit or file.devices.unit
        topology = in_unit(topology_from_spec(file.node, file.devices), unit)
        socket = {cpu: core.socket for core in topology.cores for cpu in core.cpus}
        domain = {core.numa: core.socket for core in topology.cores}
        count = len(topology.devices)
        lists = parse_bindings(preset.cpus)
        for rank, cpus in enumerate(lists):
            assert cpus and not set(cpus) & reserved, (preset.name, rank)
            device = topology.devices[rank * count // len(lists)]
            assert device.numa is not None
            assert {socket[cpu] for cpu in cpus} == {domain[device.numa]}, (preset.name, rank)


@each("name", SITES)
def test_known_mistakes_are_nowhere(name: str) -> None:
    for setting in load_site(name).file.settings:
        assert (setting.name, setting.value) != ("FI_MR_CACHE_MONITOR", "memhooks")
        assert "OVFLOW" not in setting.name
        if setting.name == "NCCL_NET_GDR_LEVEL":
            assert setting.value in {"PHB", None}
        if setting.name == "NCCL_NET" and setting.value not in {"Socket", None}:
            assert setting.when.nodes_min == 2, "forcing the network on one node costs VNIs or fails"


@each("name", SLINGSHOT)
def test_one_node_gets_no_setting_for_the_network(name: str) -> None:
    alone = {key for key, value in variables(name, nodes=1).items() if value is not None}
    assert not [key for key in alone if key.startswith(("NCCL_NET", "FI_CXI_", "NCCL_SOCKET", "NCCL_CROSS"))], alone


@each("name", SLINGSHOT)
@each("nodes", [1, 2])
def test_alt_read_and_the_scheduler_switch_go_together(name: str, nodes: int) -> None:
    alt_read = variables(name, nodes=nodes).get("FI_CXI_RDZV_PROTO") == "alt_read"
    words = [*directives(name, nodes=nodes), *launcher_words(name, nodes=nodes)]
    switch = {("--network=disable_rdzv_get",), ("--setattr=rdzv_get_en=0",)} & set(words)
    assert bool(switch) == alt_read


@each("name", SITES)
def test_caches_are_left_to_the_environment_layer(name: str) -> None:
    names = set(variables(name)) | set(variables(name, nodes=1))
    caches = r"(MIOPEN_(USER_DB|CUSTOM_CACHE).*|TRITON_.*|HF_.*|TORCH_HOME|TORCHINDUCTOR_.*|CUDA_CACHE.*|XDG_.*)"
    assert not [entry for entry in names if re.fullmatch(caches, entry)]


@each("name", OF_THE_SOURCE_DOCUMENTS)
def test_sites_of_the_source_documents_are_complete(name: str) -> None:
    file = load_site(name).file
    assert file.hardware and file.network
    assert file.scheduler.directives and file.containers and file.storage.note and file.peaks and file.notes
    assert file.containers[0].binds
    assert any(limit.words == ("-c", "0") for limit in file.limits)
