"""Scripts around the launcher: `launch.sh` of a run, and the batch script for a scheduler. Pure text.

Both have the same body: modules, activation, then the launcher. The default batch script calls `windlass run --plan`.
The one of `submit --dry-run` contains that plan. `--standalone` writes the body into the script and computes the
rendezvous in shell, so that the job needs no windlass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from windlass.backends.containers import get_runtime
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import RUN_MARK, LaunchSpec
from windlass.backends.schedulers import get_scheduler
from windlass.base.notation.shell import comment, expandable, quote, quote_words, variable_names
from windlass.errors import UsageError
from windlass.model.origin import Argument, argv_of
from windlass.model.plan import Plan
from windlass.plan.agents import plan_node_step
from windlass.plan.environment.modules import module_lines
from windlass.plan.render.parts import part
from windlass.plan.render.rank_lines import cache_parent, wrap_spec
from windlass.plan.render.rank_script import JOB_FILE, rank_script
from windlass.plan.render.variables import JobFacts

RUN_DIR = "{run_dir}"
"""Placeholder for the run folder in the arguments of a plan."""


def launch_argv(plan: Plan, run_dir: str) -> tuple[str, ...]:
    """The launcher's argv for this run folder. It is empty for the local launcher."""
    written = get_launcher(plan.launcher).path_word(run_dir)
    mark = hashlib.sha256(run_dir.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    words = (word for argument in plan.launch for word in argument.words)
    return tuple(word.replace(RUN_DIR, written).replace(RUN_MARK, mark) for word in words)


def step_name(plan: Plan, run_dir: str) -> str:
    """The name under which the launcher starts the ranks of this run folder."""
    head = "--job-name="
    return next((w.removeprefix(head) for w in launch_argv(plan, run_dir) if w.startswith(head)), plan.name)


def has_prologue(plan: Plan) -> bool:
    """Whether the job has to enter an environment before the launcher starts."""
    return bool(plan.modules_use or plan.modules or plan.prologue)


def prologue_lines(plan: Plan) -> list[str]:
    """Modules and activation."""
    lines: list[str] = []
    if plan.modules_use or plan.modules:
        lines += ["# Modules of the site and yours.", *module_lines(plan.modules_use, plan.modules), ""]
    for entry in plan.prologue:
        lines += [*comment(f"{entry.because} ({entry.origin.text()})"), entry.line, ""]
    return lines


def _command_lines(arguments: tuple[Argument, ...], words: tuple[str, ...], last: tuple[str, ...]) -> list[str]:
    """A command over several lines with one option per line, so that a person can read and change it."""
    lines: list[str] = []
    at = 0
    for argument in arguments:
        part = words[at : at + len(argument.words)]
        at += len(argument.words)
        text = " ".join(map(expandable, part)) if argument.expand else quote_words(part)
        lines.append(("  " if lines else "") + text + " \\")
    return [*lines, "  " + quote_words(last)]


def _variable_lines(plan: Plan) -> list[str]:
    """Lines that end the job if a variable in the launcher's arguments is not set."""
    words = (word for argument in plan.launch if argument.expand for word in argument.words)
    names = dict.fromkeys(name for word in words for name in variable_names(word))
    return [
        f'[ -n "${{{name}-}}" ] ||'
        f' {{ echo "windlass: {name} is not set: no module and no environment of the job does" >&2; exit 3; }}'
        for name in names
    ]


def launch_script(plan: Plan, run_dir: str) -> str:
    """`launch.sh`, which `windlass run` starts. A user can read it and run it again in the same job."""
    words = launch_argv(plan, run_dir)
    lines = [
        "#!/bin/bash",
        *comment(
            f"windlass {plan.windlass}: {plan.name} on {plan.site}. plan.json contains the reason for each argument."
        ),
        "",
        *prologue_lines(plan),
    ]
    rank = ("/bin/sh", f"{run_dir}/rank.sh")
    if words:
        command = _command_lines(plan.launch, words, rank)
        command[0] = "exec " + command[0]
        return "\n".join([*lines, *_variable_lines(plan), *command]) + "\n"
    return "\n".join([*lines, "exec " + quote_words(rank)]) + "\n"


def _head_lines(plan: Plan, run_dir: str | None, about: Sequence[str] = ()) -> list[str]:
    """The directives, the description of the script, and the reasons for the directives.

    The directives must be together at the top. Without a run folder, a log file in it is left out, because the
    scheduler would open the file before the job can create the folder.
    """
    scheduler = get_scheduler(plan.scheduler)
    kept = []
    for argument in plan.directives:
        if not any(RUN_DIR in word for word in argument.words):
            kept.append(argument)
        elif run_dir is not None:
            words = tuple(word.replace(RUN_DIR, scheduler.path_word(run_dir)) for word in argument.words)
            kept.append(msgspec.structs.replace(argument, words=words))
    lines = [scheduler.shebang, *map(scheduler.directive_line, kept), "", *about, "# Why these directives:"]
    for argument in kept:
        lines += comment(f"  {quote_words(argument.words)}: {argument.because} ({argument.origin.text()})")
    return [*lines, "", *scheduler.first_lines]


def batch_script(plan: Plan, run_dir: str, windlass_words: tuple[str, ...], signed_by: str = "") -> str:
    """The default batch script: directives, then `windlass run --plan` in the job.

    `signed_by` is the digest of the key that signs the plan. The job accepts no other plan, even if it cannot read the
    user's secret.
    """
    argv = (*windlass_words, "run", "--plan", f"{run_dir}/plan.json")
    lines = [
        *_head_lines(plan, run_dir),
        "# The job: windlass reads the plan, inspects the nodes of the job, and starts the ranks.",
        f"exec {quote_words((*argv, '--signed-by', signed_by) if signed_by else argv)}",
    ]
    return "\n".join(lines) + "\n"


def printed_script(plan: Plan, text: str, digest: str, folder: str, windlass_words: tuple[str, ...]) -> str:
    """A batch script that contains its plan as `text`, so that it needs no run folder.

    `folder` is a shell word: the job creates its run folder there. `digest` is the digest of the text, and the job
    accepts no other plan.
    """
    argv = quote_words((*windlass_words, "run", "--plan", "-", "--signed-by", digest))
    mark = _end_mark("END_OF_PLAN", text)
    lines = [
        *_head_lines(plan, None, _about_lines(plan, windlass_words)),
        "# windlass reads the plan below, inspects the nodes of the job, and then does this:",
        *("# " + line for line in _outline(plan)),
        "# windlass refuses an edited plan, because its digest differs. Make a new one with `windlass submit "
        "--dry-run`.",
        f"exec {argv} --run-dir {folder} <<'{mark}'",
        text.rstrip("\n"),
        mark,
    ]
    return "\n".join(lines) + "\n"


def _outline(plan: Plan) -> list[str]:
    """The commands of the job for people. RUN_DIR and RUN are placeholders for values that the job decides."""
    if plan.parts:
        names = ", ".join(one.name for one in plan.request.components)
        return [f"  place the components {names} on the nodes, and start each one when what it needs is ready"]
    words = tuple(word.replace(RUN_DIR, "RUN_DIR").replace(RUN_MARK, "RUN") for a in plan.launch for word in a.words)
    lines = [f"module use {quote(path)}" for path in plan.modules_use]
    lines += [f"module load {quote(name)}" for name in plan.modules]
    lines += [entry.line for entry in plan.prologue]
    lines += _command_lines(plan.launch, words, ("/bin/sh", "RUN_DIR/rank.sh"))
    return [f"  {line}".rstrip() for text in lines for line in text.splitlines()]


def _about_lines(plan: Plan, windlass_words: tuple[str, ...] = ()) -> list[str]:
    """Comment lines: how to submit the script, what it needs, and the remarks of its plan."""
    submit = " ".join(get_scheduler(plan.scheduler).submit_command)
    programs = [(part.command, part.request.cwd) for part in plan.parts or [plan]]
    needs = [f"the command {quote_words(command)}" + (f" in {cwd}" if cwd else "") for command, cwd in programs]
    if windlass_words:
        needs.append(f"windlass {plan.windlass}: {quote_words(windlass_words)}")
    if plan.modules:
        needs.append(f"the modules {' '.join(plan.modules)}")
    if plan.container:
        needs.append(f"the image {plan.container.image}")
    hidden = [setting.name for setting in plan.environment if setting.secret and setting.origin.scope == "flag"]
    if hidden or plan.secret_words:
        needs.append(f"secrets, which are not in this text ({', '.join(hidden) or 'in the command'})")
    lines = comment(f"windlass {plan.windlass}: {plan.name} on {plan.site}. Submit this file unchanged:  {submit} FILE")
    lines += ["# The nodes must have:", *(line for need in needs for line in comment(f"- {need}"))]
    for remark in plan.remarks:
        lines += comment(f"{remark.severity}: {remark.line()}")
    return [*lines, "#"]


EXIT_FILE = "exit_code"
"""A file that a standalone job writes to its run folder: its exit code."""


def standalone_script(plan: Plan, run_dir: str, *, log: bool = True) -> str:
    """A batch script that needs no windlass in the job and no files that windlass made before.

    A user can keep it, send it to a colleague and submit it directly. It contains the rank script. With `log`, the run
    folder already exists, and the scheduler can write the job's log into it.
    """
    if plan.cache is not None or plan.ray is not None:
        what = "--cache" if plan.cache is not None else "Ray"
        raise UsageError(f"--standalone and {what}", hint=f"{what} needs windlass in the job: leave --standalone out")
    scheduler = get_scheduler(plan.scheduler)
    plan = _unwatched(plan)
    facts = JobFacts(
        run_dir=run_dir,
        run_id="${WINDLASS_JOB_ID}",
        jit_folder="windlass-${WINDLASS_UID}-${WINDLASS_JOB_ID}",
        job_file=f"{run_dir}/{JOB_FILE}",
    )
    words = launch_argv(plan, run_dir)
    cleaning = argv_of(plan_node_step(plan, "end", hosts=()).arguments)
    lines = [
        *_head_lines(plan, run_dir if log else None, _about_lines(plan)),
        f"cd {quote(plan.request.cwd)} || exit 3" if plan.request.cwd else "",
        *_folder_lines(run_dir),
        "",
        *prologue_lines(plan),
        *rendezvous_lines(plan, scheduler.job_id_variable, scheduler.host_lines, run_dir),
        *_job_file_lines(run_dir),
        "",
        "# The rank script: every task runs it before the command.",
        *_file_lines(f"{run_dir}/rank.sh", rank_script(plan, facts)),
        *_container_file_lines(plan, run_dir),
        *_variable_lines(plan),
        *_launch_lines(plan, run_dir, _command_lines(plan.launch, words, ("/bin/sh", f"{run_dir}/rank.sh"))),
        "",
        "# Caches of the ranks are removed from every node.",
        f"{quote_words((*cleaning, '/bin/rm', '-rf'))} {expandable(cache_parent(plan, facts))}",
        f'echo "$w_code" > {quote(run_dir)}/{EXIT_FILE}',
        "exit $w_code",
    ]
    return "\n".join(lines) + "\n"


def _job_file_lines(run_dir: str) -> list[str]:
    """Lines that write the results of the previous lines to a file for the ranks."""
    names = ("WINDLASS_JOB_ID", "WINDLASS_UID", "WINDLASS_MASTER_ADDR", "WINDLASS_MASTER_PORT")
    words = " ".join(f'{name} "${name}"' for name in names)
    return [f"printf \"export %s='%s'\\n\" {words} > {quote(run_dir)}/{JOB_FILE} || exit 3"]


def _launch_lines(plan: Plan, run_dir: str, command: list[str]) -> list[str]:
    """Lines that start the ranks and set `w_code` to the exit code.

    This is the code of the first rank that failed, if the rank scripts report it. If the launcher would let the other
    ranks wait for a rank that has ended, these lines end the launcher.
    """
    if not plan.parent:
        return [*command, "w_code=$?"]
    ends = f"{quote(run_dir)}/ends/*"
    failed = f"sort -n {ends} 2>/dev/null | awk -F '\\t' '$4 != 0 {{ print $4; exit }}'"
    lines = [*command, "w_code=$?"]
    launcher = get_launcher(plan.launcher)
    if not launcher.ends_others and not launcher.unwatched:
        waited = [*command[:-1], f"{command[-1]} &"]
        lines = part("end_launcher", command=waited, failed=failed, grace=f"{plan.grace_s:g}")
    return [*lines, f"w_failed=$({failed}); w_code=${{w_failed:-$w_code}}"]


def _unwatched(plan: Plan) -> Plan:
    """The plan for a job without windlass: the launcher must end the other ranks when one fails."""
    words = get_launcher(plan.launcher).unwatched
    if not words:
        return plan
    own = Argument(
        words=words,
        because="when a rank fails, the launcher ends the others, because no windlass process monitors the run",
    )
    return msgspec.structs.replace(plan, launch=(*plan.launch, own))


def _folder_lines(run_dir: str) -> list[str]:
    """Lines that create the run folder.

    Files in it are executed, so only this user may own it and write to it.
    """
    parts = " ".join(f"{quote(run_dir)}/{part}" for part in ("out", "where", "ends", "comm"))
    return [
        f"(umask 077 && mkdir -p {parts}) && [ -O {quote(run_dir)} ] && chmod go-w {quote(run_dir)} {parts} || exit 3",
        f"rm -f {quote(run_dir)}/hosts {quote(run_dir)}/rank.sh {quote(run_dir)}/ends/*",
    ]


def _file_lines(path: str, text: str) -> list[str]:
    """Lines that write a file. The end mark does not occur in the text."""
    mark = _end_mark("END_OF_FILE", text)
    return [f"cat > {quote(path)} <<'{mark}'", text.rstrip("\n"), mark, ""]


def _end_mark(mark: str, text: str) -> str:
    while mark in text:
        mark += "_"
    return mark


def _container_file_lines(plan: Plan, run_dir: str) -> list[str]:
    if plan.container is None:
        return []
    files = get_runtime(plan.container.runtime).files(wrap_spec(plan, run_dir))
    return [line for name, text in files.items() for line in _file_lines(f"{run_dir}/{name}", text)]


def _as_host_file(plan: Plan) -> str:
    """A filter that turns the hosts into the launcher's host file, if the launcher needs one."""
    launcher = get_launcher(plan.launcher)
    if launcher.finds_hosts:
        return ""
    spec = LaunchSpec(nodes=plan.nodes, ranks_per_node=plan.ranks_per_node)
    suffix = (launcher.host_file_text(("",), spec) or "").rstrip("\n")
    return f" | sed {quote(f's/$/{suffix}/')}" if suffix else ""


def rendezvous_lines(plan: Plan, job_id_variable: str, host_lines: str, run_dir: str) -> list[str]:
    """Shell lines that set the first host and a free port on it. The batch script runs on that host."""
    rule = plan.rendezvous
    lines = part(
        "rendezvous",
        variable=job_id_variable,
        host_lines=host_lines + _as_host_file(plan),
        hosts=quote(f"{run_dir}/hosts"),
        short="w_first=${w_first%%.*}" if rule.short_name or rule.suffix else ":",
    )
    if plan.nodes == 1:
        lines.append("export WINDLASS_MASTER_ADDR=127.0.0.1")
    elif rule.address == "ip":
        lines += part("address_of_interface", interface=quote(rule.interface or "hsn0"))
    else:
        lines.append(f"export WINDLASS_MASTER_ADDR=$w_first{quote(rule.suffix) if rule.suffix else ''}")
    if rule.fixed_port is not None:
        return [*lines, f"export WINDLASS_MASTER_PORT={rule.fixed_port}"]
    return [*lines, *part("port", base=str(rule.port_base), span=str(rule.port_span))]
