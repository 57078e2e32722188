"""Choose the partition, queue or QOS of a job and check it against the site's table of limits. Pure.

A scheduler reports after minutes, or never, that a job does not fit its queue. The table is in the site's file and is
checked before a job is submitted. A job that must fail is an error. A job that may fail gets a remark.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from windlass.backends.schedulers.walltime import clock_text, parse_walltime
from windlass.base.notation.counts import counted
from windlass.errors import UsageError, nearest
from windlass.model.finding import Finding
from windlass.model.request import Request
from windlass.model.site import QueueSpec, Site

_SHORT_S = 3600


class QueueChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The queue that the job names. None leaves the choice to the scheduler."""

    partition: str | None
    qos: str | None
    remarks: tuple[Finding, ...] = ()


def choose_queue(request: Request, site: Site, nodes: int) -> QueueChoice:
    """The queue for a job with this many nodes.

    A queue that the user named is checked. Otherwise a queue that fits is chosen: the default, or the first of the
    table. Raises `UsageError` for a job that no scheduler would accept there.
    """
    default = site.file.scheduler.default_partition
    given = QueueChoice(partition=request.partition or default, qos=request.qos)
    table = site.file.queues
    if not table:
        return given
    seconds = parse_walltime(request.time) if request.time else None
    remarks: list[Finding] = []
    partition = _named(site, request.partition, ("partition", "queue"), "--partition", remarks)
    qos = _named(site, request.qos, ("qos",), "--qos", remarks)
    if partition or qos or request.partition or request.qos:
        _refuse_account(partition, request.account)
        remarks += _checked(site, qos or partition, nodes, seconds)
        if partition and not partition.devices:
            raise _without_devices(site, partition)
        return msgspec.structs.replace(given, remarks=tuple(remarks))
    chosen = _first_that_fits(table, default, nodes, seconds, overlaid=site.file.partitions.keys())
    if chosen is None:
        wanted = _default(table, default)
        return msgspec.structs.replace(given, remarks=tuple(_checked(site, wanted, nodes, seconds, chosen=True)))
    if chosen.default or chosen.name == default:
        return msgspec.structs.replace(given, remarks=_short(site, chosen, nodes, seconds))
    note = Finding(
        "queue-chosen", "note", f"{chosen.kind} {chosen.name}: {_because(site, chosen, default, nodes, seconds)}"
    )
    if chosen.kind == "qos":
        return QueueChoice(partition=given.partition, qos=chosen.name, remarks=(note,))
    return QueueChoice(partition=chosen.name, qos=None, remarks=(note,))


def check_queue(request: Request, queues: Sequence[QueueSpec], nodes: int, default: str | None) -> None:
    """Check a job against the limits that the scheduler reports.

    Raises `UsageError` for a misspelt partition, too many nodes or too long a time. A partition that the scheduler does
    not list is not checked.
    """
    names = [queue.name for queue in queues]
    name = request.partition or default
    queue = next((q for q in queues if q.name == name or (name is None and q.default)), None)
    if name and queue is None:
        refuse_slip(name, names)
    seconds = parse_walltime(request.time) if request.time else None
    _refuse_account(queue, request.account)
    problem = _problem(queue, nodes, seconds) if queue else None
    if queue is not None and problem:
        fitting = [q.name for q in queues if q is not queue and not q.by_name and _problem(q, nodes, seconds) is None]
        hint = f"these accept it: {', '.join(fitting)}" if fitting else "change --nodes or --time"
        raise UsageError(f"{queue.kind} {queue.name} {problem}", hint=hint)


def refuse_slip(name: str, names: Sequence[str]) -> None:
    """Raise `UsageError` for a partition name that is almost one of `names`."""
    close = nearest(name, names)
    if close and is_slip(name, close):
        raise UsageError(
            f"--partition {name}: there is no such partition", hint=f"did you mean {close}? known: {', '.join(names)}"
        )


def _refuse_account(queue: QueueSpec | None, account: str | None) -> None:
    if queue is not None and queue.accounts and account and account not in queue.accounts:
        raise UsageError(
            f"{queue.kind} {queue.name} is not for the account {account}", hint=f"it is for {', '.join(queue.accounts)}"
        )


def refuse_incomplete(request: Request, site: Site) -> None:
    """Raise `UsageError` if the site's scheduler refuses jobs without an account or a time limit and one is missing."""
    spec = site.file.scheduler
    if spec.account_required and not request.account:
        raise UsageError(
            f"{site.name} needs an account", hint="add --account NAME; `windlass init --account NAME` saves it"
        )
    if spec.time_required and not request.time:
        raise UsageError(f"{site.name} refuses jobs without a time limit", hint="add --time, e.g. --time 1h")


def queue_gpus(site: Site, name: str | None, gpus: int | None) -> bool:
    """Whether this queue counts GPUs instead of nodes. Raises `UsageError` for a number that it does not offer."""
    queue = next((q for q in site.file.queues if q.name == name and q.kind != "qos"), None)
    if queue is None or not queue.gpus:
        return False
    if gpus not in queue.gpus:
        given = ", ".join(str(count) for count in queue.gpus)
        raise UsageError(
            f"{site.name}: queue {queue.name} gives {given} GPUs, not {gpus or 0}",
            hint="give one of them with --gpus-per-node",
        )
    return True


def _short(site: Site, queue: QueueSpec, nodes: int, seconds: int | None) -> tuple[Finding, ...]:
    """A remark for a job without `--time` in a queue with a short limit, if another queue allows more time."""
    if seconds is not None or queue.time_max is None or parse_walltime(queue.time_max) > _SHORT_S:
        return ()
    others = (q for q in site.file.queues if q.kind == queue.kind and q.devices and not q.by_name)
    longer = [q.name for q in others if q is not queue and _problem(q, nodes, _SHORT_S + 1) is None]
    if not longer:
        return ()
    text = f"without --time the job goes to {queue.kind} {queue.name}, which ends it after {queue.time_max}"
    return (Finding("queue-short", "note", text, f"--time 2h takes {longer[0]}"),)


def _named(site: Site, name: str | None, kinds: tuple[str, ...], flag: str, remarks: list[Finding]) -> QueueSpec | None:
    """The table's row for a name that the user gave.

    Raises `UsageError` for a name that is almost a known one.
    """
    rows = [queue for queue in site.file.queues if queue.kind in kinds]
    if name is None or not rows:
        return None
    found = next((queue for queue in rows if queue.name == name), None)
    if found or name in site.file.partitions:
        return found
    names = [queue.name for queue in rows]
    close = nearest(name, names)
    if close and is_slip(name, close):
        raise UsageError(
            f"{flag} {name}: {site.name} has no such {rows[0].kind}",
            hint=f"did you mean {close}? known: {', '.join(names)}; give a new one with --directive",
        )
    text = f"{flag} {name} is not among the {_plural(rows[0].kind)} in windlass's catalog entry of {site.name}"
    remarks.append(Finding("queue-unknown", "warning", text, f"known: {', '.join(names)}"))
    return None


def is_slip(name: str, close: str) -> bool:
    """Whether one letter is wrong, missing or extra, two are swapped, or only the case differs."""
    a, b = name.lower(), close.lower()
    if a == b:
        return True
    if len(a) == len(b):
        odd = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        return len(odd) == 1 or (len(odd) == 2 and a[odd[0]] == b[odd[1]] and a[odd[1]] == b[odd[0]])
    short, long = sorted((a, b), key=len)
    return len(long) - len(short) == 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def _checked(
    site: Site, queue: QueueSpec | None, nodes: int, seconds: int | None, *, chosen: bool = False
) -> list[Finding]:
    """Return nothing if the job fits, and a warning if the limits are an unconfirmed report.

    Otherwise raises `UsageError`.
    """
    problem = _problem(queue, nodes, seconds) if queue else None
    if queue is None or problem is None:
        return []
    others = (q for q in site.file.queues if q.kind == queue.kind and q.devices and (q.nodes_max or not q.by_name))
    fitting = [q.name for q in others if q is not queue and _problem(q, nodes, seconds) is None]
    hint = f"these accept it: {', '.join(fitting)}" if fitting else "change --nodes or --time"
    text = f"{site.name}: {queue.kind} {queue.name} {problem}"
    if not queue.firm:
        return [Finding("queue-limit", "warning", f"{text}, according to an unconfirmed report", hint)]
    raise UsageError(f"{text}, and no other one accepts the job" if chosen and not fitting else text, hint=hint)


def _without_devices(site: Site, queue: QueueSpec) -> UsageError:
    """The error for a queue without accelerators: the site's entry describes its accelerator nodes only."""
    others = [q.name for q in site.file.queues if q.devices and q.kind == queue.kind and not q.by_name]
    return UsageError(
        f"{site.name}: {queue.kind} {queue.name} has nodes without accelerators",
        hint=f"with accelerators: {', '.join(others)}; for CPU nodes, write a site file and give it with --site",
    )


def _first_that_fits(
    table: Sequence[QueueSpec], default: str | None, nodes: int, seconds: int | None, overlaid: Container[str]
) -> QueueSpec | None:
    """The default queue if it fits, then the first of its kind that fits, then a QOS for jobs of this size.

    A partition whose nodes differ is never chosen, because the plan was made for the default's nodes.
    """
    wanted = _default(table, default)
    if wanted is not None and _problem(wanted, nodes, seconds) is None:
        return wanted
    kind = wanted.kind if wanted else table[0].kind
    usable = [queue for queue in table if queue.devices and not queue.by_name and queue.name not in overlaid]
    fitting = [queue for queue in usable if _problem(queue, nodes, seconds) is None]
    for_size = (queue for queue in fitting if queue.kind == "qos" and queue.nodes_min is not None)
    return next((queue for queue in fitting if queue.kind == kind), next(for_size, None))


def _default(table: Sequence[QueueSpec], default: str | None) -> QueueSpec | None:
    return next((q for q in table if q.default or (default and q.name == default and q.kind != "qos")), None)


def _problem(queue: QueueSpec, nodes: int, seconds: int | None) -> str | None:
    """Why this queue refuses the job, as the rest of a sentence. None if no known limit refuses it."""
    if queue.nodes_min is not None and nodes < queue.nodes_min:
        return f"takes jobs of {queue.nodes_min} nodes or more, not {nodes}"
    if queue.nodes_max is not None and nodes > queue.nodes_max:
        return f"takes jobs of at most {counted(queue.nodes_max, 'node')}, not {nodes}"
    limit = next((b.time_max for b in queue.bins if nodes <= b.nodes_max), queue.time_max)
    if seconds is not None and limit is not None and seconds > parse_walltime(limit):
        size = f" to {counted(nodes, 'node')}" if queue.bins else ""
        return f"gives at most {clock_text(parse_walltime(limit))}{size}, not {clock_text(seconds)}"
    return None


def _because(site: Site, chosen: QueueSpec, default: str | None, nodes: int, seconds: int | None) -> str:
    wanted = _default(site.file.queues, default)
    if wanted is not None:
        return f"{wanted.name}, the default of {site.name}, {_problem(wanted, nodes, seconds)}"
    time = f" for {clock_text(seconds)}" if seconds is not None else ""
    return f"the first of {site.name} that takes {counted(nodes, 'node')}{time}"


def _plural(kind: str) -> str:
    return {"qos": "qualities of service"}.get(kind, f"{kind}s")
