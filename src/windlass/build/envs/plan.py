"""How a Python environment is created at a site: a value with every step, its reason and its source. Pure.

The shell lines are for `bash` and use three names: `$ENV` (the folder), `$IMAGE` (the image, if its packages are
beneath the environment), and `py`, a function that runs the environment's Python where it must run.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from windlass.base.notation.shell import quote
from windlass.build.envs.place import place_findings
from windlass.build.envs.step import EnvStep, other_rocm, shell_path, site_modules, use_steps, with_account
from windlass.build.envs.wheels import Extra, Wheel, choose_wheel, find_extra
from windlass.errors import UsageError
from windlass.model.finding import Finding
from windlass.model.site import ContainerSpec, PythonSpec, Site
from windlass.plan.environment.modules import module_lines

PLAN_VERSION = 2
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_PYTHON = re.compile(r"\d+\.\d+(\.\d+)?\Z")
_EXISTS = (
    'if [ -e "$ENV" ] || [ -L "$ENV" ]; then',
    '  echo "$ENV already exists: move it away, or choose another ENV" >&2',
    "  exit 2",
    "fi",
)
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_KEPT = "'^(torch|pytorch-triton[a-z-]*)=='"


class EnvRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's request."""

    path: str = ""
    extras: tuple[str, ...] = ()
    torch: str = ""
    """A version, a build (`+cu128`), both, or `none`."""
    torch_index: str = ""
    """Another index for torch. `none`: the index that pip is configured with."""
    python: str = ""
    """For conda a version, for a venv the interpreter to build on."""
    image: str = ""
    account: str = ""
    """The project that owns the site's folders for environments."""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the machine, if it is the target of the plan. Otherwise the catalog's facts."""

    vendor: str = ""
    machine: str = ""
    driver: str = ""
    runtime: str = ""


class EnvPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan: how the environment is created (`steps`) and how it is used (`use`)."""

    version: int
    site: str
    title: str
    path: str
    kind: Literal["venv", "conda"]
    beneath: Literal["nothing", "module", "image"]
    because: str
    source: str
    torch: Wheel | None
    extras: tuple[str, ...]
    variables: tuple[str, ...]
    """Variables in the path that must be set: the project, a scratch folder."""
    steps: tuple[EnvStep, ...]
    use: tuple[EnvStep, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def plan_env(request: EnvRequest, site: Site, facts: MachineFacts) -> EnvPlan:
    """Make the plan. Raises `UsageError` for an unknown build of torch or an invalid package name."""
    spec = site.file.python
    _refuse_strange(request, spec)
    path = with_account(request.path or f"{spec.place or '${HOME}/envs'}/torch", request.account)
    extras = tuple(find_extra(name) for name in request.extras)
    wheel = _wheel(request, site, facts)
    source, build = _source(site), wheel.build if wheel else ""
    steps = [_place(path), *_modules(site, build), *_image(request, site), _environment(request, site, source)]
    if wheel is not None:
        steps.append(_torch(wheel, request.torch_index))
    steps += _extras(extras, site, wheel, request.torch_index)
    steps.append(_try(wheel, extras, spec))
    warnings = [Finding("torch", "warning", text) for text in (wheel.warnings if wheel else ())]
    warnings += [
        Finding("modules", "warning", spec.note) for spec in site_modules(site, build) if spec.torch and spec.note
    ]
    warnings += other_rocm(build.removeprefix("rocm"), site, build) if build.startswith("rocm") else ()
    return EnvPlan(
        version=PLAN_VERSION,
        site=site.name,
        title=site.file.title or site.name,
        path=path,
        kind=spec.kind,
        beneath=spec.beneath,
        because=spec.because or "the catalog has no document of this site about environments, so this is a plain venv",
        source=source,
        torch=wheel,
        extras=request.extras,
        variables=tuple(n for n in dict.fromkeys(_names(path)) if n not in ("USER", "HOME")),
        steps=tuple(steps),
        use=use_steps(path, site, build),
        findings=(*warnings, *place_findings(path, site, account=request.account)),
        notes=tuple(_notes(site)),
    )


def _names(path: str) -> list[str]:
    return (["ACCOUNT"] if "{account" in path else []) + _VARIABLE.findall(path)


def _refuse_strange(request: EnvRequest, spec: PythonSpec) -> None:
    if "\n" in request.path or "\0" in request.path:
        raise UsageError("--path holds a line break", hint="choose another folder")
    if request.path and not request.path.startswith(("/", "${", "~")):
        hint = "jobs start in other folders, so give a path that starts with /"
        raise UsageError(f"--path {request.path} is not an absolute path", hint=hint)
    if request.account and not _ACCOUNT.match(request.account):
        raise UsageError(f"--account {request.account!r} is no name of a project", hint="as in --account abc123")
    if spec.kind == "conda" and request.python and not _PYTHON.match(request.python):
        raise UsageError(f"--python {request.python}: conda takes a version here", hint="as in --python 3.12")
    if request.image and spec.beneath != "image":
        hint = "for your own container, build the packages into it: windlass image plan"
        raise UsageError("--image: at this site no image lies beneath an environment", hint=hint)


def _source(site: Site, key: str = "because") -> str:
    if not getattr(site.file.python, key):
        return "" if key == "mpicc" else "windlass"
    origin = site.origin_of(f"python.{key}")
    return ", ".join(part for part in (origin.where, origin.checked) if part)


def _wheel(request: EnvRequest, site: Site, facts: MachineFacts) -> Wheel | None:
    if request.torch == "none" or (site.file.python.beneath != "nothing" and not request.torch):
        return None
    return choose_wheel(
        said=request.torch,
        site=site.file.python.torch,
        site_source=_source(site),
        vendor=facts.vendor or site.file.devices.vendor or "",
        machine=facts.machine or site.file.node.arch,
        driver=facts.driver,
        runtime=facts.runtime,
    )


def _place(path: str) -> EnvStep:
    ask = ("export ACCOUNT=YOUR_PROJECT   # or: windlass env plan --account NAME",) if "ACCOUNT" in _names(path) else ()
    return EnvStep(
        name="the place",
        because="a new folder, so that it contains no old files",
        commands=(*_EXISTS, 'mkdir -p "$(dirname "$ENV")"'),
        shown=(*ask, f"ENV={shell_path(path)}"),
    )


def _modules(site: Site, build: str) -> list[EnvStep]:
    specs, spec = site_modules(site, build), site.file.python
    if spec.beneath == "image":
        return []
    use = tuple(dict.fromkeys(path for one in specs for path in one.use))
    load = tuple(dict.fromkeys(name for one in specs for name in one.load))
    exports = tuple(f"export {name}={quote(value)}" for name, value in spec.compilers.items())
    if not load and not spec.before and not exports:
        return []
    shown = [*(f"module use {path}" for path in use), *([f"module load {' '.join(load)}"] if load else [])]
    step = EnvStep(
        name="the site's modules" if load else "the site's compilers",
        because="; ".join(one.because for one in specs if one.because) or "the system's own compilers are too old",
        commands=(*module_lines(use, load), *spec.before, *exports),
        shown=(*shown, *spec.before, *exports),
        source=_source(site),
    )
    return [step]


def _runtime(site: Site, image: str) -> ContainerSpec | None:
    specs = site.file.containers
    named = next((s for s in specs if any(fnmatchcase(image, pattern) for pattern in s.images)), None)
    return named or next((s for s in specs if s.default), None)


def _image(request: EnvRequest, site: Site) -> list[EnvStep]:
    spec = site.file.python
    if spec.beneath != "image":
        return []
    image = request.image or spec.image
    if not image:
        line = ': "${IMAGE:?set IMAGE to the image, or the environment definition (EDF), that the job will use}"'
    elif "*" in image:
        named = "*".join(quote(part) if part else "" for part in image.split("*"))  # the shell must expand the star
        line = f"IMAGE=${{IMAGE:-$(printf '%s\\n' {named} | sort -V | tail -n 1)}}"
    else:
        line = f"IMAGE=${{IMAGE:-{quote(image)}}}"
    runtime = _runtime(site, image)
    inside = _inside(site, runtime)
    step = EnvStep(
        name="the image beneath",
        because="the image's own Python must create the environment; it works only with that image",
        commands=(line, f'inside() {{ {inside} "$@"; }}'),
        source=_source(site),
    )
    return [step]


def _inside(site: Site, runtime: ContainerSpec | None) -> str:
    if runtime is not None and runtime.runtime == "edf":
        return 'srun --ntasks=1 --environment="$IMAGE"'
    name = (runtime.executable or runtime.runtime) if runtime else "apptainer"
    verb = runtime.verb if runtime else "exec"
    links = sorted(set(site.file.storage.links.values()))
    binds = "".join(f" -B {quote(path)}" for path in links)
    return f'{name} {verb}{binds} -B "$(dirname "$ENV")" "$IMAGE"'


def _environment(request: EnvRequest, site: Site, source: str) -> EnvStep:
    spec = site.file.python
    if spec.kind == "conda":
        version = request.python or spec.version or "3.11"
        return EnvStep(
            name=f"a conda environment with Python {version}",
            because=spec.because,
            commands=(f'conda create --yes --prefix "$ENV" python={version} pip', 'py() { "$ENV/bin/python" "$@"; }'),
            source=source,
        )
    python = quote(request.python or "python3")
    if spec.beneath == "image":
        # WITH_CONDA activates the image's own environment if it has one. `.pth`: a venv that is created from a venv
        # inside the image would not see its packages.
        make = 'eval "${WITH_CONDA:-}"; exec "$0" "$@"'
        return EnvStep(
            name="a venv with the image's packages beneath",
            because="the image is read-only and lacks some packages; pip sees those it has and leaves them there",
            commands=(
                "# shellcheck disable=SC2016",
                f'inside sh -c {quote(make)} {python} -m venv --system-site-packages "$ENV"',
                "# shellcheck disable=SC2016",
                f'inside sh -c {quote(make)} {python} -c {quote(_BENEATH)} "$ENV"',
                'py() { inside "$ENV/bin/python" "$@"; }',
            ),
            source=source,
        )
    through = spec.beneath == "module"
    return EnvStep(
        name="a venv on top of the site's packages" if through else "a venv",
        because="pip sees the module's packages and leaves them there"
        if through
        else "isolated from the system's packages",
        commands=(
            f'{python} -m venv {"--system-site-packages " if through else ""}"$ENV"',
            'py() { "$ENV/bin/python" "$@"; }',
        ),
        source=source,
    )


_BENEATH = (
    "import sys, sysconfig; "
    'to = "%s/lib/python%d.%d/site-packages/beneath.pth" % (sys.argv[1], *sys.version_info[:2]); '
    'sys.prefix == sys.base_prefix or open(to, "w").write(sysconfig.get_path("purelib") + "\\n")'
)


def _torch(wheel: Wheel, index: str) -> EnvStep:
    return EnvStep(
        name=f"torch {wheel.version} ({wheel.build})",
        because=wheel.because,
        # numpy from pip's own index: a mirror of torch's may lack it. torch warns at each start without it.
        commands=(f"py -m pip install {wheel.requirement}{_index(wheel, index)}", "py -m pip install numpy"),
        source=wheel.source,
    )


def _index(wheel: Wheel, said: str) -> str:
    if said == "none":
        return ""
    return f" --index-url {quote(said or wheel.index)}"


def _extras(extras: tuple[Extra, ...], site: Site, wheel: Wheel | None, index: str) -> list[EnvStep]:
    if not extras:
        return []
    keep = EnvStep(
        name="keep the torch version",
        because="a package that wants another torch must fail, not replace the one that fits the driver",
        commands=(f'py -m pip list --format=freeze | grep -iE {_KEPT} >"$ENV/constraints.txt" || true',),
    )
    found = [keep]
    for extra in extras:
        words = [*extra.environment]
        if extra.mpi:
            words.append(f"MPICC={quote(_wrapper(site))}")
        options = list(extra.options)
        if extra.torch_index and wheel is not None and index != "none":
            options.append(f"--extra-index-url {quote(index or wheel.index)}")
        install = " ".join(
            [*words, "py -m pip install", '-c "$ENV/constraints.txt"', *options, quote(extra.requirement)]
        )
        tools = (f"py -m pip install {' '.join(extra.tools)}",) if extra.tools else ()
        found.append(
            EnvStep(
                name=extra.name,
                because=_with_mpi(site) if extra.mpi else extra.because,
                commands=(*_need_wrapper(extra, site), *tools, install),
                shown=(*tools, install),
                source=_source(site, "mpicc") if extra.mpi else "",
            )
        )
    return found


def _wrapper(site: Site) -> str:
    return "mpicc" if site.file.python.beneath == "image" else site.file.python.mpicc or "mpicc"


def _need_wrapper(extra: Extra, site: Site) -> tuple[str, ...]:
    if not extra.mpi or site.file.python.beneath == "image":
        return ()
    wrapper = _wrapper(site).split()[0]
    said = f"{wrapper} cannot compile for MPI here (no wrapper, or no mpi.h): load the MPI, or leave mpi4py out"
    return (f"printf '#include <mpi.h>\\n' | {wrapper} -E -x c - >/dev/null || {{ echo {quote(said)} >&2; exit 3; }}",)


def _with_mpi(site: Site) -> str:
    if site.file.python.beneath == "image":
        return "compiled against the image's MPI: a wheel brings another one, which cannot talk to the launcher"
    return "compiled with the site's compiler wrapper, so that it uses the site's MPI; a wheel knows only others"


def _try(wheel: Wheel | None, extras: tuple[Extra, ...], spec: PythonSpec) -> EnvStep:
    names = [extra.module for extra in extras if extra.module and not extra.mpi]
    names = (["torch"] if wheel is not None or spec.beneath != "nothing" else []) + names
    # Import mpi4py's package, not its MPI, which starts only under a launcher. Before torch, as Frontier requires.
    names = (["mpi4py"] if any(extra.mpi for extra in extras) else []) + names
    code = f"import {', '.join(names)}" if names else "import sys"
    say = "; print(torch.__version__)" if "torch" in names else ""
    return EnvStep(
        name="import what was installed",
        because="an import that fails here would fail on every rank",
        commands=(f"py -c {quote(code + say)}",),
    )


def _notes(site: Site) -> list[str]:
    notes = [site.file.python.note] if site.file.python.note else []
    if site.file.offline:
        notes.append("compute nodes cannot reach the internet: make it on a login node")
    if site.file.storage.note:
        notes.append(site.file.storage.note)
    return notes
