"""Recipes of images as text, one file per spec and format, reviewed by people. None of the bases can be had here: each
text says that it was not built. Renew with WINDLASS_GOLDEN=write and read the diff."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from golden.reviewed import compare
from looping import each
from requirements import missing_programs, require
from windlass.build.images.build import entry_script
from windlass.build.images.recipe import make_recipe
from windlass.build.images.render import containerfile_text, edf_text, singularity_text
from windlass.build.images.spec import EXTRAS, load_spec, spec_names

FOLDER = Path(__file__).with_name("recipes")


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


def _lint(text: str) -> None:
    require("shellcheck", not missing_programs("shellcheck"), missing_programs("shellcheck"))
    argv = ["shellcheck", "-s", "sh", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@each("name", spec_names())
def test_a_linter_of_shell_finds_nothing_in_the_steps(name: str) -> None:
    text = singularity_text(make_recipe(load_spec(name), _everything(name)))
    for steps in re.findall(r"(?ms)^%post\n(.*?)^%", text):
        _lint(steps)


def test_a_linter_of_shell_finds_nothing_in_the_entry_script() -> None:
    _lint(entry_script())
