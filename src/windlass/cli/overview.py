"""`windlass` without a command: this machine, the state of the last run, and the next useful command."""

from __future__ import annotations

import windlass
from windlass.backends.schedulers import scheduler_of_job
from windlass.base.settings import CONFIG_FILE, JobDefaults, Settings, current_environ, read_settings
from windlass.run.supervise.runs import RunState, find_runs, state_of
from windlass.sites.detect import Detection, detect_site


def overview_text() -> str:
    environ = current_environ()
    settings = read_settings(environ)
    detection = detect_site(folders=settings.folders, environ=environ)
    job = scheduler_of_job(environ)
    folders = find_runs(settings.runs_dir)
    last = state_of(folders[-1], environ) if folders else None
    facts = {
        "machine": _machine(settings, detection),
        "in a job": f"yes, of {job}" if job else "no",
        "your defaults": _defaults(settings),
        "last run": _last(last) if last else f"none in {settings.runs_dir}",
    }
    steps = tuple(next_steps(settings, detection, last, in_job=job is not None))
    width = max(len(command) for command, _ in steps)
    return "\n".join(
        (
            f"windlass {windlass.__version__}",
            *(f"  {name + ':':<15}{value}" for name, value in facts.items()),
            "",
            "next:",
            *(f"  {command:<{width}}  {what}" for command, what in steps),
        )
    )


def _machine(settings: Settings, detection: Detection) -> str:
    if settings.site:
        return f"{settings.site} (as you said)"
    return f"{detection.site or 'not in the catalog, ' + detection.fallback} ({detection.because})"


def _defaults(settings: Settings) -> str:
    said = [f"{key} {value}" for key in ("account", "partition", "time") if (value := getattr(settings.job, key))]
    said += [f"more for {', '.join(sorted(settings.job_at))}"] if settings.job_at else []
    return f"{', '.join(said)} ({settings.config_dir / CONFIG_FILE})" if said else "none"


def _last(state: RunState) -> str:
    return f"{state.path}: {state.state}{f' ({state.why})' if state.why else ''}"


def next_steps(
    settings: Settings, detection: Detection, last: RunState | None, *, in_job: bool
) -> list[tuple[str, str]]:
    """Commands with their descriptions, the most useful first."""
    cluster = (settings.site or detection.name) != "workstation"
    steps: list[tuple[str, str]] = []
    if cluster and not in_job and settings.job == JobDefaults() and not settings.job_at:
        steps.append(("windlass init", "save account, partition and time as defaults"))
    if last is not None and last.state in {"failed", "killed", "resumable"}:
        steps.append((f"windlass runs show {_name(last)}", "show what happened to the last run"))
        steps.append((f"windlass runs resume {_name(last)}", "start it again, from its last snapshot if it has one"))
    elif last is not None:
        steps.append((f"windlass logs {_name(last)}", "show the output of the last run"))
    steps.append(("windlass plan train.py", "show what would run, and why; starts nothing"))
    if cluster and not in_job:
        steps.append(("windlass submit --nodes 2 train.py", "submit it to the scheduler"))
    else:
        steps.append(("windlass run train.py", "run it, one rank per device"))
    steps.append(("windlass --help", "all commands"))
    return steps


def _name(state: RunState) -> str:
    return state.path.rstrip("/").rpartition("/")[2]
