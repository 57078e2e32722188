"""The variables of a plan as shell lines, each with its reason, and with its test if it depends on a library.

Also the secrets file, which contains the values that a plan hides. It has mode 0600 and is in the run folder. Only the
rank script reads it.

Also the facts of the job that a rendered script needs.
"""

from __future__ import annotations

import msgspec

from windlass.base.notation.shell import comment, expandable, fillable, quote
from windlass.model.plan import Plan, Setting
from windlass.plan.inputs import Secrets
from windlass.plan.render.parts import part


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that only the job has. None: the batch script exports the value (WINDLASS_MASTER_ADDR and so on)."""

    run_dir: str
    run_id: str
    uid: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    job_file: str | None = None
    """Shell text that the batch script writes and every rank reads: values that were unknown before. Not every launcher
    carries variables.
    """
    jit_folder: str | None = None
    """Name of the directory for JIT caches, if only the job's own shell has user and job."""
    attempt: int | None = None
    """The number of this start of the run, if a process monitors the run and may restart it."""
    deadline_s: float | None = None
    """When the allocation ends, in seconds since 1970."""
    live: tuple[int, ...] = ()
    """Ranks on a terminal whose lines are shown while they grow, if the launcher forwards only whole lines."""
    kept_caches: bool = True
    """Unpack the caches that an earlier job kept. windlass has checked who made them."""
    beats: str | None = None
    """Directory on each node for the ranks' heartbeats, without the node's number at its end."""
    leftovers: tuple[tuple[str, str], ...] = ()
    """Id and folder of killed runs whose caches the first rank of each node removes."""


def environment_lines(plan: Plan) -> list[str]:
    """The section of the rank script that sets the plan's variables."""
    lines = ["", "# Variables of the plan, each with its reason."]
    if any(setting.when.found for setting in plan.environment):
        lines += part("found")
    if any(setting.secret for setting in plan.environment) or plan.secret_words:
        lines.append('. "$WINDLASS_RUN_DIR/secrets.sh" || w_fail "cannot read the secrets file of this run"')
    logged = plan.request.comm_log
    # Search for a library only after all paths are set, regardless of which file names it first.
    for setting in sorted(plan.environment, key=lambda setting: setting.when.found is not None):
        if setting.origin.where == "--comm-log" and logged is not None and logged != "all":
            continue
        lines += setting_lines(setting)
    if logged is not None and logged != "all":
        lines += [f'case "$w_rank" in {"|".join(logged.split(","))})']
        for setting in plan.environment:
            if setting.origin.where == "--comm-log":
                lines += ["  " + line for line in setting_lines(setting)]
        lines += ["esac"]
    return [*lines, *_missing_plugins(plan)]


def _missing_plugins(plan: Plan) -> list[str]:
    """Lines with which the first rank reports a missing library that settings need. NCCL and RCCL do not report it."""
    if plan.nodes < 2 or plan.container is not None:  # inside a container the host's directories are irrelevant
        return []
    tests = {_runtime_test(s): s.when.found for s in plan.environment if s.when.found}
    return [
        f'if [ "$w_rank" = 0 ] && ! {{ {test}; }}; then echo "windlass: warning:" {quote(name)}'
        ' "is not on $w_host: without their plugin NCCL and RCCL use TCP between nodes" >&2; fi'
        for test, name in tests.items()
    ]


def setting_lines(setting: Setting) -> list[str]:
    """A variable of the plan as shell lines, with its reason."""
    lines = comment(f"{setting.because} ({setting.origin.text()})")
    if setting.secret:
        if setting.origin.scope == "environment":
            return [*lines, f"# {setting.name} comes with the environment; its value is not stored"]
        return [*lines, f'export {setting.name}="$w_secret_env_{setting.name}"']
    if setting.module and setting.value is None:
        return [*lines, f"# {setting.name} is left to the module {quote(setting.module)}"]
    if setting.value is None:
        action = f"unset {setting.name}"
    else:
        value = _value_word(setting.value, setting)
        head = f'"${{{setting.name}:+${setting.name}:}}"' if setting.append else ""
        tail = f'"${{{setting.name}:+:${setting.name}}}"' if setting.prepend else ""
        action = f"export {setting.name}={head}{value}{tail}"
    if setting.module:
        lines += comment(f"Left to the module {setting.module} where that sets it.")
        action = f'[ -n "${{{setting.name}+set}}" ] || {action}'
    test = _runtime_test(setting)
    return [*lines, f"if {test}; then {action}; fi" if test else action]


def _value_word(value: str, setting: Setting) -> str:
    if setting.expand:
        return fillable(value, expand=True)
    return fillable(value) if setting.fill else quote(value)


def _runtime_test(setting: Setting) -> str:
    tests = []
    if setting.when.exists is not None:
        tests.append(f"[ -e {expandable(setting.when.exists)} ]")
    if setting.when.found is not None:
        folders = " ".join(expandable(folder) for folder in setting.when.found_in)
        tests.append(f"w_found {quote(setting.when.found)} {folders}".rstrip())
    return " && ".join(tests)


SECRETS_FILE = "secrets.sh"


def secrets_text(secrets: Secrets) -> str:
    """Shell text that sets one variable for each secret. It is read after the rank's own variables are set."""
    filled = secrets.filled_from
    lines = ["# Values that plan.json hides. Do not share this file. windlass removes it when the run ends."]
    for at, word in sorted(secrets.words.items()):
        value = fillable(word) if filled is not None and at >= filled else quote(word)
        lines.append(f"w_secret_word_{at}={value}")
    lines += [f"w_secret_env_{name}={quote(value)}" for name, value in sorted(secrets.env.items())]
    return "\n".join(lines) + "\n"
