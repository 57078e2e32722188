"""The rank script: the few lines of POSIX `sh` that every task runs before the user's command. Rendered from the plan.

It starts in a millisecond and needs nothing inside a container. Sections in order: who am I, limits, caches, where I
sit, variables, the command. It `exec`s the command, or stays its parent where the launcher would not say which rank
failed. Pure text; `tests` run it through real shells.
"""

from __future__ import annotations

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import LAST_LINE, SIGNAL_FILE
from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.base.notation.shell import comment, expandable, fillable, quote
from windlass.model.plan import Plan
from windlass.plan.cache import agents_folder, command_lines, view_folder_lines, view_lines
from windlass.plan.environment.modules import rank_activation_lines
from windlass.plan.environment.ranks import RANK_VARIABLES
from windlass.plan.profile import profile_lines
from windlass.plan.render.rank_lines import LIVE_END, cache_lines, container_lines, live_command, live_start
from windlass.plan.render.variables import JobFacts, environment_lines

_NO_ALARM = (
    "# At its time limit the launcher sends SIGALRM to all processes: the rank hears it as SIGTERM.",
    "trap '' ALRM",
)
_LAST_LINE = (
    "# The end of the output: a last line without its own end would run into the next rank's.",
    f"printf '\\{ord(LAST_LINE):03o}\\n'; printf '\\{ord(LAST_LINE):03o}\\n' >&2",
)
_ALARM = ("trap 'w_forward TERM' ALRM",)
_LATE_END = (
    "# The launcher kills the other ranks soon after it sees this one fail: windlass, which reads the line above, may",
    "# ask them first. Then all leave without a code, and none is hurried.",
    "w_tries=0",
    'while [ "$w_code" -ne 0 ] && [ -z "$w_asked" ] && [ "$w_tries" -lt 30 ]; do',
    "  (PATH=$w_path; sleep 0.1); w_tries=$((w_tries + 1))",
    "done",
)
EXIT_BROKEN = 70
"""Exit code of a rank script that cannot start the command for a reason of its own."""


JOB_FILE = "job.env"
HOOK_FOLDER = "h"
"""Of the agents' folder on a node: what the sampler lays out for the ranks."""


def rank_script(plan: Plan, job: JobFacts) -> str:
    """The whole script, ending in a newline."""
    sections = [
        _head(plan),
        _place(plan, job),
        _limits(plan),
        cache_lines(plan, job),
        _seat(plan),
        _activation(plan),
        _workers(plan),
        environment_lines(plan),
        _rank_variables(),
        _watch_variables(job),
        hook_lines(plan, job),
        view_lines(plan, job.uid, job.run_id),
        _command(plan, job),
        _traps(plan),
        _where(plan),
        live_start(job.live),
        live_command(job.live) if job.live and not plan.parent else [],
        _start(plan, watched=job.job_file is None, live=bool(job.live)),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def _head(plan: Plan) -> list[str]:
    return [
        "#!/bin/sh",
        *comment(
            f"windlass {plan.windlass} rank script: {plan.name} on {plan.site}, {counted(plan.nodes, 'node')} x "
            f"{counted(plan.ranks_per_node, 'rank')}. Made from plan.json beside it, for every task."
        ),
        "w_fail() {",
        '  echo "windlass: rank ${w_rank:-?} on $w_host: $*" >&2',
        f"  exit {EXIT_BROKEN}",
        "}",
        "w_host=${SLURMD_NODENAME:-$(uname -n)}; w_host=${w_host%%.*}",
        *([f"trap '' {_carrier(plan)}  # a request that comes before there is a rank"] if _carrier(plan) else []),
        *(["w_path=$PATH  # for commands of this script, whatever the plan sets for yours"] if plan.parent else []),
        "",
    ]


def _activation(plan: Plan) -> list[str]:
    """Activation of a folder that is the nodes' own, unless it was done before the launcher."""
    folder = plan.activate_on_node
    if folder is None:
        return []
    gone = f"--activate {folder} does not exist on this node: was it staged here?"
    return [
        "",
        "# The environment of --activate, which lies on the nodes themselves.",
        f"[ -d {quote(folder)} ] || w_fail {quote(gone)}",
        *rank_activation_lines(folder),
    ]


def _first_of(names: tuple[str, ...], otherwise: str) -> str:
    """`${A:-${B:-otherwise}}`"""
    text = otherwise
    for name in reversed(names):
        text = f"${{{name}:-{text}}}"
    return text


def _place(plan: Plan, job: JobFacts) -> list[str]:
    variables = get_launcher(plan.launcher).variables
    per_node = plan.ranks_per_node
    hint = f"none of {', '.join(variables.rank)} is set: was this started by {plan.launcher}?"
    lines = [
        f"# Who am I: {plan.launcher} says so inside the task, nobody else knows.",
        f"w_rank={_first_of(variables.rank, '')}",
        f'[ -n "$w_rank" ] || w_fail {quote(hint)}',
        f"w_local_rank={_first_of(variables.local_rank, f'$((w_rank % {per_node}))')}",
        f"w_node_rank={_first_of(variables.node_rank, f'$((w_rank / {per_node}))')}",
        f"w_world_size={plan.world_size}",
        f"w_nodes={plan.nodes}",
        f"w_ranks_per_node={per_node}",
    ]
    if variables.world_size:
        seen = _first_of(variables.world_size, str(plan.world_size))
        lines += [
            f"w_seen={seen}",
            '[ "$w_seen" = "$w_world_size" ] ||'
            ' w_fail "the launcher started $w_seen ranks, the plan has $w_world_size: was its command line changed?"',
        ]
    lines += [
        *([f". {quote(job.job_file)} || w_fail 'cannot read {JOB_FILE}'"] if job.job_file else []),
        f"w_master_addr={_known(job.master_addr, 'WINDLASS_MASTER_ADDR')}",
        f"w_master_port={_known(job.master_port, 'WINDLASS_MASTER_PORT')}",
        f"w_job_id={quote(job.job_id) if job.job_id is not None else '${WINDLASS_JOB_ID-}'}",
        f"export WINDLASS_RUN_DIR={quote(job.run_dir)}",
        *view_folder_lines(plan, job.uid, job.run_id),
        "",
    ]
    return lines


def _known(value: str | int | None, variable: str) -> str:
    if value is not None:
        return quote(str(value))
    return f'"${{{variable}:?windlass: not exported by the batch script}}"'


def _limits(plan: Plan) -> list[str]:
    lines: list[str] = []
    for limit in plan.limits:
        lines += comment(limit.because)
        lines.append(f"ulimit {' '.join(quote(word) for word in limit.words)} 2>/dev/null || :")
    return lines


def _seat(plan: Plan) -> list[str]:
    """CPUs and device of this local rank, and binding where the launcher does not do it."""
    binding = plan.binding
    lines = ["", *comment(f"Where this rank sits: {binding.because}"), "w_cpus= w_device="]
    if any(rank.cpus or rank.devices for rank in binding.ranks):
        lines.append('case "$w_local_rank" in')
        for rank in binding.ranks:
            devices = ",".join(str(device) for device in rank.devices)
            lines.append(f"  {rank.local_rank}) w_cpus={quote(format_cpulist(rank.cpus))} w_device={quote(devices)} ;;")
        lines += [
            f'  *) w_fail "local rank $w_local_rank, but the plan has {plan.ranks_per_node} ranks per node" ;;',
            "esac",
        ]
    if any(rank.cpus for rank in binding.ranks) and not binding.by_launcher:
        lines += [
            "if command -v taskset >/dev/null 2>&1; then",
            '  taskset -pc "$w_cpus" $$ >/dev/null 2>&1 || echo "windlass: rank $w_rank cannot have cpus $w_cpus" >&2',
            "else",
            '  [ "$w_rank" = 0 ] && echo "windlass: no taskset on this node, ranks are not bound" >&2',
            "fi",
        ]
    return lines


def _workers(plan: Plan) -> list[str]:
    """Addresses of all ranks as JSON texts, for TF_CONFIG: each has a port of its own above the master's."""
    if not any("${w_workers}" in (setting.value or "") for setting in plan.environment):
        return []
    hosts = ["w_hosts=$w_master_addr"]
    if plan.nodes > 1:
        hosts = [
            "w_hosts=",
            'while read -r w_line; do w_line=${w_line%% *}; w_hosts="$w_hosts ${w_line%%:*}"; done '
            '< "$WINDLASS_RUN_DIR/hosts" || w_fail "TF_CONFIG needs the file hosts of the run folder"',
        ]
    return [
        "",
        "# All workers of TensorFlow.",
        *hosts,
        "w_workers= w_at=0",
        "for w_line in $w_hosts; do",
        "  w_end=$((w_at + w_ranks_per_node))",
        '  while [ "$w_at" -lt "$w_end" ]; do',
        "    w_at=$((w_at + 1))",
        '    w_workers="$w_workers${w_workers:+, }\\"$w_line:$((w_master_port + w_at % 16000))\\""',
        "  done",
        "done",
    ]


def _rank_variables() -> list[str]:
    lines = ["", "# What frameworks look for."]
    return [*lines, *(f"export {variable.name}={fillable(variable.value)}" for variable in RANK_VARIABLES)]


def place_mark(job: JobFacts) -> str:
    """By this entry of the environment, and the node's number behind it, processes of one start are known on a node."""
    return f"WINDLASS_PLACE={job.run_id}.{job.attempt}."


def _watch_variables(job: JobFacts) -> list[str]:
    """What `windlass.init` and `windlass.Snapshot` want to know of the run."""
    lines: list[str] = []
    if job.deadline_s is not None:
        lines += ["", "# When the time is up.", f"export WINDLASS_DEADLINE={job.deadline_s:.0f}"]
    if job.attempt is None:
        return lines
    lines += [
        "",
        "# For windlass.Snapshot: which start of which run this is, and where to show signs of life.",
        f"export WINDLASS_RUN_ID={quote(job.run_id)} WINDLASS_ATTEMPT={job.attempt}",
        f"export {place_mark(job)}$w_node_rank",
    ]
    if job.beats is not None:
        lines += [
            f'w_beats={expandable(job.beats)}"$w_node_rank"',
            'if [ -d "$w_beats" ]; then export WINDLASS_HEARTBEAT=$w_beats/$w_rank; fi',
        ]
    return lines


def hook_lines(plan: Plan, job: JobFacts) -> list[str]:
    """The start-up hook in front of PYTHONPATH, where the sampler of this node has laid it; else the rank runs without.
    A cache's view stands behind it: it changes paths of its own roots alone."""
    if plan.agents is None or "sampler" not in plan.agents.services:
        return []
    folder = f"{agents_folder(plan, job.uid, job.run_id)}/{HOOK_FOLDER}/{job.run_id}."
    return [
        "",
        "# For windlass watch: Python finds a start-up hook, and writes its steps into a folder of this node.",
        f'w_hook={expandable(folder)}"$w_node_rank"',
        'if [ -d "$w_hook/python" ]; then',
        '  echo "$$" > "$w_hook/pids/$w_rank"',
        "  export WINDLASS_STEPS=$w_hook/steps",
        '  export PYTHONPATH="$w_hook/python${PYTHONPATH:+:$PYTHONPATH}"',
        "fi",
    ]


def _command(plan: Plan, job: JobFacts) -> list[str]:
    lines = ["", "# The command."]
    if plan.request.cwd:
        lines.append(f'cd {quote(plan.request.cwd)} || w_fail "cannot enter the working folder"')
    words = []
    own = plan.request.arguments_at
    for index, word in enumerate(plan.command):
        if index in plan.secret_words:
            words.append(f'"$w_secret_word_{index}"')
        else:
            words.append(fillable(word) if plan.request.placeholders and index >= own else quote(word))
    lines.append("set -- \\")
    lines += [f"  {word} \\" for word in words[:-1]] + [f"  {words[-1]}"]
    lines += command_lines(plan)
    lines += profile_lines(plan)
    if plan.container is not None:
        lines += container_lines(plan, job.run_dir)
    return lines


def _where(plan: Plan) -> list[str]:
    """One line per rank in one file per node: where it really is, for `windlass plan` to be held against."""
    return [
        "",
        "# What this rank really got, one line in one file per node.",
        "w_got=",
        'while read -r w_key w_value; do [ "$w_key" = Cpus_allowed_list: ] && { w_got=$w_value; break; }; done'
        " < /proc/$$/status",
        'printf \'%s\\t%s\\t%s\\t%s\\t%s\\n\' "$w_rank" "$w_host" "$w_got" "$w_device" "$$"'
        ' >> "$WINDLASS_RUN_DIR/where/$w_node_rank" 2>/dev/null || :',
    ]


def _traps(plan: Plan) -> list[str]:
    """Signals are passed on by a script that stays the parent, from before it says that the rank is there."""
    if not plan.parent:
        return []
    sent = {"HUP": "HUP", "INT": "TERM", "TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}
    carrier = _carrier(plan)
    # Who has heard it itself is not told again: only an interrupt, which it ignores, or what came before it was there.
    told = '[ -n "$w_child" ] || ' if get_launcher(plan.launcher).reaches_groups else ""
    forward = [
        f"trap '{told if got == send else ''}w_forward {send}' {got}" for got, send in sent.items() if got != carrier
    ]
    lines = [
        "",
        "# This script stays the parent and reports the end: nobody else can wait for the rank.",
        "# A shell starts background commands with SIGINT ignored, so an interrupt is passed on as SIGTERM.",
        "w_child= w_early=",
        'w_forward() { if [ -n "$w_child" ]; then kill -"$1" "$w_child" 2>/dev/null; else w_early=$1; fi; }',
        *forward,
    ]
    if carrier is None:
        return lines
    return [
        *lines,
        f"# {plan.launcher} hands on SIG{carrier} alone, to all processes of the rank; the file says what is meant.",
        "# A rank that leaves when it was asked to must look well: others may need longer, and are not to be ended.",
        "w_asked=",
        "w_carried() {",
        f'  {{ read -r w_meant < "$WINDLASS_RUN_DIR/{SIGNAL_FILE}"; }} 2>/dev/null || w_meant={carrier}',
        "  case $w_meant in TERM|USR2) w_asked=1 ;; esac",
        """  if [ "$w_meant" != TERM ] || [ -z "$w_child" ]; then w_forward "$w_meant"; return; fi""",
        "  trap '' TERM; kill -TERM 0",
        "}",
        f"trap w_carried {carrier}",
    ]


def _carrier(plan: Plan) -> str | None:
    """`USR1`, where the launcher hands on only one signal and the script is there to say what it means."""
    carrier = get_launcher(plan.launcher).carrier
    return carrier.name.removeprefix("SIG") if carrier is not None and plan.parent else None


def _start(plan: Plan, *, watched: bool, live: bool) -> list[str]:
    """`watched`: a windlass reads what the ranks write; `live`: and some of them as it is written."""
    if not plan.parent:
        return ["", 'exec "$@"']
    carrier = _carrier(plan)
    launcher = get_launcher(plan.launcher)
    alarm = launcher.sends_alarm
    return [
        "",
        *(_NO_ALARM if alarm else ()),
        f"(trap '' {carrier}; exec \"$@\") <&0 &" if carrier else '"$@" <&0 &',
        "w_child=$!",
        *(_ALARM if alarm else ()),
        "# A signal that came before there was a rank; what has not become its program yet would not hear it.",
        'if [ -n "$w_early" ]; then (PATH=$w_path; sleep 1); w_forward "$w_early"; fi',
        "# The shell itself has nothing to say: it would write of a rank that a signal ended.",
        "exec 9>&2 2>/dev/null",
        'wait "$w_child"; w_code=$?',
        'while kill -0 "$w_child" 2>/dev/null; do wait "$w_child"; w_code=$?; done',
        "# A wait that a signal ended says so, even where the rank was gone by then: its own code is asked for again.",
        'if [ "$w_code" -gt 128 ]; then wait "$w_child"; w_last=$?; [ "$w_last" -eq 127 ] || w_code=$w_last; fi',
        'printf \'%s\\t%s\\t%s\\t%s\\n\' "$(PATH=$w_path; date +%s.%N)" "$w_rank" "$w_host" "$w_code"'
        ' >> "$WINDLASS_RUN_DIR/ends/$w_node_rank" 2>/dev/null || :',
        *(_LATE_END if launcher.hurries and carrier and watched else ()),
        "exec 2>&9 9>&-",
        *(_LAST_LINE if launcher.glues_last_lines and watched else ()),
        *(LIVE_END if live else ()),
        "trap - HUP INT TERM USR1 USR2",
        *(['[ -z "$w_asked" ] || exit 0'] if carrier else []),
        'exit "$w_code"',
    ]
