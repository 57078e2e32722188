"""Scopes: who wins, what is kept, and that the winner remembers where it came from."""

from __future__ import annotations

from typing import Any

from windlass.model.origin import Scope
from windlass.sites.catalog import load_site
from windlass.sites.merge import Layer, Merged, merge_layers

SOURCES = {"doc": {"where": "the manual", "checked": "2026-01-02", "grade": "vendor"}}


def layer(scope: Scope, **data: Any) -> Layer:
    return Layer(scope=scope, file=f"{scope}-file", data=data, sources=SOURCES)


def setting(name: str, value: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "because": "x", "source": "doc", **more}


def values(merged: Merged) -> list[tuple[str, str]]:
    return [(item["name"], item["value"]) for item in merged.data["settings"]]


def test_a_higher_scope_replaces_a_key_and_keeps_its_neighbours() -> None:
    merged = merge_layers(
        [
            layer("hardware", devices={"mode": "all", "vendor": "amd", "source": "doc"}),
            layer("site", devices={"mode": "one", "source": "doc"}),
        ]
    )
    assert merged.data["devices"]["mode"] == "one"
    assert merged.data["devices"]["vendor"] == "amd"
    assert merged.origins["devices.mode"].scope == "site"
    assert merged.origins["devices.vendor"].scope == "hardware"


def test_the_winner_remembers_scope_file_place_date_and_grade() -> None:
    merged = merge_layers([layer("network", settings=[setting("A", "1")])])
    origin = merged.data["settings"][0]["origin"]
    assert (origin.scope, origin.file, origin.where) == ("network", "network-file", "the manual")
    assert (origin.checked, origin.grade) == ("2026-01-02", "vendor")
    assert origin.text() == "network network-file: the manual, checked 2026-01-02"


def test_all_settings_of_one_name_are_replaced_together() -> None:
    lower = layer("network", settings=[setting("A", "1"), setting("A", "2", when={"nodes_min": 2}), setting("B", "3")])
    merged = merge_layers([lower, layer("site", settings=[setting("A", "9")])])
    assert values(merged) == [("B", "3"), ("A", "9")]


def test_one_file_may_give_a_variable_several_values() -> None:
    merged = merge_layers([layer("site", settings=[setting("A", "1"), setting("A", "2", when={"option": "x"})])])
    assert values(merged) == [("A", "1"), ("A", "2")]


def test_drop_takes_names_patterns_options_and_binds() -> None:
    bind = {"source_path": "/opt/cray", "because": "x", "source": "doc"}
    lower = layer(
        "network",
        settings=[setting("NCCL_NET", "1"), setting("NCCL_PROTO", "2"), setting("OTHER", "3")],
        scheduler={"directives": [{"words": ["--network=x"], "because": "x", "source": "doc"}]},
        containers=[{"runtime": "apptainer", "binds": [bind]}],
    )
    merged = merge_layers([lower, layer("site", drop=["NCCL_*", "--network", "/opt/cray"])])
    assert values(merged) == [("OTHER", "3")]
    assert merged.data["scheduler"]["directives"] == []
    assert merged.data["containers"][0]["binds"] == []


def test_a_layer_drops_what_it_inherits_and_not_what_it_says_itself() -> None:
    lower = layer("network", settings=[setting("A", "1")])
    merged = merge_layers([lower, layer("site", drop=["A"], settings=[setting("A", "2")])])
    assert values(merged) == [("A", "2")]


def test_directives_are_replaced_by_option_and_resources_by_their_name() -> None:
    def words(*entries: list[str]) -> dict[str, Any]:
        return {"directives": [{"words": entry, "because": "x", "source": "doc"} for entry in entries]}

    merged = merge_layers(
        [
            layer("site", scheduler=words(["-l", "place=scatter"], ["-l", "filesystems=home"], ["-C", "gpu"])),
            layer("user", scheduler=words(["-l", "filesystems=flare:home"], ["-C", "gpu&hbm80g"])),
        ]
    )
    assert [item["words"] for item in merged.data["scheduler"]["directives"]] == [
        ["-l", "place=scatter"],
        ["-l", "filesystems=flare:home"],
        ["-C", "gpu&hbm80g"],
    ]


def test_containers_merge_by_runtime_and_only_one_is_the_default() -> None:
    bind = {"source_path": "/a", "because": "x", "source": "doc"}
    more = {"source_path": "/b", "because": "x", "source": "doc"}
    merged = merge_layers(
        [
            layer("site", containers=[{"runtime": "apptainer", "default": True, "verb": "run", "binds": [bind]}]),
            layer("user", containers=[{"runtime": "apptainer", "binds": [more]}, {"runtime": "edf", "default": True}]),
        ]
    )
    apptainer, edf = merged.data["containers"]
    assert apptainer["verb"] == "run"
    assert [item["source_path"] for item in apptainer["binds"]] == ["/a", "/b"]
    assert "default" not in apptainer and edf["default"]


def test_sources_of_two_files_with_one_key_stay_apart() -> None:
    merged = merge_layers([layer("hardware", source="doc"), layer("site", source="doc")])
    assert set(merged.sources) == {"hardware-file/doc", "site-file/doc"}
    assert merged.data["source"] == "site-file/doc"


def test_merging_leaves_the_layers_as_they_were() -> None:
    lower = layer("network", settings=[setting("A", "1")], devices={"mode": "all"})
    before = repr(lower)
    merge_layers([lower, layer("site", settings=[setting("A", "2")], devices={"mode": "one"}, drop=["A"])])
    assert repr(lower) == before


def test_hardware_network_and_site_of_a_real_entry_each_have_their_scope() -> None:
    site = load_site("frontier")
    by_name = {setting.name: setting.origin for setting in site.file.settings}
    assert by_name["FI_CXI_DEFAULT_TX_SIZE"] is not None
    assert by_name["FI_CXI_DEFAULT_TX_SIZE"].scope == "network"
    assert by_name["FI_MR_CACHE_MONITOR"] is not None
    assert by_name["FI_MR_CACHE_MONITOR"].scope == "site"
    assert site.origin_of("node.cores").scope == "hardware"
    assert site.origin_of("scheduler.kind").scope == "site"
    assert site.origin_of("scheduler").scope == "site"
    assert site.origin_of("scheduler.time_required").scope == "builtin", "a default in a table that the site began"
    assert site.origin_of("node").scope == "hardware"
    assert site.origin_of("largest_nodes").scope == "site"
    assert site.origin_of("settings.FI_CXI_DEFAULT_TX_SIZE").grade == "vendor"


def test_loading_twice_gives_equal_values() -> None:
    assert load_site("aurora") == load_site("aurora")
