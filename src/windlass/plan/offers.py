"""Choose nodes for a job on a cluster without a site file, from the scheduler's partitions. Pure.

Different GPU types are different devices, and nodes of a partition may differ. If the request is ambiguous, the error
names the options that select one kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from windlass.base.notation.counts import counted
from windlass.errors import UsageError, nearest
from windlass.model.request import NodeOffer, PartitionOffer, Request
from windlass.model.site import QueueSpec, Site
from windlass.plan.queues import check_queue, refuse_slip

_CONSTRAINT = re.compile(r"(?:--constraint[= ]|-C ?)\s*([\w.&,-]+)")
_PLANNED = re.compile(
    r"(?P<name>--gres|--gpus-per-node|--gpus-per-task|--gpus|-G|--ntasks-per-node|--ntasks|-n|--nodes|-N)(?:[= ]|\Z)"
    r"\s*(?P<value>\S*)"
)
_OPTIONS = {"--ntasks-per-node": "--ranks-per-node", "--nodes": "--nodes", "-N": "--nodes"}
_OVERCOMMIT = {"--overcommit", "-O", "--oversubscribe", "-s"}


def choose_offer(
    request: Request, site: Site, offers: Sequence[PartitionOffer], queues: Sequence[QueueSpec] = ()
) -> PartitionOffer | None:
    """The job's partition with the kinds of nodes that the request may get, all with devices of one type.

    None if the scheduler reports nothing about the partition. Raises `UsageError` if the request is ambiguous.
    """
    name = request.partition or site.file.scheduler.default_partition
    offer = _partition(name, offers) if name else _default(offers, queues)
    if name is None and request.gpus_per_node != 0 and (offer is None or not offer.gpus_per_node):
        _ask_for_partition(offer, offers)
    if offer is None:
        return None
    kinds = _with_features(request, offer)
    if request.gpus_per_node == 0:
        kinds = tuple(kind for kind in kinds if not kind.gpus) or kinds
    elif any(kind.gpus for kind in kinds):
        kinds = _of_one_type(request, offer, tuple(kind for kind in kinds if kind.gpus))
    elif request.gpus_per_node and any(other.gpus_per_node for other in offers):
        _ask_for_partition(offer, offers)
    return msgspec.structs.replace(offer, kinds=kinds)


def check_size(offer: PartitionOffer, nodes: int, ranks_per_node: int, request: Request) -> None:
    """Raise `UsageError` for a job that the partition can never start."""
    where = f"partition {offer.name}" if offer.name else "this cluster"
    there = sum(kind.nodes for kind in offer.kinds)
    if nodes > there:
        raise UsageError(
            f"{counted(nodes, 'node')}, but {where} has {there} such nodes", hint=f"--nodes {there} at most"
        )
    cpus = max(kind.cpus for kind in offer.kinds)
    if ranks_per_node > cpus and not {directive.split("=")[0] for directive in request.directives} & _OVERCOMMIT:
        raise UsageError(
            f"{ranks_per_node} ranks per node, but a node of {where} has {counted(cpus, 'CPU')}",
            hint=f"--ranks-per-node {cpus} at most",
        )


def check_limits(
    request: Request, site: Site, queues: Sequence[QueueSpec], accounts: Sequence[str], nodes: int
) -> None:
    """Raise `UsageError` if the scheduler's own limits or associations do not allow the job."""
    check_queue(request, queues, nodes, site.file.scheduler.default_partition)
    if request.account and accounts and request.account not in accounts:
        close = nearest(request.account, accounts)
        known = ", ".join(accounts)
        raise UsageError(
            f"--account {request.account} is not among your accounts",
            hint=f"did you mean {close}? yours: {known}" if close else f"yours: {known}",
        )


def refuse_planned_directives(directives: Iterable[str]) -> None:
    """Raise `UsageError` for a directive that would change nodes, ranks or devices of the plan."""
    for directive in directives:
        found = _PLANNED.match(directive)
        if found is None or (found["name"] == "--gres" and not found["value"].startswith("gpu")):
            continue
        value = found["value"].removeprefix("gpu:")
        option = _OPTIONS.get(found["name"], "--gpus-per-node" if "g" in found["name"].lower() else "--ranks-per-node")
        exact = found["name"] in {"--gres", "--gpus-per-node", *_OPTIONS} and value
        raise UsageError(
            f"--directive {directive}: the plan would not contain its effect",
            hint=f"say {option} {value if exact else 'N'}",
        )


def _default(offers: Sequence[PartitionOffer], queues: Sequence[QueueSpec]) -> PartitionOffer | None:
    names = {queue.name for queue in queues if queue.default}
    found = [*(offer for offer in offers if offer.name in names), *(offer for offer in offers if offer.default)]
    return next(iter(found), offers[0] if len(offers) == 1 else None)


def _partition(name: str, offers: Sequence[PartitionOffer]) -> PartitionOffer | None:
    by_name = {offer.name: offer for offer in offers}
    if name not in by_name and "" not in by_name:  # if nodes belong to no queue, others may have that name
        refuse_slip(name, tuple(by_name))
    return by_name.get(name, by_name.get(""))


def _ask_for_partition(offer: PartitionOffer | None, offers: Iterable[PartitionOffer]) -> None:
    rich = [other for other in offers if other.gpus_per_node and other.name]
    if not rich:
        return
    text = f"the default partition {offer.name}".rstrip() + " has no GPUs" if offer else "there is no default partition"
    choices = ", ".join(f"--partition {other.name} ({_kinds_text(other.kinds)})" for other in rich)
    raise UsageError(f"{text}, and others have", hint=f"say {choices}, or --device cpu for nodes without")


def _kinds_text(kinds: Iterable[NodeOffer]) -> str:
    """Text such as `8 nodes with 4 a100`."""
    return ", ".join(
        f"{counted(kind.nodes, 'node')} with {count} {name or 'GPUs'}" for kind in kinds for name, count in kind.gpus
    )


def _with_features(request: Request, offer: PartitionOffer) -> tuple[NodeOffer, ...]:
    """The kinds of nodes with the features of --directive --constraint, or all if it is not a plain list."""
    found = [match[1] for directive in request.directives if (match := _CONSTRAINT.fullmatch(directive))]
    wanted = {feature for text in found for feature in re.split("[&,]", text)}
    kinds = tuple(kind for kind in offer.kinds if wanted <= set(kind.features))
    known = sorted({feature for kind in offer.kinds for feature in kind.features})
    if wanted and not kinds and known:
        raise UsageError(
            f"no node of partition {offer.name} has the feature {'&'.join(sorted(wanted))}",
            hint=f"known features: {', '.join(known)}",
        )
    return kinds or offer.kinds


def _of_one_type(request: Request, offer: PartitionOffer, kinds: tuple[NodeOffer, ...]) -> tuple[NodeOffer, ...]:
    """The kinds, each with the one type of devices that the job uses."""
    least = request.gpus_per_node or 1
    fitting = [
        (kind, name, count)
        for kind in kinds
        for name, count in kind.gpus
        if request.gpu_type in {None, name} and count >= least
    ]
    choices = {(name, count if request.gpus_per_node is None else 0) for _, name, count in fitting}
    if len(choices) > 1:
        raise UsageError(
            f"the GPUs of {f'partition {offer.name}' if offer.name else 'the nodes'} differ: {_kinds_text(kinds)}",
            hint=f"say which: {', '.join(_choices(request, kinds))}",
        )
    if not fitting and request.gpu_type is not None:
        raise UsageError(
            f"no node of partition {offer.name} has {least} GPUs of type {request.gpu_type}",
            hint=f"there are: {', '.join(_choices(request, kinds))}",
        )
    if not fitting:
        return kinds
    return tuple(msgspec.structs.replace(kind, gpus=((name, count),)) for kind, name, count in fitting)


def _choices(request: Request, kinds: Sequence[NodeOffer]) -> Iterable[str]:
    """The options that select each kind of device: its type, or a feature that only its nodes have."""
    for kind in kinds:
        others = {feature for other in kinds if other is not kind for feature in other.features}
        own = next((feature for feature in kind.features if feature not in others), None)
        for name, count in kind.gpus:
            if name:
                yield f"--gpus-per-node {name}:{count}"
            elif own:
                yield f"--directive --constraint={own} ({count} GPUs)"
            else:
                yield f"--gpus-per-node {request.gpus_per_node or count}"
