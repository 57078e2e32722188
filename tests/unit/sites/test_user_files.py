"""The user's own files: overlays, sites of their own, partitions, and --site FILE."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from unit.sites.loading import facts_of, variables
from windlass.errors import ConfigError, UsageError
from windlass.model.condition import holds
from windlass.sites.catalog import load_site, site_names, site_of_file


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


OVERLAY = """
kind = "overlay"
extends = "frontier"

[scheduler]
default_partition = "extended"
source = "own"

[[settings]]
name = "NCCL_CROSS_NIC"
value = "0"
because = "faster for my model"
source = "own"

[[scheduler.directives]]
words = ["--reservation=mine"]
because = "our reservation"
source = "own"
"""


def test_a_file_with_the_name_of_a_catalog_site_overlays_it(tmp_path: Path) -> None:
    path = write(tmp_path / "sites", "frontier", OVERLAY)
    site = load_site("frontier", folders={"user": tmp_path})
    assert site.file.scheduler.default_partition == "extended"
    assert variables(site)["NCCL_CROSS_NIC"] == "0"
    assert variables(site)["FI_MR_CACHE_MONITOR"] == "kdreg2", "the rest of the catalog's entry stays"
    assert ("--reservation=mine",) in [argument.words for argument in site.file.scheduler.directives]
    (setting,) = [setting for setting in site.file.settings if setting.name == "NCCL_CROSS_NIC"]
    assert setting.origin is not None
    assert setting.origin.scope == "user"
    assert setting.origin.text() == f"user {path}: your own choice"
    assert site.origin_of("scheduler.default_partition").scope == "user"
    assert site.origin_of("scheduler.kind").scope == "site"


def test_a_site_file_given_by_hand_overlays_and_wins_over_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "config" / "sites", "frontier", OVERLAY)
    given = write(tmp_path, "given", OVERLAY.replace('value = "0"', 'value = "2"'))
    assert site_of_file(given) == "frontier"
    site = load_site("frontier", folders={"user": tmp_path / "config"}, user_files=[given])
    assert variables(site)["NCCL_CROSS_NIC"] == "2"


def test_a_new_name_is_a_new_site_that_may_extend_another(tmp_path: Path) -> None:
    text = 'name = "crusher"\ntitle = "Crusher"\nextends = "frontier"\nlargest_nodes = 128\nsource = "own"\n'
    write(tmp_path / "sites", "crusher", text)
    assert "crusher" in site_names({"user": tmp_path})
    site = load_site("crusher", folders={"user": tmp_path})
    assert (site.name, site.file.name, site.file.largest_nodes) == ("crusher", "crusher", 128)
    assert site.file.hardware == "cray-ex-mi250x"
    assert variables(site)["FI_MR_CACHE_MONITOR"] == "kdreg2"


def test_an_overlay_of_the_base_also_reaches_the_site_that_extends_it(tmp_path: Path) -> None:
    write(tmp_path / "sites", "frontier", OVERLAY)
    write(tmp_path / "sites", "crusher", 'name = "crusher"\nextends = "frontier"\n')
    assert variables(load_site("crusher", folders={"user": tmp_path}))["NCCL_CROSS_NIC"] == "0"


def test_a_file_given_by_hand_may_be_a_whole_site(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "cluster",
        """
name = "our-cluster"
hardware = "cray-ex-gh200"
network = "slingshot-11"

[scheduler]
kind = "slurm"

[launcher]
kind = "srun"
""",
    )
    assert site_of_file(path) == "our-cluster"
    site = load_site("our-cluster", user_files=[path])
    assert site.file.scheduler.kind == "slurm"
    assert variables(site)["NCCL_NET"] == "AWS Libfabric", "the network's rules come with it"


@each(
    ("scheduler", "launcher", "switch"),
    [
        ("slurm", "srun", "--network=disable_rdzv_get"),
        ("pbs", "pals", "--disable_rdzv_get"),
        ("flux", "flux", "--setattr=rdzv_get_en=0"),
        ("pbs", "openmpi", None),
    ],
)
def test_a_site_of_ones_own_on_slingshot_gets_alt_read_only_with_its_switch(
    tmp_path: Path, scheduler: str, launcher: str, switch: str | None
) -> None:
    tables = f'[scheduler]\nkind = "{scheduler}"\n[launcher]\nkind = "{launcher}"\n'
    path = write(tmp_path, "mine", 'name = "mine"\nnetwork = "slingshot-11"\n' + tables)
    file = load_site("mine", user_files=[path]).file
    facts = facts_of(file, nodes=2)
    words = [argument.words[0] for argument in file.launcher.arguments if holds(argument.when, facts)]
    assert words == ([switch] if switch else [])
    proto = variables(load_site("mine", user_files=[path])).get("FI_CXI_RDZV_PROTO")
    assert proto == ("alt_read" if switch else None)


def test_the_user_may_bring_hardware_too(tmp_path: Path) -> None:
    write(
        tmp_path / "hardware",
        "two-cards",
        """
kind = "hardware"
name = "two-cards"

[node]
arch = "x86_64"
cores = 8

[[node.domains]]
cpus = "0-7"
devices = [0, 1]
""",
    )
    write(tmp_path / "sites", "box", 'name = "box"\nhardware = "two-cards"\n')
    site = load_site("box", folders={"user": tmp_path})
    assert site.file.node.cores == 8
    assert site.origin_of("node.cores").scope == "hardware"


def test_a_partition_changes_what_it_names_and_loses_to_the_user(tmp_path: Path) -> None:
    text = """
name = "two-kinds"
hardware = "cray-ex-gh200"

[scheduler]
kind = "slurm"
default_partition = "gpu"

[[settings]]
name = "A"
value = "site"
because = "x"
source = "own"

[partitions.old]
hardware = "polaris-a100"
directives = [{ words = ["-C", "old"], because = "x", source = "own" }]
settings = [{ name = "A", value = "partition", because = "x", source = "own" }]
"""
    write(tmp_path / "sites", "two-kinds", text)
    plain = load_site("two-kinds", folders={"user": tmp_path})
    old = load_site("two-kinds", partition="old", folders={"user": tmp_path})
    assert (plain.file.node.cores, old.file.node.cores) == (288, 32)
    assert (variables(plain)["A"], variables(old)["A"]) == ("site", "partition")
    assert [argument.words for argument in old.file.scheduler.directives] == [("-C", "old")]
    over = write(
        tmp_path,
        "over",
        'extends = "two-kinds"\n[[settings]]\nname = "A"\nvalue = "user"\nbecause = "x"\nsource = "own"\n',
    )
    both = load_site("two-kinds", partition="old", folders={"user": tmp_path}, user_files=[over])
    assert variables(both)["A"] == "user"


def test_the_default_partition_counts_where_none_is_named(tmp_path: Path) -> None:
    text = """
name = "c"
[scheduler]
kind = "slurm"
default_partition = "gpu"
[partitions.gpu]
settings = [{ name = "A", value = "1", because = "x", source = "own" }]
"""
    path = write(tmp_path, "c", text)
    assert variables(load_site("c", user_files=[path]))["A"] == "1"


def test_an_unknown_site_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_site("frontear")
    assert caught.value.message == "unknown site 'frontear'"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean 'frontier'? known: aurora, ")


def test_a_bad_user_file_is_refused_with_all_its_problems(tmp_path: Path) -> None:
    path = write(tmp_path / "sites", "mine", 'name = "mine"\ntilte = "x"\n\n[scheduler]\nkind = "slrum"\n')
    with pytest.raises(ConfigError) as caught:
        load_site("mine", folders={"user": tmp_path})
    assert caught.value.message == (
        f"{path} has 2 problems:\n"
        f"  {path}:2: tilte: unknown key 'tilte' (did you mean 'title'?)\n"
        f"  {path}:5: scheduler.kind: must be one of flux, none, pbs, slurm, not 'slrum' (did you mean 'slurm'?)"
    )


def test_sites_that_extend_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "sites", "a", 'name = "a"\nextends = "b"\n')
    write(tmp_path / "sites", "b", 'name = "b"\nextends = "a"\n')
    with pytest.raises(ConfigError, match="a -> b -> a"):
        load_site("a", folders={"user": tmp_path})


def test_a_file_that_says_neither_name_nor_extends_is_refused_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path, "x", 'title = "x"\n')
    with pytest.raises(ConfigError, match="neither `name` nor `extends`"):
        site_of_file(path)
