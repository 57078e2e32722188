"""Which trainer a script uses, how it is asked to save and leave, and how it resumes. Pure: the script is not run.

The facts of each trainer are in `data/trainers.toml`. Scripts with `windlass.Snapshot` need none of this.
"""

from __future__ import annotations

from functools import cache

import msgspec

from windlass.base.tables import packaged_table
from windlass.model.finding import Finding
from windlass.model.plan import ResumeWay, TrainerPlan
from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext, ScriptFacts

RESUME = "resume"
"""An option of --with at every site: pass the trainer's argument for resuming when the run is started again."""


class SelfResume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signs that the script resumes without an argument of windlass."""

    always: str = ""
    names: tuple[str, ...] = ()
    keywords: dict[str, tuple[str, ...]] = {}
    given: tuple[str, ...] = ()
    """Values of the trainer's argument on the user's command line. `*`: any."""
    without_option: tuple[str, ...] = ()
    """Names that count if the script does not have the trainer's argument."""


class TrainerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table. The comment at its top explains how a script is matched."""

    name: str
    packages: tuple[str, ...]
    checkpoints: tuple[str, ...]
    source: str
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    notice: str = ""
    notice_if: tuple[str, ...] = ()
    notice_schedulers: tuple[str, ...] = ()
    requeues: bool = False
    folder_options: tuple[str, ...] = ()
    folder: str = ""
    step: str = ""
    stored_step: str = ""
    """The step is in the checkpoint file, under this key."""
    markers: tuple[str, ...] = ()
    per_rank: str = ""
    unfinished: str = ""
    pointer: str = ""
    """This file names the newest complete checkpoint, in the form `pointed`."""
    pointed: str = "{}"
    resume_option: str = ""
    resume_with: str = "path"
    accepts: tuple[str, ...] = ()
    """Names or packages with which the script has the trainer's argument although its text does not contain it."""
    itself: SelfResume = SelfResume()


@cache
def trainer_specs() -> tuple[TrainerSpec, ...]:
    """Return the rows of the table, in order."""
    return msgspec.convert(packaged_table(__file__, "trainers.toml")["trainer"], tuple[TrainerSpec, ...])


def trainer_spec(name: str) -> TrainerSpec | None:
    """Return the row of this name. None if this windlass does not have it."""
    return next((spec for spec in trainer_specs() if spec.name == name), None)


def plan_trainer(request: Request, context: PlanningContext, scheduler: str) -> TrainerPlan | None:
    """Return the trainer of a supervised run. None without restarts, or if no known trainer was found."""
    facts = context.script
    if not request.supervised or ("windlass" in context.imports and "Snapshot" in facts.names):
        return None
    for spec in trainer_specs():
        because = _match(spec, context.imports, facts)
        if because:
            notice, notice_because = _notice(spec, request, facts, scheduler)
            resume, resume_because = _resume(spec, request, context.imports, facts)
            return TrainerPlan(
                name=spec.name,
                because=because,
                notice=notice,
                notice_because=notice_because,
                holds_requeue=spec.requeues and notice != "" and scheduler in spec.notice_schedulers,
                folder=_folder(spec, request, facts),
                resume=resume,
                resume_because=resume_because,
            )
    return None


def trainer_remarks(request: Request, trainer: TrainerPlan | None) -> tuple[Finding, ...]:
    """Return a warning if every restart would begin at the first step, or if `--with resume` has no effect."""
    if trainer is None and RESUME in request.options:
        why = "found no trainer that it knows in the script" if request.supervised else "passes it on restarts only"
        advice = "" if request.supervised else "add --restarts 3 or --until-done"
        return (Finding("trainer-resume", "warning", f"--with {RESUME} has no effect: windlass {why}", advice),)
    if trainer is None or trainer.resume in {"itself", "argument"}:
        return ()
    advice = f"--with {RESUME} passes {trainer.resume_because}" if trainer.resume == "possible" else ""
    text = f"{trainer.name}: a restart begins at the first step" + ("" if advice else f": {trainer.resume_because}")
    return (Finding("trainer-resume", "warning", text, advice),)


def _match(spec: TrainerSpec, imports: frozenset[str], facts: ScriptFacts) -> str:
    package = next((name for name in spec.packages if name in imports), "")
    used = next((name for name in spec.names if name in facts.names), "")
    if package and (used or not spec.names):
        return f"the script imports {package}" + (f" and uses {used}" if used else "")
    if spec.options and all(option in facts.options for option in spec.options):
        return f"the script has {' and '.join(spec.options)}"
    return ""


def _notice(spec: TrainerSpec, request: Request, facts: ScriptFacts, scheduler: str) -> tuple[str, str]:
    """Return the signal that makes the script save and leave, or an empty one, and why."""
    if "SIGUSR2" in facts.names:
        return "SIGUSR2", "the script has its own handler"
    if not spec.notice:
        return "", f"{spec.name} saves on no signal: its newest regular checkpoint counts"
    if spec.notice_schedulers and scheduler not in spec.notice_schedulers:
        return "", f"{spec.name} saves on {spec.notice} only in a job of {', '.join(spec.notice_schedulers)}"
    for name in spec.notice_if:
        if _given(request.command, name) is None and facts.keywords.get(name) != "True":
            return "", f"{spec.name} saves on {spec.notice} only with --{name}: its newest regular checkpoint counts"
    return spec.notice, f"{spec.name} saves on it"


def _resume(spec: TrainerSpec, request: Request, imports: frozenset[str], facts: ScriptFacts) -> tuple[ResumeWay, str]:
    """Return how a restart finds its checkpoint, and why."""
    signs, option = spec.itself, spec.resume_option
    if option and RESUME in request.options:
        return "argument", f"{option} {spec.resume_with.upper()} is added on each restart (--with {RESUME})"
    given = _given(request.command, option.lstrip("-")) if option else None
    if given is not None and ("*" in signs.given or given in signs.given):
        return "itself", f"you gave {option} {given}"
    if signs.always:
        return "itself", signs.always
    has_option = option in facts.options or bool({*facts.names, *imports} & {*spec.accepts})
    for name in (*signs.names, *(() if option and has_option else signs.without_option)):
        if name in facts.names:
            return "itself", f"the script uses {name}"
    for name, values in signs.keywords.items():
        if facts.keywords.get(name) in values:
            return "itself", f"the script has {name}={facts.keywords[name]}"
    if option and has_option:
        return "possible", f"{option} {spec.resume_with.upper()} on each restart"
    return "never", "windlass found nothing in the script that loads a checkpoint"


def _folder(spec: TrainerSpec, request: Request, facts: ScriptFacts) -> str:
    """Return the folder of the checkpoints: from the command line, the script's literals, or the trainer's default."""
    for name in spec.folder_options:
        found = _given(request.command, name) or facts.keywords.get(name) or facts.options.get(f"--{name}")
        if found:
            return found
    return spec.folder


def _given(command: tuple[str, ...], name: str) -> str | None:
    """Return the last value of an option on the command line. Empty for a flag, None if it was not given.

    `-` and `_` in its name are the same.
    """
    wanted, found = "--" + name.replace("-", "_"), None
    for index, word in enumerate(command):
        key, equals, value = word.partition("=")
        if key.startswith("--") and "--" + key[2:].replace("-", "_") == wanted:
            following = command[index + 1] if index + 1 < len(command) else ""
            found = value if equals else "" if following.startswith("--") else following
    return found
