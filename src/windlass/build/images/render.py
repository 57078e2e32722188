"""Write a recipe as text: Containerfile, Singularity definition or EDF, all from the same steps. Pure.

Every step becomes one layer whose commands are joined by `&&`, with its reason above it.
"""

from __future__ import annotations

import json
import textwrap

from windlass.build.images.recipe import ENTRY, SBOM, Recipe
from windlass.build.images.spec import EnvironmentSpec
from windlass.build.images.steps import BuildStep

SRC = "/tmp/windlass-src"
ARCHIVES = ("oci-archive", "docker-archive")


def comment_lines(text: str, width: int = 118) -> list[str]:
    clean = "".join(char if char.isprintable() else " " for char in text)
    return [f"# {line}" for line in textwrap.wrap(clean, width)]


def header(recipe: Recipe, what: str) -> list[str]:
    lines = [*comment_lines(f"{recipe.title}: {what}, made by windlass from the spec {recipe.name}.")]
    for text in (*recipe.notes, *(f"warning: {warning}" for warning in recipe.warnings)):
        lines += comment_lines(text)
    return lines


def containerfile_text(recipe: Recipe) -> str:
    """Return a multi-stage Containerfile.

    Its context must contain `windlass-entry` and `sbom.json` (`context_files`).
    """
    lines = [*header(recipe, "Containerfile"), ""]
    if recipe.build:
        lines += [f"FROM {recipe.base} AS build", *_variables(recipe, "ARG "), ""]
        lines += [line for step in recipe.build for line in _run(step)]
    lines += [f"FROM {recipe.base}", *_variables(recipe, "ARG ")]
    lines += [f'LABEL {key}="{_quoted(value)}"' for key, value in recipe.labels.items()]
    lines.append("")
    if recipe.build:
        lines += ["# Only what was installed: compilers and sources stay in the first stage."]
        lines += [f"COPY --from=build {recipe.prefix} {recipe.prefix}", ""]
    # Before the steps: Horovod and mpi4py are compiled with the MPI in PATH.
    for entry in recipe.environment:
        lines += [*comment_lines(entry.because), f'ENV {entry.name}="{_value(entry)}"']
    lines += ["", *(line for step in recipe.final for line in _run(step))]
    lines += ["# Swaps in the host's network libraries where the image is started without windlass, with /host/lib and"]
    lines += ["# /host/usr bound."]
    lines += [f"COPY windlass-entry {ENTRY}", f"COPY sbom.json {SBOM}", f'ENTRYPOINT ["/bin/sh", "{ENTRY}"]']
    return "\n".join(lines) + "\n"


def singularity_text(recipe: Recipe) -> str:
    """Return a Singularity or Apptainer definition with the same stages."""
    lines = [*header(recipe, "Singularity definition"), ""]
    if recipe.build:
        lines += [*_bootstrap(recipe.base), "Stage: build", "", "%post", "    set -eu"]
        lines += [*_indented([*_variables(recipe, "export "), *_plain(recipe.build)]), ""]
    lines += [*_bootstrap(recipe.base), "Stage: final", ""]
    if recipe.build:
        lines += ["%files from build", f"    {recipe.prefix} {recipe.prefix}", ""]
    lines += ["%files", f"    windlass-entry {ENTRY}", f"    sbom.json {SBOM}", ""]
    exports = [f'export {entry.name}="{_value(entry)}"' for entry in recipe.environment]
    lines += ["%post", "    set -eu"]
    lines += [*_indented([*_variables(recipe, "export "), *exports, *_plain(recipe.final)]), ""]
    lines += ["%environment"]
    for entry in recipe.environment:
        lines += _indented([*comment_lines(entry.because), f'export {entry.name}="{_value(entry)}"'])
    lines += ["", "%labels", *_indented([f"{key} {value}" for key, value in recipe.labels.items()]), ""]
    lines += ["%runscript", f'    exec /bin/sh {ENTRY} "$@"']
    return "\n".join(lines) + "\n"


def _bootstrap(base: str) -> list[str]:
    """Return the source of the base: a registry, an archive (`oci-archive:FILE`), or a SIF file."""
    kind, colon, place = base.partition(":")
    if colon and kind in ARCHIVES:
        return [f"Bootstrap: {kind}", f"From: {place}"]
    return [f"Bootstrap: {'localimage' if base.endswith('.sif') else 'docker'}", f"From: {base}"]


def edf_text(recipe: Recipe, image: str) -> str:
    """Return an environment definition file for the CSCS container engine around the built image."""
    lines = [*header(recipe, "environment definition")]
    lines += comment_lines(f"Import the built image first: enroot import -o {image} podman://NAME")
    lines += ["", f"image = {json.dumps(image)}", "writable = false", ""]
    lines += ["# The engine runs the entry point only if this is true. windlass run needs no entry point."]
    lines += ["entrypoint = false", ""]
    if any(step.name == "libcxi" for step in recipe.build):
        lines += [
            "[annotations]",
            "# The image contains its own libcxi and libfabric. The engine's hook would replace them.",
        ]
        lines += ['com.hooks.cxi.enabled = "false"']
    elif recipe.gpu:
        lines += [
            "[annotations]",
            "# The image contains no fabric libraries. The engine binds those of the host.",
            'com.hooks.cxi.enabled = "true"',
        ]
    return "\n".join(lines) + "\n"


def context_files(recipe: Recipe, entry: str, contents: dict[str, object]) -> dict[str, str]:
    """Return the files of a build as a map of name to text."""
    return {
        "Containerfile": containerfile_text(recipe),
        "image.def": singularity_text(recipe),
        "windlass-entry": entry,
        "sbom.json": json.dumps(contents, indent=1) + "\n",
    }


def _variables(recipe: Recipe, word: str) -> list[str]:
    names = {"PREFIX": recipe.prefix, "SRC": SRC, "LIBFABRIC": recipe.prefix}
    if recipe.gpu_home:
        names["GPU_HOME"] = recipe.gpu_home
    return [f"{word}{name}={value}" for name, value in names.items()] if recipe.build else []


def _run(step: BuildStep) -> list[str]:
    body = " && \\\n    ".join(step.commands)
    return [*comment_lines(f"{step.name}: {step.because}"), f"RUN {body}", ""]


def _plain(steps: tuple[BuildStep, ...]) -> list[str]:
    """Run each step in a separate shell, so that it passes no folder and no variable to the next."""
    lines: list[str] = []
    for step in steps:
        lines += comment_lines(f"{step.name}: {step.because}", 110)
        lines += ["(", *(f"  {command}" for command in step.commands), ")"]
    return lines


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")


def _value(entry: EnvironmentSpec) -> str:
    """Escape the value. A `$NAME` in it stays a variable."""
    return entry.value.replace("\\", "\\\\").replace('"', '\\"')
