"""The options that make a request, in groups. A command declares the options that it uses, and refuses the others."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any

from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names

USAGE = "[options] SCRIPT.py [ARGS…] | -m MODULE … | -- COMMAND …"

PLACE = ("--site", "--nodes", "--hosts", "--scheduler", "--launcher")
"""Nodes and launcher."""
JOB = ("--partition", "--qos", "--account", "--time", "--directive")
"""Options for the scheduler."""
RANKS = ("--ranks-per-node", "--gpus-per-node", "--cpu-bind")
MORE_RANKS = ("--threads", "--device", "--ranks-per-device", "--devices", "--device-unit", "--mpi", "--master-port")
ENVIRONMENT = ("--python", "--env", "--env-prepend", "--module", "--activate", "--with")
CONTAINER = ("--container", "--runtime", "--bind")
CACHE = ("--cache", "--cache-set")
ALIVE = ("--restarts", "--spares", "--hang-after", "--until-done", "--check")
REST = ("--name", "--run-dir", "--watch", "--profile", "--comm-log", "--keep-caches", "--grace", "--no-placeholders")
OWN_RANKS = (*PLACE, "--arg", *RANKS, *ENVIRONMENT, *CONTAINER, "--cache")
"""Options of commands that start their own ranks in this allocation: doctor, bench, tune."""

_TITLES = {
    "where": (*PLACE, "--arg", *JOB),
    "ranks": (*RANKS, *MORE_RANKS),
    "environment": ENVIRONMENT,
    "container": (*CONTAINER, "--container-arg", "--host-libs"),
    "cooperative cache": CACHE,
    "failures": ALIVE,
    "run": REST,
}
"""The sections of `--help-all`."""
ALL = tuple(name for names in _TITLES.values() for name in names)
"""Options of run, plan and submit."""
COMMON = frozenset(
    {"--site", "--nodes", "--ranks-per-node", "--partition", "--account", "--time", "--python", "--env", "--module"}
    | {"--container", "--cache", "--restarts", "--until-done", "--name", "--watch"}
)
"""Frequent options: `--help` shows these, `--help-all` shows all."""

_SHORT = {
    "--nodes": ("-N",),
    "--partition": ("--queue", "-p"),
    "--account": ("-A",),
    "--time": ("-t",),
    "--ranks-per-node": ("-r",),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "--site": {"metavar": "NAME|FILE", "help": "machine (default: detected), or a site file"},
    "--nodes": {"type": int, "metavar": "N", "help": "number of nodes (default: all of the allocation)"},
    "--hosts": {"metavar": "LIST", "help": "use these hosts of the allocation, as in nid[0001-0004]"},
    "--scheduler": {"metavar": "NAME", "help": ", ".join(scheduler_names())},
    "--launcher": {"metavar": "NAME", "help": ", ".join(launcher_names())},
    "--arg": {
        "action": "append",
        "metavar": "ARG",
        "help": "argument for the launcher; ~NAME removes a default one; may be repeated",
    },
    "--partition": {"metavar": "NAME", "help": "partition or queue of the job"},
    "--qos": {"metavar": "NAME", "help": "quality of service of the job"},
    "--account": {"metavar": "NAME", "help": "account that pays for the job"},
    "--time": {"metavar": "TIME", "help": "time limit: 30 (minutes), 2h, 1:30:00, 1-12:00:00"},
    "--directive": {
        "action": "append",
        "metavar": "ARG",
        "help": "directive for the scheduler (reservation, constraint, filesystems…); ~NAME removes one",
    },
    "--ranks-per-node": {"type": int, "metavar": "R", "help": "ranks on each node (default: one per device)"},
    "--gpus-per-node": {
        "metavar": "[TYPE:]N",
        "help": "GPUs of each node (default: all); 0: none; a100:4: of this type (Slurm)",
    },
    "--cpu-bind": {
        "default": "auto",
        "metavar": "HOW",
        "help": "auto, none, a preset of the site, 0-3:4-7, or env:NAME",
    },
    "--threads": {"type": int, "metavar": "T", "help": "OMP_NUM_THREADS (default: the cores of the rank)"},
    "--device": {"choices": ("cpu",), "dest": "device_kind", "help": "cpu: use no GPU"},
    "--ranks-per-device": {"type": int, "metavar": "K", "help": "ranks that share one device"},
    "--devices": {"choices": ("all", "one"), "help": "devices that each rank sees: all of its node, or its own"},
    "--device-unit": {"choices": ("tile", "card"), "help": "what counts as one device"},
    "--mpi": {"metavar": "TYPE", "help": "process management for MPI programs (pmi2, pmix)"},
    "--master-port": {"type": int, "metavar": "PORT", "help": "port of the rendezvous (default: from the job id)"},
    "--python": {"metavar": "PATH", "help": "interpreter for SCRIPT.py and -m"},
    "--env": {
        "action": "append",
        "metavar": "K=V",
        "help": "set a variable in the ranks; ~K unsets it, K+=DIR appends a folder to it",
    },
    "--env-prepend": {"action": "append", "metavar": "K=DIR", "help": "put a folder in front of a path variable"},
    "--module": {"action": "append", "metavar": "NAME", "help": "load a module; none: not the modules of the site"},
    "--activate": {"metavar": "DIR", "help": "activate a venv or conda environment in the job"},
    "--with": {
        "action": "append",
        "dest": "options",
        "metavar": "NAME",
        "help": "a named remedy of the site (`windlass sites show`); independent: the ranks are separate programs",
    },
    "--container": {"metavar": "IMAGE", "help": "run the ranks in this container image"},
    "--runtime": {"metavar": "NAME", "help": "apptainer, singularity, podman-hpc, shifter, edf, pyxis, charliecloud"},
    "--bind": {"action": "append", "metavar": "SRC[:DST[:ro]]", "help": "mount a folder in the container"},
    "--container-arg": {"action": "append", "metavar": "ARG", "help": "argument for the container runtime"},
    "--host-libs": {
        "metavar": "DIR[:DIR]",
        "help": "folders with the host's network libraries; none: use those of the image",
    },
    "--cache": {
        "action": "append",
        "metavar": "PATH",
        "help": "read this folder once for all nodes; auto: that of the Python environment",
    },
    "--cache-set": {
        "action": "append",
        "metavar": "KEY=VALUE",
        "help": "memory=SIZE or store=DIR (where a node keeps the cache, default memory=2G), placement=partition (each "
        "piece on one node, for data sets), readers=N (nodes that read the shared file system, default 1), trace=off, "
        "allow-other=on (for a setuid apptainer)",
    },
    "--restarts": {
        "type": int,
        "metavar": "N",
        "help": "restart a failed run, up to N times without a newer snapshot",
    },
    "--spares": {"type": int, "default": 0, "metavar": "K", "help": "K more nodes that replace failed ones"},
    "--hang-after": {"type": float, "metavar": "S", "help": "end a run that shows no step and no output for S seconds"},
    "--until-done": {
        "action": "store_true",
        "help": "submit the job again at its time limit until it is done",
    },
    "--check": {
        "action": "store_true",
        "help": "check the nodes before the ranks start; spare nodes replace bad ones",
    },
    "--name": {"metavar": "NAME", "help": "name of the run and of the job"},
    "--run-dir": {"metavar": "DIR", "help": "folder of this run (default: runs/NAME-TIME)"},
    "--watch": {"action": "store_true", "help": "record what `windlass watch` and `report` show"},
    "--profile": {
        "metavar": "TOOL[:RANKS[:STEPS]]",
        "help": "profile some ranks (default 0): torch (default 32 steps), nsys, rocprof, rocprofv3, unitrace, py-spy",
    },
    "--comm-log": {
        "nargs": "?",
        "const": "0",
        "metavar": "RANKS",
        "help": "write the log of the collective library of these ranks (default 0; all) to files",
    },
    "--keep-caches": {"metavar": "DIR", "help": "save compile caches after the run, restore them before the next"},
    "--grace": {
        "type": float,
        "default": 5.0,
        "metavar": "S",
        "help": "seconds between the request to end and the kill of a rank (default 5)",
    },
    "--no-placeholders": {"action": "store_true", "help": "do not replace {rank} and the like in arguments"},
}


def add_request_options(
    parser: argparse.ArgumentParser, names: Sequence[str] = ALL, *, common: Container[str] = COMMON
) -> None:
    """Add these options of a request, in the sections of the help. `--help` shows those that are `common`."""
    parser.usage = f"{parser.prog} {USAGE}"
    for title, members in _TITLES.items():
        chosen = [name for name in members if name in names]
        if chosen:
            group = parser.add_argument_group(title)
            for name in chosen:
                extra: dict[str, Any] = {"default": []} if _OPTIONS[name].get("action") == "append" else {}
                action = group.add_argument(name, *_SHORT.get(name, ()), **_OPTIONS[name], **extra)
                if name not in common:
                    rare(action)


def rare(action: argparse.Action) -> None:
    """Show an option with `--help-all` only."""
    action.rare = True  # type: ignore[attr-defined]


def add_here(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--here", action="store_true", help="plan for this machine, also on a login node")


def default_options() -> dict[str, Any]:
    """The default of every option of a request."""
    parser = argparse.ArgumentParser(add_help=False)
    add_request_options(parser)
    return vars(parser.parse_args([]))


def owners_text(option: str) -> str | None:
    """The commands that have a request option which another command refuses."""
    names = {spelling: name for name in ALL for spelling in (name, *_SHORT.get(name, ()))}
    name = names.get(option)
    if name is None:
        return None
    return "plan, submit and alloc have it" if name in JOB else "run, plan and submit have it"
