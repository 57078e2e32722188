"""Recipes of images as text, one file per spec and format, reviewed by people. None of the bases can be had here: each
text says that it was not built. Renew with WINDLASS_GOLDEN=write and read the diff."""

from __future__ import annotations

import subprocess
from pathlib import Path

from golden.reviewed import compare
from looping import each
from requirements import missing_programs, require
from windlass.build.images.build import entry_script
from windlass.build.images.host_script import host_script_text
from windlass.build.images.recipe import make_recipe
from windlass.build.images.render import containerfile_text, edf_text, singularity_text, steps_script
from windlass.build.images.spec import EXTRAS, load_spec, load_versions, spec_names
from windlass.sites.catalog import load_site

FOLDER = Path(__file__).with_name("recipes")
OLDER_FRONTIER = {
    "rocm": "5.7.1",
    "libfabric-path": "/opt/cray/libfabric/1.15.2.0",
    "modules": "PrgEnv-gnu/8.5.0 rocm/5.7.1 craype-accel-amd-gfx90a gcc-native/12.3 cray-mpich/8.1.28 libtool",
}
"""As the site's older document builds the plugin."""


def _everything(name: str) -> tuple[str, ...]:
    return EXTRAS if load_spec(name).gpu else ("mpi", "deepspeed", "horovod")


@each("name", spec_names())
def test_recipes_are_as_reviewed(name: str) -> None:
    recipe = make_recipe(load_spec(name))
    compare(FOLDER, f"{name}.Containerfile", containerfile_text(recipe))
    compare(FOLDER, f"{name}.def", singularity_text(recipe))
    assert "not built here" in containerfile_text(recipe)
    assert containerfile_text(recipe) == containerfile_text(make_recipe(load_spec(name))), (
        "the same spec, the same text"
    )


def test_an_environment_definition_is_as_reviewed() -> None:
    compare(FOLDER, "pytorch-ngc.edf.toml", edf_text(make_recipe(load_spec("pytorch-ngc")), "pytorch-ngc.sqsh"))


@each(("name", "chosen"), [("frontier-rocm7.sh", {}), ("frontier-rocm5.sh", OLDER_FRONTIER)])
def test_the_plugins_script_for_a_bare_frontier_is_as_reviewed(name: str, chosen: dict[str, str]) -> None:
    text = host_script_text(make_recipe(load_spec("pytorch-rocm")), load_site("frontier"), load_versions(), chosen)
    compare(FOLDER, name, text)


def _lint(text: str, shell: str) -> None:
    require("shellcheck", not missing_programs("shellcheck"), missing_programs("shellcheck"))
    argv = ["shellcheck", "-s", shell, "-e", "SC1090", "-"]  # the place of a site's module command is found by looking
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@each("name", spec_names())
def test_a_linter_of_shell_finds_nothing_in_the_steps(name: str) -> None:
    _lint(steps_script(make_recipe(load_spec(name), _everything(name))), "sh")


def test_a_linter_of_shell_finds_nothing_in_the_scripts() -> None:
    _lint(entry_script(), "sh")
    for path in sorted(FOLDER.glob("*.sh")):
        _lint(path.read_text(), "bash")
