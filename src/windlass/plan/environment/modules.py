"""Modules and activation as shell lines, and whether a variable comes from the user or from a module. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.base.notation.shell import quote

_INIT_FILES = (
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/bash",
    "/usr/share/modules/init/bash",
    "/opt/cray/pe/lmod/lmod/init/bash",
)
_SEPARATOR = "----windlass-environment----"
_NEVER_THE_USERS = ("SLURM_", "SLURMD_", "PBS_", "FLUX_", "PMI_", "PMIX_", "PALS_", "OMPI_", "HYDRA_", "BASH_FUNC_")


def module_lines(use: tuple[str, ...], load: tuple[str, ...]) -> tuple[str, ...]:
    """Shell lines that make `module` available and load these modules. A module that fails to load ends the job."""
    if not use and not load:
        return ()
    return (
        "if ! type module >/dev/null 2>&1; then",
        f"  for f in {' '.join(_INIT_FILES)}; do",
        '    [ -r "$f" ] && . "$f" && break',
        "  done",
        "fi",
        'w_load() { module load "$1" || { echo "windlass: module $1 does not load" >&2; exit 3; }; }',
        *(f"module use {quote(path)}" for path in use),
        *(f"w_load {quote(name)}" for name in load),
    )


def activation_lines(target: str, kind: str) -> tuple[str, ...]:
    """Shell lines that activate a virtual environment (`venv`) or a conda environment (`conda`) in the job.

    With `unseen`, the shell detects the kind, and does nothing if the directory does not exist there.
    """
    quoted = quote(target)
    venv = f". {quoted}/bin/activate"
    conda = (
        f'export CONDA_PREFIX={quoted} PATH={quoted}/bin:"$PATH" CONDA_DEFAULT_ENV={quoted}',
        f'for f in {quoted}/etc/conda/activate.d/*.sh; do [ -r "$f" ] && . "$f"; done',
    )
    if kind == "unseen":
        return (
            f"[ -d {quoted}/conda-meta ] || [ ! -e {quoted}/bin/activate ] || {venv}",
            f"[ ! -d {quoted}/conda-meta ] || {{ {'; '.join(conda)}; }}",
        )
    return conda if kind == "conda" else (venv,)


def rank_activation_lines(target: str) -> list[str]:
    """POSIX `sh` lines that activate an environment on the rank's node.

    They are for an environment that the lines before the launcher could not read. If this shell cannot read a hook of
    conda, the hook is skipped and the shell's message is printed.
    """
    quoted = quote(target)
    return [
        f'if [ "${{VIRTUAL_ENV-}}" != {quoted} ] && [ "${{CONDA_PREFIX-}}" != {quoted} ]; then',
        f'  PATH={quoted}/bin:"$PATH"',
        f"  if [ -d {quoted}/conda-meta ]; then",
        f"    export PATH CONDA_PREFIX={quoted} CONDA_DEFAULT_ENV={quoted}",
        f"    for w_file in {quoted}/etc/conda/activate.d/*.sh; do",
        '      [ -r "$w_file" ] && sh -n "$w_file" && . "$w_file"',
        "    done",
        "  else",
        f"    export PATH VIRTUAL_ENV={quoted}; unset PYTHONHOME",
        "  fi",
        "fi",
    ]


def after_modules_argv(use: tuple[str, ...], load: tuple[str, ...]) -> tuple[str, ...]:
    """A command that prints the environment which these modules alone create, for `parse_environment`."""
    script = "\n".join((*module_lines(use, load), f"printf '%s\\n' {_SEPARATOR}", "env -0"))
    return ("bash", "-l", "-c", script)


def parse_environment(output: str) -> dict[str, str]:
    """Parse the variables in the output of `after_modules_argv`."""
    _, _, tail = output.partition(_SEPARATOR + "\n")
    pairs = (entry.partition("=") for entry in tail.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def loaded_modules(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The modules that are already loaded."""
    return tuple(name for name in environ.get("LOADEDMODULES", "").split(":") if name)


def users_variables(environ: Mapping[str, str], after_modules: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that the user set, without those of the scheduler and of modules.

    A variable with exactly the value that the modules give it belongs to the modules. A variable with another value
    belongs to the user.
    """
    own: dict[str, str] = {}
    job = next((environ[name] for name in ("PBS_JOBID", "SLURM_JOB_ID") if environ.get(name)), None)
    for name, value in environ.items():
        if name.startswith(_NEVER_THE_USERS):
            continue
        if name == "TMPDIR" and job and job.split(".", 1)[0] in value:
            continue  # PBS gives each job a separate directory, whose long path breaks sockets
        if name in {"NCPUS", "OMP_NUM_THREADS"} and environ.get("PBS_JOBID") and value == environ.get("NCPUS"):
            continue  # PBS sets both to the CPUs of the first chunk, regardless of how many ranks share them
        if after_modules is not None and after_modules.get(name) == value:
            continue
        own[name] = value
    return own
