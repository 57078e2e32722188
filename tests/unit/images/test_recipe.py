"""Specs and recipes: what is refused, what warns, what comes in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from windlass.build.images.build import write_context
from windlass.build.images.recipe import make_recipe, sbom
from windlass.build.images.render import containerfile_text, singularity_text
from windlass.build.images.spec import load_spec, load_versions, parse_spec
from windlass.errors import ConfigError, MachineError, UsageError, WindlassError

SOUND = 'name = "own"\nbase = "debian:12"\n'


@each(
    ("text", "said", "hint"),
    [
        (SOUND + 'bsae = "x"\n', "f.toml, line 3: bsae: unknown key 'bsae'", "base"),
        (SOUND + '\n[versions]\nlibfabrik = "2"\n', "line 5", "libfabric"),
        ('name = "own"\n', "the key 'base' is missing", ""),
        (SOUND + "prefix = 7\n", "line 3", ""),
        (SOUND + 'with = ["mpj"]\n', "line 3", ""),
        ('name = "own"\nbase = "debian:12 && rm -rf /"\n', "line 2: base", ""),
        (SOUND + 'prefix = "opt"\n', "not an absolute path", ""),
        ("name = ", "not TOML", ""),
        (SOUND + '[[steps]]\nname = "a"\nbecause = "b"\nrun = ["a\\nb"]\n', "several lines", ""),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_with_its_line(text: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, "f.toml")
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


def test_an_unknown_spec_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="pytorch-nvc") as caught:
        load_spec("pytorch-nvc")
    assert "pytorch-ngc" in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot be read"):
        load_spec("./no-such-file.toml")


@each(
    ("spec", "extras", "chosen"),
    [
        ("pytorch-ngc", ("mpl",), {}),
        ("debian", ("ofi",), {}),
        ("pytorch-ngc", ("horovod",), {}),
        ("pytorch-ngc", None, {"libfabric": "9.9"}),
        ("pytorch-ngc", None, {"libfabrik": "2.2.0"}),
    ],
)
def test_what_cannot_be_built_is_refused(spec: str, extras: tuple[str, ...] | None, chosen: dict[str, str]) -> None:
    with pytest.raises(WindlassError) as caught:
        make_recipe(load_spec(spec), extras, chosen)
    assert caught.value.hint


def test_a_combination_that_nobody_runs_warns_and_a_known_one_does_not() -> None:
    assert not [w for w in make_recipe(load_spec("pytorch-ngc")).warnings if "nobody" in w]
    odd = make_recipe(load_spec("pytorch-ngc"), None, {"libfabric": "1.22.0"})
    assert any("no known use of libcxi 13.0.0, libfabric 1.22.0" in warning for warning in odd.warnings)


def test_steps_are_optional_and_in_the_order_of_their_needs() -> None:
    bare = make_recipe(load_spec("pytorch-ngc"), ())
    assert not bare.build
    assert "AS build" not in containerfile_text(bare)
    whole = make_recipe(load_spec("pytorch-ngc"), ("nccl-tests", "ofi", "deepspeed", "mpi", "horovod"))
    names = [step.name for step in whole.build]
    assert names == ["tools", "libcxi", "libfabric", "pmix", "openmpi", "aws-ofi-nccl", "nccl-tests"]
    assert [step.name for step in whole.final] == ["packages", "remove", "loader", "deepspeed", "horovod"]


def test_labels_and_contents_say_what_was_built_from_what() -> None:
    recipe = make_recipe(load_spec("pytorch-ngc"))
    commit = load_versions().components["libfabric"].commits["2.2.0"]
    assert recipe.labels["windlass.component.libfabric"] == f"2.2.0 {commit}"
    assert recipe.labels["org.opencontainers.image.base.name"] == recipe.base
    assert {entry["name"] for entry in sbom(recipe)["components"]} >= {"libcxi", "libfabric", "aws-ofi-nccl", "openmpi"}  # type: ignore[attr-defined]
    assert f'LABEL windlass.component.libfabric="2.2.0 {commit}"' in containerfile_text(recipe)
    assert f"windlass.component.libfabric 2.2.0 {commit}" in singularity_text(recipe)


def test_every_commit_of_the_table_is_whole() -> None:
    for name, component in load_versions().components.items():
        assert component.version in component.commits or not component.commits, name
        assert all(len(commit) == 40 for commit in component.commits.values()), name


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match=r"cannot write to .*/file/below: Not a directory"):
        write_context(make_recipe(load_spec("debian")), tmp_path / "file" / "below")
