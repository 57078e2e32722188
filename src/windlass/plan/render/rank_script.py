"""The rank script: POSIX `sh` lines that every task runs before the user's command. Rendered from the plan.

It starts in a millisecond and needs nothing inside a container. Its sections are, in order: identity of the rank,
limits, caches, placement, variables, the command. It `exec`s the command, or stays its parent if the launcher would not
report which rank failed. Pure text. `tests` run it with real shells.
"""

from __future__ import annotations

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import SIGNAL_FILE
from windlass.base.notation.counts import counted, format_cpulist
from windlass.base.notation.shell import comment, expandable, fillable, quote
from windlass.model.plan import Plan, RestartPlan
from windlass.plan.cache import agents_folder, command_lines, view_folder_lines, view_lines
from windlass.plan.environment.modules import rank_activation_lines
from windlass.plan.environment.ranks import RANK_VARIABLES
from windlass.plan.profile import profile_lines
from windlass.plan.ray import ray_lines
from windlass.plan.render.parts import part
from windlass.plan.render.rank_lines import cache_lines, container_lines, live_command, live_start
from windlass.plan.render.variables import JobFacts, environment_lines

RESUME_ME = 85  # defined in windlass.runtime.codes (a test compares the two)
EXIT_BROKEN = 70
"""Exit code of a rank script that cannot start the command for a reason in the script."""


JOB_FILE = "job.env"
REQUEUE_FOLDER = "requeue"
"""Part of a run folder: an `scontrol` for a trainer that would requeue the job."""
REQUEUE_SAVED = f"{REQUEUE_FOLDER}/saved"
"""Written when the trainer has saved and asks for the requeue."""
HOOK_FOLDER = "h"
"""Part of the agents' directory on a node: files of the sampler for the ranks."""
MPS_FOLDER = "m"
"""The same for the pipes and logs of NVIDIA's MPS."""


def rank_script(plan: Plan, job: JobFacts) -> str:
    """The whole script, with a newline at the end."""
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
        _watch_variables(plan, job),
        agent_lines(plan, job),
        view_lines(plan, job.uid, job.run_id),
        part("requeue", folder=REQUEUE_FOLDER) if plan.trainer and plan.trainer.holds_requeue else [],
        _command(plan, job),
        _traps(plan),
        _where(plan),
        live_start(job.live),
        live_command(job.live) if job.live and not plan.parent else [],
        _start(plan, watched=job.job_file is None, live=bool(job.live)),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def requeue_script() -> str:
    """The `scontrol` of `REQUEUE_FOLDER`."""
    return "\n".join(part("scontrol")) + "\n"


def _head(plan: Plan) -> list[str]:
    return [
        "#!/bin/sh",
        *comment(
            f"windlass {plan.windlass} rank script: {plan.name} on {plan.site}, {counted(plan.nodes, 'node')} x "
            f"{counted(plan.ranks_per_node, 'rank')}. Made from plan.json in the same folder, for every task."
        ),
        *part("fail", code=str(EXIT_BROKEN)),
        *([f"trap '' {_carrier(plan)}  # a request may arrive before the rank starts"] if _carrier(plan) else []),
        *(["w_path=$PATH  # for commands of this script, whatever the plan sets for the ranks"] if plan.parent else []),
        "",
    ]


def _activation(plan: Plan) -> list[str]:
    """Activate an environment in a node-local directory, unless this was done before the launcher."""
    folder = plan.activate_on_node
    if folder is None:
        return []
    gone = f"--activate {folder} does not exist on this node. Push it with `windlass stage`"
    return part("activate", folder=quote(folder), gone=quote(gone), lines=rank_activation_lines(folder))


def _first_of(names: tuple[str, ...], otherwise: str) -> str:
    """`${A:-${B:-otherwise}}`"""
    text = otherwise
    for name in reversed(names):
        text = f"${{{name}:-{text}}}"
    return text


def _place(plan: Plan, job: JobFacts) -> list[str]:
    variables = get_launcher(plan.launcher).variables
    per_node = plan.ranks_per_node
    hint = f"none of {', '.join(variables.rank)} is set, so {plan.launcher} did not start this task"
    seen = _first_of(variables.world_size, str(plan.world_size))
    return part(
        "place",
        launcher=plan.launcher,
        rank=_first_of(variables.rank, ""),
        hint=quote(hint),
        local_rank=_first_of(variables.local_rank, f"$((w_rank % {per_node}))"),
        node_rank=_first_of(variables.node_rank, f"$((w_rank / {per_node}))"),
        world_size=str(plan.world_size),
        nodes=str(plan.nodes),
        ranks_per_node=str(per_node),
        seen=part("seen", seen=seen) if variables.world_size else (),
        job_file=[f". {quote(job.job_file)} || w_fail 'cannot read {JOB_FILE}'"] if job.job_file else (),
        master_addr=_known(job.master_addr, "WINDLASS_MASTER_ADDR"),
        master_port=_known(job.master_port, "WINDLASS_MASTER_PORT"),
        job_id=quote(job.job_id) if job.job_id is not None else "${WINDLASS_JOB_ID-}",
        run_dir=quote(job.run_dir),
        view=view_folder_lines(plan, job.uid, job.run_id),
    )


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
    """CPUs and device of this local rank, and binding if the launcher does not bind."""
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
        lines += part("taskset")
    return lines


def _workers(plan: Plan) -> list[str]:
    """Lines that list the addresses of all ranks as JSON strings for TF_CONFIG.

    Each rank has its own port above the master's.
    """
    if not any("${w_workers}" in (setting.value or "") for setting in plan.environment):
        return []
    suffix = plan.rendezvous.suffix
    name = f"${{w_line%%.*}}{suffix}" if suffix else "$w_line"  # by its name on the fabric, as the first host
    return part("workers", hosts=part("worker_hosts", name=name) if plan.nodes > 1 else "w_hosts=$w_master_addr")


def _rank_variables() -> list[str]:
    lines = ["", "# Variables that frameworks read."]
    return [*lines, *(f"export {variable.name}={fillable(variable.value)}" for variable in RANK_VARIABLES)]


def place_mark(job: JobFacts) -> str:
    """An environment entry, followed by the node's number, that identifies the processes of one start on a node."""
    return f"WINDLASS_PLACE={job.run_id}.{job.attempt}."


def _watch_variables(plan: Plan, job: JobFacts) -> list[str]:
    """Variables of the run for `windlass.init` and `windlass.Snapshot`."""
    lines: list[str] = []
    if job.deadline_s is not None:
        lines += ["", "# End of the time limit.", f"export WINDLASS_DEADLINE={job.deadline_s:.0f}"]
    if job.attempt is None:
        return lines
    lines += part("attempt", run_id=quote(job.run_id), attempt=str(job.attempt), mark=place_mark(job))
    lines += ["export WINDLASS_PARTNERS=1"] if plan.partners else []
    return lines + (part("beats", folder=expandable(job.beats)) if job.beats is not None else [])


def agent_lines(plan: Plan, job: JobFacts) -> list[str]:
    """Lines for what the agent of this node has made before the ranks: a start-up hook, and MPS.

    The hook is at the front of PYTHONPATH. If the agent has not made them, the rank runs without them. The cache's view
    comes after the hook and changes only paths below its roots.
    """
    lines: list[str] = []
    for service, name, folder in (("sampler", "hook", HOOK_FOLDER), ("mps", "mps", MPS_FOLDER)):
        if plan.agents is not None and service in plan.agents.services:
            own = f"{agents_folder(plan, job.uid, job.run_id)}/{folder}/{job.run_id}."
            lines += part(name, folder=expandable(own))
    return lines


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
    lines += ray_lines(plan, job)
    if plan.container is not None:
        lines += container_lines(plan, job.run_dir)
    return lines


def _where(plan: Plan) -> list[str]:
    """Lines that write the actual placement: one line per rank, one file per node. It is compared with the plan."""
    return part("where", seat=() if plan.parent else part("seat", pid="$$"))


def _traps(plan: Plan) -> list[str]:
    """Lines with which a script that stays the parent forwards signals.

    They come before the lines that report the rank's start.
    """
    if not plan.parent:
        return []
    sent = {"HUP": "HUP", "INT": "TERM", "TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}
    carrier = _carrier(plan)
    # A process that received the signal itself does not get it again. Exceptions are an interrupt, which it ignores,
    # and a signal that arrived before the process existed.
    told = '[ -n "$w_child" ] || ' if get_launcher(plan.launcher).reaches_groups else ""
    leaving, held = "", ""
    if _restart(plan):
        leaving, held = "w_leaving=1; ", '[ -z "$w_holding" ] || { echo end >&8; return; }; '
    forward = [
        f"trap '{leaving if send in {'HUP', 'TERM'} else ''}"
        f"{told if got == send and not (got == 'USR2' and plan.trainer) else ''}w_forward {send}' {got}"
        for got, send in sent.items()
        if got != carrier
    ]
    carried = part("carrier", launcher=plan.launcher, carrier=carrier, file=SIGNAL_FILE) if carrier else []
    return part("traps", forward=[*forward, *carried], meant=_meant(plan), held=held)


def _meant(plan: Plan) -> str:
    """A command that replaces SIGUSR2, the request to save and leave, by the signal on which the trainer does that."""
    if plan.trainer is None:
        return ""
    notice = plan.trainer.notice.removeprefix("SIG")
    return f'[ "$1" != USR2 ] || {f"set -- {notice}" if notice else "return 0"}; '


def _carrier(plan: Plan) -> str | None:
    """`USR1`, if the launcher forwards only one signal and the script stays to interpret it. Otherwise None."""
    carrier = get_launcher(plan.launcher).carrier
    return carrier.name.removeprefix("SIG") if carrier is not None and plan.parent else None


def _start(plan: Plan, *, watched: bool, live: bool) -> list[str]:
    """Lines that start the command.

    `watched`: a windlass process reads the output of the ranks. `live`: it also reads the output of some ranks while
    they write it.
    """
    if not plan.parent:
        return ["", 'exec "$@"']
    carrier = _carrier(plan)
    launcher = get_launcher(plan.launcher)
    alarm = launcher.sends_alarm
    # Without a handler, SIGUSR2 would end a trainer at once. An ignored signal stays ignored in the command.
    deaf = [*([carrier] if carrier else []), *(["USR2"] if plan.trainer and plan.trainer.notice != "SIGUSR2" else [])]
    end = [
        *(part("last_line") if launcher.glues_last_lines and watched else ()),
        *(part("live_end") if live else ()),
    ]
    restart = _restart(plan)
    standby = restart is not None and restart.standby
    seat = part("seat", pid="$w_child")
    command = "w_begin" if standby else "exec"
    quiet = f"trap '' {' '.join(deaf)}; " if deaf else ""
    child = f'({quiet}{command} "$@") <&0{" 8>&-" if restart else ""} &'
    return part(
        "start",
        no_alarm=part("no_alarm") if alarm else (),
        loop=[*_orders(plan, restart), *part("loop"), *(part("forked") if standby else ())] if restart else (),
        child=child if deaf or restart else '"$@" <&0 &',
        pid=part("pid") if restart else (),
        seat=part("own_seat", seat=seat) if standby else seat,
        alarm=part("alarm") if alarm else (),
        late_end=part("late_end") if launcher.hurries and carrier and watched else (),
        end=end,
        hold=part("hold", resume=str(RESUME_ME)) if restart else (),
        asked=part("asked") if carrier else (),
    )


def _restart(plan: Plan) -> RestartPlan | None:
    """How this script starts its rank again after a failure, or None if it ends then."""
    restart = plan.agents.restart if plan.agents is not None else None
    return restart if restart is not None and restart.in_place else None


def _orders(plan: Plan, restart: RestartPlan) -> list[str]:
    """Lines that prepare the script for orders, and start the standby process of the node."""
    if not restart.standby:
        return part("orders")
    words = " ".join(quote(word) for word in plan.command[1 : 1 + restart.options])
    return [
        *part("orders"),
        *part("standby", python=f'"$1" {words}'.strip(), options=str(restart.options)),
    ]
