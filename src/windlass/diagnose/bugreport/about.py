"""The parts of a bug report about this machine and about a run.

Machine: windlass, Python, the site, the tools, the environment and the user's files. Run: its state, its plan, its
scripts and the ends of its logs.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import windlass
from windlass.backends.schedulers import scheduler_of_job
from windlass.base.notation.counts import counted
from windlass.base.procs.command import run_command, which
from windlass.base.settings import CONFIG_FILE, Settings
from windlass.errors import CommandError, WindlassError
from windlass.model.plan import Plan, plan_to_json
from windlass.model.secrets import MASK, is_secret
from windlass.node.checks.selftest import VARIABLES
from windlass.plan.show import plan_text
from windlass.run.bundle import plan_for_strangers, tail_text
from windlass.run.failure.verdict import attempt_folders
from windlass.run.folder import PLAN_FILE, RunFolder, read_plan
from windlass.run.supervise.runs import state_of
from windlass.sites.detect import detect_site

TOOL_S = 5.0
_TOOL_LINES = 4
_AT_ONCE = 8
_MAX_FILE_BYTES = 64 << 10
_TOOLS = (
    *(("srun", "--version"), ("sbatch", "--version"), ("qstat", "--version"), ("flux", "version")),
    *(("mpiexec", "--version"), ("mpirun", "--version")),
    *(("apptainer", "--version"), ("singularity", "--version"), ("podman", "--version"), ("podman-hpc", "--version")),
    *(("shifter", "--version"), ("ch-run", "--version"), ("enroot", "version")),
    *(("nvidia-smi", "--list-gpus"), ("rocm-smi", "--version"), ("xpu-smi", "--version")),
    *(("fusermount3", "--version"), ("fi_info", "--version"), ("ldd", "--version"), ("python3", "--version")),
)
_RELEVANT = re.compile(
    r"(WINDLASS|SLURM|SALLOC|SBATCH|PBS|FLUX|PALS|PMI|PMIX|OMP|OMPI|MPI|MPICH|MPIR|UCX|TORCH|PYTORCH|CUDA|ROCM|XDG|CONDA)_"
    r"|(PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON\w*|VIRTUAL_ENV|LOADEDMODULES|MODULEPATH|LANG|LC_\w+|TERM|COLUMNS|NO_COLOR"
    r"|SHELL|TMPDIR|HOSTTYPE|CPUTYPE|PE_ENV|CRAYPE_VERSION|CLUSTER_NAME|SYSTEMNAME|LMOD_SYSTEM_NAME)\Z"
)
"""Variables that affect planning and the start of ranks. The report omits all others, including their names."""


def version_text(environ: Mapping[str, str]) -> str:
    """Versions of windlass, Python and the system, the host and the scheduler."""
    return "\n".join(
        (
            f"windlass {windlass.__version__} in {Path(windlass.__file__).parent}",
            f"python {platform.python_version()} ({platform.python_implementation()}) {sys.executable}",
            f"system {platform.system()} {platform.release()} {platform.machine()}, {_release()}",
            f"host {platform.node()}, inside a job of: {scheduler_of_job(environ) or 'no scheduler'}",
        )
    )


def _release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return "no os-release"


def site_text(settings: Settings, environ: Mapping[str, str]) -> str:
    """The detected site, and the evidence for it."""
    said = [f"named by you: {settings.site}"] if settings.site else []
    said += [f"your site file: {settings.site_file}"] if settings.site_file else []
    found = detect_site(folders=settings.folders, environ=environ)
    return "\n".join((*said, f"detected: {found.name} ({found.because})", *found.lines()))


def tools_text(environ: Mapping[str, str]) -> str:
    """Versions of the installed schedulers, launchers, container runtimes and driver tools."""
    here = [argv for argv in _TOOLS if which(argv[0], environ)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        said = list(pool.map(lambda argv: _answer(argv, environ), here))
    missing = ", ".join(argv[0] for argv in _TOOLS if argv not in here)
    return "\n".join((*said, f"not in PATH: {missing}"))


def _answer(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    try:
        done = run_command(argv, timeout_s=TOOL_S, env=environ, check=False)
        text = (done.stdout.strip() or done.stderr.strip()).splitlines()[:_TOOL_LINES]
    except CommandError as error:  # includes a timeout
        text = [f"({error.message})"]
    return f"$ {' '.join(argv)}\n" + "\n".join(f"  {line}" for line in text)


def environment_text(environ: Mapping[str, str]) -> str:
    """Relevant variables without secrets, and the number of the others."""
    shown = {name: value for name, value in sorted(environ.items()) if _RELEVANT.match(name) or VARIABLES.match(name)}
    lines = [f"{name}={MASK if is_secret(name, value) else value}" for name, value in shown.items()]
    return "\n".join((*lines, f"[{len(environ) - len(shown)} other variables are left out, with their names]"))


def config_text(settings: Settings) -> str:
    """The user's configuration and site files."""
    found = [settings.config_dir / CONFIG_FILE, *sorted(settings.config_dir.glob("**/*.toml"))]
    files = dict.fromkeys((*found, *([settings.site_file] if settings.site_file else [])))
    texts = []
    for path in files:
        try:
            texts.append(f"# {path}\n{tail_text(path, _MAX_FILE_BYTES)}")
        except FileNotFoundError:
            continue
        except OSError as error:
            texts.append(f"# {path}: {error.strerror}")
    return "\n".join(texts) or f"no files in {settings.config_dir}"


MAX_LOG_BYTES = 64 << 10
MAX_NODES = 8
"""Maximum number of nodes whose output is included: the first ones, and those whose files changed last."""
_TEXTS = ("result.json", "verdict.json", "rank.sh", "launch.sh", "batch.sh", "snapshots.tsv")
_LOGS = ("launcher.log", "agents.log", "agents.out", "job.log")


def state_text(folder: RunFolder, environ: Mapping[str, str]) -> str:
    """The state of the run. Asks the scheduler, with a deadline."""
    state = state_of(folder, environ)
    starts = counted(len(attempt_folders(folder.path)) + 1, "start")
    return f"{state.path}\n{state.state}: {state.why or '-'}\n{state.shape or '?'} ranks, {starts}, job {state.job_id}"


def plan_of(folder: RunFolder) -> Plan | None:
    """The plan of the run, or None if it is damaged."""
    try:
        return read_plan(folder.path)
    except WindlassError:
        return None


def run_files(folder: RunFolder, plan: Plan | None, *, logs: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by name, and the omitted parts with the reasons."""
    files: dict[str, str] = {}
    left: dict[str, str] = {}
    if plan is None:
        left[PLAN_FILE] = "damaged"
    else:
        shown = plan_for_strangers(plan)
        files[PLAN_FILE] = plan_to_json(shown).decode()
        files["plan.txt"] = plan_text(shown, explain=True)
    for name in _TEXTS:
        _take(folder, name, files, left)
    outputs = _outputs(folder.part("out"))
    if not logs:
        left["logs"] = "--without logs"
        return files, left
    for name in _LOGS:
        _take(folder, name, files, left)
    for path in outputs[:MAX_NODES]:
        _take(folder, f"out/{path.name}", files, left)
    if len(outputs) > MAX_NODES:
        left["out/"] = f"output of {len(outputs) - MAX_NODES} more nodes"
    return files, left


def _outputs(folder: Path) -> list[Path]:
    """Output files of nodes: the first node's file, then the most recently written files."""
    try:
        names = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        return names[:1] + sorted(names[1:], key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _take(folder: RunFolder, name: str, files: dict[str, str], left: dict[str, str]) -> None:
    try:
        files[name] = tail_text(folder.part(name), MAX_LOG_BYTES, within=folder.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        left[name] = error.strerror or "cannot be read"
