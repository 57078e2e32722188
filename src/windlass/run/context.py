"""Gather the context of planning: site, allocation, node, variables. All input and output of planning is here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from windlass.backends.schedulers import get_scheduler, scheduler_of_job
from windlass.base.centre import ForbiddenOption
from windlass.base.procs.command import run_command, which
from windlass.base.settings import Settings, job_keys
from windlass.errors import UsageError, WindlassError, os_errors
from windlass.model.finding import Finding
from windlass.model.request import Allocation, Request
from windlass.model.site import DetectSpec, Site
from windlass.model.topology import Topology
from windlass.node.sys.folders import is_foreign
from windlass.node.sys.reading import read_text
from windlass.plan.environment.caches import cache_variable_names
from windlass.plan.environment.modules import (
    after_modules_argv,
    loaded_modules,
    parse_environment,
    users_variables,
)
from windlass.plan.forbidden import refuse_forbidden, request_options
from windlass.plan.inputs import PlanningContext
from windlass.plan.shape import VISIBILITY
from windlass.plan.show import OWN_PATHS
from windlass.run.auto_cache import with_auto_cache
from windlass.run.bad_nodes import bad_hosts
from windlass.run.command_context import cache_environments, cache_roots, check_paths, command_facts, with_parts
from windlass.run.container_paths import seen_paths
from windlass.run.interpreter import (
    activate_kind,
    environment_place,
    find_python,
    is_here,
)
from windlass.run.remote import probe_node
from windlass.run.rendezvous import is_this_host
from windlass.run.scheduler_commands import (
    SchedulerAnswers,
    ask_scheduler,
    busy_hosts,
    scheduler_environ,
    with_seen_mpi,
)
from windlass.run.script import read_script
from windlass.sites.catalog import load_site, site_of_file
from windlass.sites.detect import Detection, catalog_signs, detect_site
from windlass.sites.topology.described import choose_topology, probe_topology

_BUILTIN = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", *VISIBILITY.values(), *cache_variable_names())
"""Variables that a plan sets on every site and that a module may already have set."""
_MODULES_TIMEOUT_S = 20.0
_ASK_TIMEOUT_S = 15.0


def find_allocation(environ: Mapping[str, str], wanted: str | None = None) -> Allocation | None:
    """Return the job that this process is in, or None."""
    name = None if wanted == "none" else scheduler_of_job(environ)
    if name is None:
        return None
    scheduler = get_scheduler(name)
    output = None
    argv = scheduler.allocation_argv(environ)
    if argv is not None:
        found = scheduler_environ(scheduler, environ)
        output = run_command(argv, timeout_s=_ASK_TIMEOUT_S, env=found).stdout
    return scheduler.parse_allocation(environ, _read_text, output)


def _read_text(path: str) -> str:
    with os_errors(f"read {path}", hint="is this still inside the job?", kind=UsageError):
        return read_text(path, errors="surrogateescape", follow=True)


def choose_site(
    request: Request, settings: Settings, environ: Mapping[str, str]
) -> tuple[Request, Site, Detection | None]:
    """Find the site by option, file, variable or detection. Unknown machines get a generic site.

    Also returns the request with the user's defaults for that site, because the partition decides what the site has.
    """
    file = Path(request.site_file) if request.site_file else settings.site_file
    files = (file,) if file is not None else ()
    name = request.site or (site_of_file(files[0], settings.folders) if files else None) or settings.site
    detection = None
    if name is None:
        detection = detect_site(folders=settings.folders, environ=environ)
        name = detection.name

    def load(partition: str | None) -> Site:
        return load_site(name, partition=partition, folders=settings.folders, user_files=files)

    site = load(request.partition)
    filled = with_job_defaults(request, settings, site, environ)
    refuse_forbidden(_said(filled, settings, site.name), forbidden_at(settings, site.name))
    return filled, site if filled.partition == request.partition else load(filled.partition), detection


def forbidden_at(settings: Settings, site: str) -> tuple[ForbiddenOption, ...]:
    return settings.centre.forbidden_at(site) if settings.centre else ()


def _said(request: Request, settings: Settings, site: str) -> Iterator[tuple[str, str]]:
    """Yield the options of the request, except the defaults of the centre."""
    its = {(f"--{key}", settings.centre_default(site, key)) for key in job_keys()}
    return (option for option in request_options(request) if option not in its)


def runs_here(request: Request, site: Site, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return whether a request is planned for this machine: inside an allocation, or without a scheduler.

    Otherwise it is planned for compute nodes. If the command line names a site that has detection rules, the rules must
    match. A named site without such rules is accepted inside a job, or if its files
    describe no node.
    """
    inside = request.scheduler != "none" and scheduler_of_job(environ) is not None
    if not inside and (request.scheduler or site.file.scheduler.kind) != "none":
        return False
    if request.site is None and request.site_file is None:
        return True
    if any(signs.name == site.name and signs.detect != DetectSpec() for signs in catalog_signs(settings.folders)):
        return detect_site(folders=settings.folders, environ=environ).site == site.name
    return inside or not site.file.node.domains


def _is_elsewhere(site: Site, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return whether this machine is not the named site, as far as detection can decide."""
    known = any(s.name == site.name and s.detect != DetectSpec() for s in catalog_signs(settings.folders))
    return known and detect_site(folders=settings.folders, environ=environ).site != site.name


def _own_paths(request: Request, python: str, site: Site) -> Finding:
    """Return a note with the paths of this machine that a plan for another machine contains."""
    named = (python, request.cwd, request.activate, *request.cache, request.container)
    paths = [path for path in dict.fromkeys(named) if path and path.startswith("/") and is_here(path)]
    text = f"{' and '.join(paths)} are of this machine; the plan is for {site.name}"
    hint = "plan on a login node there, or give --python and --activate with the paths on that machine"
    return Finding(OWN_PATHS, "note", text, hint, facts={"paths": paths})


def _foreign_files(request: Request, settings: Settings) -> list[Finding]:
    """Return a warning for each site-file folder of another user, because lines of its files run in the job.

    Also returns a warning for a folder of the centre that other users could have changed. That folder is not used.
    """
    chosen = request.site_file or settings.site_file
    found = []
    if settings.centre and settings.centre.why_not:
        text = f"the centre's files in {settings.centre.folder} are not used: {settings.centre.why_not}"
        found.append(
            Finding("centre-unused", "warning", text, "tell your centre; WINDLASS_SITE_CONFIG names the folder")
        )
    for path in (settings.config_dir, settings.config_dir / "sites", *((Path(chosen),) if chosen else ())):
        with contextlib.suppress(OSError):
            if is_foreign(path):
                text = f"{path} belongs to another user (uid {path.stat().st_uid}), who can change what your jobs run"
                found.append(Finding("foreign-files", "warning", text, "use your own copy if you do not trust them"))
    return found


def with_job_defaults(request: Request, settings: Settings, site: Site, environ: Mapping[str, str]) -> Request:
    """Fill in the account, partition and so on from the user's or the centre's `config.toml`.

    Only missing values are filled in. Inside a job, or without a scheduler, nothing is filled in.
    """
    ruled = (request.scheduler or site.file.scheduler.kind) != "none"
    if not ruled or scheduler_of_job(environ) is not None:
        return request
    found = {key: getattr(request, key) or settings.job_default(site.name, key) for key in job_keys()}
    return msgspec.structs.replace(request, **found)


def gather_context(
    request: Request, settings: Settings, *, environ: Mapping[str, str], here: bool | None = None
) -> tuple[Request, PlanningContext]:
    """Return the request, completed from the user's file and this machine, and its planning context.

    Each input is read once. `here`: the ranks run on nodes like this one (run), not on nodes that this process cannot
    see (submit). None: `runs_here` decides.
    """
    request, site, detection = choose_site(request, settings, environ)
    if here is None:
        here = runs_here(request, site, settings, environ)
    script = read_script(request)
    python, because = find_python(request, site, environ, script)
    request, note = with_auto_cache(request, python, site, environ)
    allocation = find_allocation(environ, request.scheduler) if here else None
    on_node = here and (allocation is None or any(is_this_host(host, environ) for host in allocation.hosts))
    seen, taken = _first_node(request, site, environ, allocation, on_node=on_node)
    topology, remarks = choose_topology(site, seen)
    topology = restrict_devices(topology, environ) if allocation is None and on_node else topology
    ruled = (request.scheduler or site.file.scheduler.kind) != "none"
    unseen = allocation is None and not topology.cores
    said = ask_scheduler(site, request, environ) if unseen else SchedulerAnswers()
    site, mpi_note = said.seen_mpi or with_seen_mpi(request, site, environ)
    remarks += [*said.remarks, *_foreign_files(request, settings)]
    roots = cache_roots(request) if here else ()
    remarks += check_paths(request, site, environ, here=here, ours=on_node and (allocation is not None or not ruled))
    if not here and detection is None and _is_elsewhere(site, settings, environ):
        remarks.append(_own_paths(request, python, site))
    context = PlanningContext(
        site=site,
        topology=topology,
        allocation=allocation,
        **{name: getattr(said, name) for name in ("offers", "queues", "accounts")},
        users_environment=_users_environment(request, site, environ),
        **command_facts(script, python, because),
        place=environment_place(python) if here and _many_read_it(request, allocation) else None,
        activate_kind=activate_kind(request),
        cache_roots=roots,
        cache_environments=cache_environments(request, python, environ) if roots else (),
        bad_hosts=bad_hosts(settings, site.name) if site.file.scheduler.kind != "none" or allocation else (),
        forbidden=forbidden_at(settings, site.name),
        busy_hosts=busy_hosts(request, allocation, environ) if allocation else (),
        seen_paths=seen_paths(request, site, environ) if on_node else None,
        on_node=on_node,
        taken_ports=taken,
        detection=detection,
        remarks=(*remarks, *(one for one in (mpi_note, note) if one)),
    )
    return with_parts(request, context, environ, here=here) if request.components else (request, context)


def _first_node(
    request: Request, site: Site, environ: Mapping[str, str], allocation: Allocation | None, *, on_node: bool
) -> tuple[Topology | None, tuple[int, ...]]:
    """Probe this node or the first node of the allocation: its topology, and ports in use if it is another node."""
    if on_node:
        # Inside a job, a shell may be bound to one core (`srun --pty bash`). The cgroup has the cores of the job.
        return probe_topology(allowed_by="cgroup" if allocation else "mask"), ()
    if allocation is None:
        return None, ()
    launcher = request.launcher or with_seen_mpi(request, site, environ)[0].file.launcher.kind
    look = probe_node(allocation.hosts[0], launcher, site.file.launcher, environ)
    return look.topology, look.taken_ports


def _many_read_it(request: Request, allocation: Allocation | None) -> bool:
    """Return whether several nodes will each read the environment."""
    nodes = request.nodes or (len(allocation.hosts) if allocation else 1)
    return nodes > 1 and request.kind in {"script", "module"} and not request.cache and not request.container


def restrict_devices(topology: Topology, environ: Mapping[str, str]) -> Topology:
    """Keep only the devices in the visibility variable, which selects devices on a machine without a scheduler."""
    if not topology.devices:
        return topology
    text = environ.get(VISIBILITY[topology.devices[0].vendor])
    if text is None or not all(part.strip().isdecimal() for part in text.split(",")):
        return topology
    chosen = {int(part) for part in text.split(",")}
    return msgspec.structs.replace(topology, devices=tuple(d for d in topology.devices if d.index in chosen))


def _users_environment(request: Request, site: Site, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables, without those set by modules.

    To separate the two, the environment after loading the modules is needed, which costs a shell. It is read only if
    modules are loaded and a variable that a plan sets is already set.
    """
    loaded = loaded_modules(environ)
    contested = any(name in environ for name in (*(spec.name for spec in site.file.settings), *_BUILTIN))
    if not loaded or not contested or not which("bash", environ):
        return users_variables(environ, None)
    uses = tuple(path for path in environ.get("MODULEPATH", "").split(":") if path)
    clean = {name: environ[name] for name in ("HOME", "USER", "LOGNAME", "TERM", "LANG") if name in environ}
    try:
        done = run_command(after_modules_argv(uses, loaded), timeout_s=_MODULES_TIMEOUT_S, env=clean, check=True)
    except WindlassError:
        return users_variables(environ, None)
    return users_variables(environ, parse_environment(done.stdout))
