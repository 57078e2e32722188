"""The options of run, plan and submit, in the groups that `--help` shows."""

from __future__ import annotations

import argparse

from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names

Group = argparse._ArgumentGroup
USAGE = "[options] SCRIPT.py [ARGS…] | -m MODULE [ARGS…] | -- COMMAND [ARGS…]"


def add_request_options(parser: argparse.ArgumentParser, *, profile: bool = True) -> None:
    """All that a request can say. `profile`: false where a command has a --profile and a --device of its own."""
    parser.usage = f"{parser.prog} {USAGE}"
    _add_where(parser.add_argument_group("where"))
    ranks = parser.add_argument_group("ranks")
    _add_ranks(ranks)
    if profile:
        _add_device(ranks)
    _add_environment(parser.add_argument_group("environment"))
    _add_cache(parser.add_argument_group("cooperative cache"))
    _add_container(parser.add_argument_group("container"))
    _add_supervision(parser.add_argument_group("keep it alive"))
    _add_run(parser.add_argument_group("run"))
    if profile:
        _add_profile(parser.add_argument_group("profile"))


def add_allocation_options(parser: argparse.ArgumentParser) -> None:
    """Options that decide what is asked of the scheduler, without those of what runs there."""
    parser.usage = f"{parser.prog} [options] [-- COMMAND [ARGS…]]"
    _add_where(parser.add_argument_group("where"))
    ranks = parser.add_argument_group("ranks")
    _add_ranks(ranks)
    _add_device(ranks)
    more = parser.add_argument_group("more")
    _add_site_options(more)
    _add_spares(more)
    _add_name(more)


def add_here(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--here", action="store_true", help="plan for this machine, also on a login node")


def _add_where(where: Group) -> None:
    where.add_argument("--site", metavar="NAME", help="machine of the catalog (default: detected)")
    where.add_argument("--site-file", metavar="FILE", help="a site file of yours, on top of the catalog")
    where.add_argument("--scheduler", metavar="NAME", help=", ".join(scheduler_names()))
    where.add_argument("--launcher", metavar="NAME", help=", ".join(launcher_names()))
    where.add_argument("--nodes", "-N", type=int, metavar="N", help="default: all of the allocation, else 1")
    where.add_argument("--hosts", metavar="LIST", help="these hosts of the allocation, as in nid[0001-0004]")
    where.add_argument("--partition", "--queue", "-p", dest="partition", metavar="NAME")
    where.add_argument("--qos", metavar="NAME")
    where.add_argument("--account", "-A", metavar="NAME")
    where.add_argument("--time", "-t", metavar="TIME", help="30 (minutes), 1:30:00, 2h, 1-12:00:00")
    where.add_argument(
        "--directive",
        action="append",
        default=[],
        metavar="WORDS",
        help="a directive for the scheduler (reservation, constraint, filesystems…); ~NAME removes one",
    )
    where.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="WORDS",
        help="an argument for the launcher; ~NAME removes a default one",
    )


def _add_ranks(ranks: Group) -> None:
    ranks.add_argument("--ranks-per-node", "-r", type=int, metavar="R", help="default: one per device")
    ranks.add_argument(
        "--gpus-per-node", metavar="[TYPE:]N", help="default: all of a node; 0: none; a100:4: of this type (Slurm)"
    )
    ranks.add_argument("--ranks-per-device", type=int, metavar="K", help="several ranks share a device")
    ranks.add_argument("--devices", choices=("all", "one"), help="does each rank see all devices of its node, or one?")
    ranks.add_argument("--device-unit", choices=("tile", "card"), help="what counts as one device")
    ranks.add_argument(
        "--cpu-bind", default="auto", metavar="HOW", help="auto, none, a preset of the site, 0-3:4-7, or env:NAME"
    )
    ranks.add_argument("--threads", type=int, metavar="T", help="OMP_NUM_THREADS (default: cores of the rank)")
    ranks.add_argument("--mpi", metavar="TYPE", help="process management for MPI programs (pmi2, pmix)")
    ranks.add_argument("--master-port", type=int, metavar="PORT", help="default: from the job id, checked to be free")


def _add_device(ranks: Group) -> None:
    ranks.add_argument("--device", choices=("cpu",), dest="device_kind", help="cpu: ask for no GPU")


def _add_environment(inside: Group) -> None:
    inside.add_argument("--python", metavar="PATH", help="interpreter for SCRIPT.py and -m")
    inside.add_argument("--env", action="append", default=[], metavar="K=V", help="set a variable in the ranks")
    inside.add_argument(
        "--env-prepend", action="append", default=[], metavar="K=V", help="put a folder in front of a path variable"
    )
    inside.add_argument("--env-append", action="append", default=[], metavar="K=V", help="put a folder behind one")
    inside.add_argument("--unset", action="append", default=[], metavar="K", help="unset a variable in the ranks")
    inside.add_argument("--module", action="append", default=[], metavar="NAME", help="load a module in the job")
    inside.add_argument("--no-modules", action="store_true", help="leave out the site's own modules")
    inside.add_argument("--activate", metavar="DIR", help="activate a venv or conda environment in the job")
    _add_site_options(inside)
    inside.add_argument(
        "--comm-log",
        nargs="?",
        const="0",
        metavar="RANKS",
        help="log of the collective library for these ranks (default 0; all), into files",
    )
    inside.add_argument("--keep-caches", metavar="DIR", help="save compile caches after the run, restore them before")


def _add_site_options(group: Group) -> None:
    group.add_argument(
        "--with",
        action="append",
        default=[],
        dest="options",
        metavar="NAME",
        help="a named remedy or experiment of the site",
    )


def _add_cache(cache: Group) -> None:
    cache.add_argument(
        "--cache",
        action="append",
        default=[],
        metavar="PATH",
        help="let the nodes share one reading of this folder (an environment, a data set); may be given again; "
        "auto: the environment of the Python in use, with what its path names",
    )
    cache.add_argument(
        "--cache-placement",
        choices=("replicate", "partition"),
        default="replicate",
        help="every node keeps what is read (environments), or each piece has one owner (data sets)",
    )
    cache.add_argument("--cache-memory", metavar="SIZE", help="what the cache may hold on a node (default 2G)")
    cache.add_argument(
        "--cache-readers", type=int, metavar="N", help="nodes that read the shared file system side by side (default 1)"
    )
    cache.add_argument(
        "--cache-store", metavar="DIR", help="folder of each node that holds the cache, in the place of its memory"
    )
    cache.add_argument(
        "--cache-allow-other", action="store_true", help="let root enter the view, as a setuid apptainer has to"
    )
    cache.add_argument(
        "--no-cache-trace", action="store_true", help="do not record, and do not push ahead, what is read"
    )


def _add_container(box: Group) -> None:
    box.add_argument("--container", metavar="IMAGE")
    box.add_argument("--runtime", metavar="NAME", help="apptainer, singularity, podman-hpc, shifter, edf, charliecloud")
    box.add_argument("--bind", action="append", default=[], metavar="SRC[:DST[:ro]]")
    box.add_argument("--container-arg", action="append", default=[], metavar="WORD")
    box.add_argument(
        "--host-libs", metavar="DIR[:DIR]", help="take the host's network libraries from here; none: the image's own"
    )


def _add_supervision(alive: Group) -> None:
    alive.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help="start a failed run again, up to N times in a row without a newer snapshot (with --spares and "
        "--until-done: 3)",
    )
    _add_spares(alive)
    alive.add_argument(
        "--hang-after", type=float, metavar="S", help="no step and no output for S seconds is a hang: end it, say where"
    )
    alive.add_argument(
        "--check", action="store_true", help="look at the nodes before the ranks start; spare ones replace bad ones"
    )
    alive.add_argument(
        "--until-done", action="store_true", help="when the time is nearly up, save and submit the job again"
    )


def _add_spares(group: Group) -> None:
    group.add_argument("--spares", type=int, default=0, metavar="K", help="K more nodes, for those that fail")


def _add_name(group: Group) -> None:
    group.add_argument("--name", metavar="NAME", help="name of the run and of the job")


def _add_run(run: Group) -> None:
    _add_name(run)
    run.add_argument("--watch", action="store_true", help="look at nodes and steps while it runs, for `windlass watch`")
    run.add_argument("--run-dir", metavar="DIR", help="folder of this run (default: runs/NAME-TIME)")
    run.add_argument("--no-placeholders", action="store_true", help="leave {rank} and the like in arguments alone")
    run.add_argument(
        "--grace", type=float, default=5.0, metavar="S", help="seconds between asking ranks to end and killing"
    )


def _add_profile(profile: Group) -> None:
    profile.add_argument(
        "--profile",
        dest="profile_tool",
        metavar="TOOL",
        help="profile some ranks: torch, nsys, rocprof, rocprofv3, unitrace, py-spy",
    )
    profile.add_argument(
        "--profile-ranks", default="0", metavar="RANKS", help="which ones (default 0), as in 14 or 0,3-5"
    )
    profile.add_argument(
        "--profile-steps", type=int, default=32, metavar="N", help="with torch: so many steps (default 32)"
    )
