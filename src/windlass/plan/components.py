"""Plan a job file: place its components on nodes and cores, then plan each one like a run of its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.notation.hostlist import fold_hostlist
from windlass.errors import UsageError, nearest
from windlass.model.finding import SERIOUS, worst_first
from windlass.model.plan import Plan, Rendezvous
from windlass.model.request import Component, Request
from windlass.model.topology import Core, Topology
from windlass.plan.inputs import PlanningContext, Secrets
from windlass.plan.plan import make_plan
from windlass.plan.shape import choose_hosts, device_numbers

_FIELDS = ("addr", "port", "hosts")
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_-]+)\.(" + "|".join(_FIELDS) + r")\}")
_DOTTED = re.compile(r"\{([A-Za-z0-9_-]+)\.([a-z]+)\}")
_MAX_NODES = 10_000


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one component: the numbers of its nodes in the job, and what it may use on each of them."""

    nodes: tuple[int, ...]
    cores: tuple[Core, ...] | None = None
    devices: tuple[int, ...] | None = None
    """None, for both: the whole node."""


def plan_whole(request: Request, context: PlanningContext) -> tuple[Plan, Secrets]:
    """Plan a request, and each component if it is the request of a job file."""
    if not request.components:
        return make_plan(request, context)
    check_components(request.components)
    shares = place(request, context)
    top_request, top_context = _around(request, context, shares)
    top, secrets = make_plan(top_request, top_context)
    made = [
        _planned(one, share, top, part, index / len(shares), 1 / len(shares))
        for index, (one, (share, part)) in enumerate(
            zip(request.components, part_contexts(shares, top, context), strict=True)
        )
    ]
    parts = tuple(plan for plan, _ in made)
    masked = tuple(
        msgspec.structs.replace(one, request=_as_asked(part.request, one.request))
        for one, part in zip(request.components, parts, strict=True)
    )
    whole = msgspec.structs.replace(top.request, components=masked, nodes=request.nodes, ranks_per_node=None)
    kept = [remark for remark in top.remarks if remark.kind not in {"idle-devices", "devices-unused"}]
    kept += [
        msgspec.structs.replace(remark, subject=part.name)
        for part in parts
        for remark in part.remarks
        if remark.severity in SERIOUS
    ]
    plan = msgspec.structs.replace(top, request=whole, parts=parts, remarks=worst_first(kept))
    return plan, msgspec.structs.replace(secrets, parts=tuple(hidden for _, hidden in made))


def _as_asked(masked: Request, asked: Request) -> Request:
    """Return the masked request with the sizes of the job file, from which a later job plans again."""
    return msgspec.structs.replace(
        masked, nodes=asked.nodes, gpus_per_node=asked.gpus_per_node, name=asked.name, hosts=None
    )


def _around(request: Request, context: PlanningContext, shares: Sequence[Share]) -> tuple[Request, PlanningContext]:
    """Return the request and the context of the job that contains the components. Its plan starts nothing."""
    used = 1 + max(index for share in shares for index in share.nodes)
    ranks = 1
    if context.allocation is None and not context.topology.cores:  # the scheduler counts tasks, not cores
        ranks = max(
            sum(
                one.cores_per_node or one.request.ranks_per_node or 1
                for one, share in zip(request.components, shares, strict=True)
                if node in share.nodes
            )
            for node in range(used)
        )
    nodes = request.nodes or used
    around = msgspec.structs.replace(request, components=(), nodes=nodes, ranks_per_node=ranks)
    return around, msgspec.structs.replace(context, parts=())


def part_contexts(
    shares: Sequence[Share], top: Plan, context: PlanningContext
) -> Iterator[tuple[Share, PlanningContext]]:
    """Yield each component's context: its hosts of the allocation, and its share of the node."""
    hosts: tuple[str, ...] = ()
    if context.allocation is not None:
        hosts = choose_hosts(context.allocation.hosts, top.nodes, context.avoided_hosts)
    for share, part in zip(shares, context.parts, strict=True):
        allocation, topology = context.allocation, context.topology
        if allocation is not None:
            mine = tuple(hosts[index] for index in share.nodes)
            allocation = msgspec.structs.replace(allocation, hosts=mine, tasks_per_node=None, uneven_tasks=())
        devices = None
        if share.cores is not None or share.devices is not None:
            devices, topology = len(topology.devices), _limited(topology, share)
        yield (
            share,
            msgspec.structs.replace(
                part, allocation=allocation, topology=topology, devices_of_node=devices, busy_hosts=(), bad_hosts=()
            ),
        )


def _limited(topology: Topology, share: Share) -> Topology:
    cpus = tuple(sorted(cpu for core in share.cores or () for cpu in core.cpus))
    kept = tuple(device for device in topology.devices if device.index in (share.devices or ()))
    return msgspec.structs.replace(topology, allowed=cpus or topology.allowed, devices=kept)


def _planned(
    one: Component, share: Share, top: Plan, context: PlanningContext, begin: float, width: float
) -> tuple[Plan, Secrets]:
    """Plan one component. Its ports are in a range that no other component uses: `begin` and `width` are fractions."""
    hosts = fold_hostlist(context.allocation.hosts) if context.allocation is not None else None
    gpus = one.request.gpus_per_node
    if share.devices is not None and context.devices_of_node:
        gpus = len(share.devices)
    name = one.name if one.request.name is None else one.request.name
    request = msgspec.structs.replace(
        one.request, hosts=hosts, nodes=len(share.nodes), gpus_per_node=gpus, name=name, grace_s=top.grace_s
    )
    try:
        plan, secrets = make_plan(request, context)
    except UsageError as error:
        raise UsageError(f"{one.where()}: {error.message}", hint=error.hint) from None
    rule = plan.rendezvous
    span = max(2, int(rule.port_span * width))
    rule = msgspec.structs.replace(rule, port_base=rule.port_base + int(rule.port_span * begin), port_span=span // 2)
    return msgspec.structs.replace(
        plan, rendezvous=rule, directives=(), request=msgspec.structs.replace(plan.request, hosts=None)
    ), secrets


def service_rule(one: Component, plan: Plan) -> Rendezvous:
    """Return the rule for `{NAME.port}`: the fixed port, or a port next to those of the component's rendezvous."""
    rule = plan.rendezvous
    return msgspec.structs.replace(rule, port_base=rule.port_base + rule.port_span, fixed_port=one.port)


# Checks that need no machine


def check_components(components: Sequence[Component]) -> None:
    """Check names, needs and placeholders. Raises `UsageError` with the place in the job file."""
    names = [one.name for one in components]
    for one in components:
        for need in one.needs:
            if need not in names or need == one.name:
                raise _unknown(one.where("needs"), need, [name for name in names if name != one.name])
        texts = [("args" if one.request.kind == "script" else "command", text) for text in one.request.command]
        texts += [("env", value) for _, value in one.request.env]
        for key, name in ((key, match[1]) for key, text in texts for match in _PLACEHOLDER.finditer(text)):
            if name not in names:
                raise _unknown(one.where(key), name, names)
        for key, match in ((key, match) for key, text in texts for match in _DOTTED.finditer(text)):
            close = nearest(match[2], _FIELDS)
            if match[1] in names and match[2] not in _FIELDS and close:
                raise UsageError(f"{one.where(key)}: unknown placeholder {match[0]}", hint=f"did you mean {close!r}?")
    _check_order(components)
    for one in components:
        if one.ready is not None and one.ready.finished and one.end == "service":
            raise UsageError(f"{one.where('ready')}: a service does not finish", hint="use port, http, log or file")
    if all(one.end in {"service", "ignore"} for one in components):
        raise UsageError(
            f"{components[0].file}: no component decides when the job is done", hint='give one of them end = "wait"'
        )


def _unknown(where: str, name: str, names: Sequence[str]) -> UsageError:
    close = nearest(name, names)
    hint = f"did you mean {close!r}?" if close else f"the components are {', '.join(names)}"
    return UsageError(f"{where}: there is no component {name!r}", hint=hint)


def _check_order(components: Sequence[Component]) -> None:
    left = {one.name: set(one.needs) for one in components}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    if left:
        first = next(one for one in components if one.name in left)
        path = [first.name]
        while path[-1] not in path[:-1]:
            path.append(next(name for name in left if name in left[path[-1]]))
        circle = " needs ".join(path[path.index(path[-1]) :])
        raise UsageError(f"{first.where('needs')}: a cycle: {circle}", hint="one of them has to start first")


# Placement


class _Node:
    """What is still free on one node of the job."""

    def __init__(self, cores: Sequence[Core], devices: Sequence[int]) -> None:
        self.cores = list(cores)
        self.devices = list(devices)
        self.used: list[Component] = []
        self.taken = False
        """A component uses the whole node."""


def place(request: Request, context: PlanningContext) -> tuple[Share, ...]:
    """Place the components in the order of the file, each on the first nodes that have enough left.

    Raises `UsageError` for a component that does not fit, and for two components with one port on one node.
    """
    topology = context.topology
    cores = topology.usable_cores()
    unit = request.device_unit or context.site.file.devices.unit
    numbers = device_numbers(topology, unit, context.site.file.node.tiles_per_card)
    alone = context.allocation is None and (request.scheduler or context.site.file.scheduler.kind) == "none"
    have = len(context.allocation.hosts) if context.allocation is not None else 1 if alone else _MAX_NODES
    limit = min(request.nodes or have, have)
    nodes: list[_Node] = []

    def node(index: int) -> _Node:
        while len(nodes) <= index:
            nodes.append(_Node(cores, numbers))
        return nodes[index]

    shares: dict[str, Share] = {}
    flexible = [one for one in request.components if not one.shares] if alone else []
    for one in request.components:
        if one not in flexible:
            shares[one.name] = _fit(one, node, limit, topology, bool(cores))
    for index, one in enumerate(flexible):
        shares[one.name] = _left_over(one, node(0), len(flexible) - index)
    for each in nodes:
        _check_ports(each.used)
    return tuple(shares[one.name] for one in request.components)


def _fit(one: Component, node: Callable[[int], _Node], limit: int, topology: Topology, known: bool) -> Share:
    """Take the first nodes with the same free devices and cores."""
    wanted = one.request.nodes or 1
    if not one.shares:
        whole = [index for index in range(limit) if not node(index).used][:wanted]
        if len(whole) < wanted:
            raise _too_few(one, f"{counted(wanted, 'whole node')}", limit)
        for index in whole:
            node(index).used.append(one)
            node(index).taken = True
        return Share(nodes=tuple(whole))
    devices, count = one.request.gpus_per_node or 0, _core_count(one, topology)
    if known:
        _check_size(one, devices, count, topology)
    chosen: list[int] = []
    free_devices, free_cores = {d.index for d in topology.devices}, {c.id for c in topology.usable_cores()}
    for index in range(limit):
        there = node(index)
        both = free_devices & set(there.devices), free_cores & {core.id for core in there.cores}
        if not there.taken and (not known or (len(both[0]) >= devices and len(both[1]) >= count)):
            free_devices, free_cores = both
            chosen.append(index)
        if len(chosen) == wanted:
            break
    else:
        raise _too_few(one, f"{counted(wanted, 'node')} with {_size_text(devices, count)} free", limit)
    mine = tuple(sorted(free_devices)[:devices])
    near = {device.numa for device in topology.devices if device.index in mine}
    order = sorted(
        (core for core in topology.usable_cores() if core.id in free_cores), key=lambda c: (c.numa not in near, c.id)
    )
    taken = tuple(sorted(order[:count], key=lambda core: core.id))
    for index in chosen:
        there = node(index)
        there.devices = [number for number in there.devices if number not in mine]
        there.cores = [core for core in there.cores if core not in taken]
        there.used.append(one)
    return Share(nodes=tuple(chosen), cores=taken, devices=mine)


def _core_count(one: Component, topology: Topology) -> int:
    """The cores per node: as requested, otherwise in proportion to the devices, at least one per rank."""
    if one.cores_per_node is not None:
        return one.cores_per_node
    usable, devices = len(topology.usable_cores()), len(topology.devices)
    share = usable * (one.request.gpus_per_node or 0) // devices if devices else 0
    return max(share, one.request.ranks_per_node or 1)


def _check_size(one: Component, devices: int, cores: int, topology: Topology) -> None:
    for key, asked, there, what in (
        ("gpus_per_node", devices, len(topology.devices), "device"),
        ("cores_per_node", cores, len(topology.usable_cores()), "usable core"),
    ):
        if asked > there:
            raise UsageError(
                f"{one.where(key)}: {counted(asked, what)} per node, but a node has {there}",
                hint="ask for fewer, or for more nodes",
            )


def _left_over(one: Component, node: _Node, others: int) -> Share:
    """Take an equal part of what is left of this machine, or all of it if there is less than one core for each."""
    wanted = one.request.nodes or 1
    if wanted > 1:
        raise _too_few(one, counted(wanted, "node"), 1)
    each, gpus = len(node.cores) // others, len(node.devices) // others
    cores, devices = tuple(node.cores[: each or None]), tuple(node.devices[: gpus or None])
    if each:
        node.cores = node.cores[each:]
    if gpus:
        node.devices = node.devices[gpus:]
    node.used.append(one)
    return Share(nodes=(0,), cores=cores, devices=devices)


def _too_few(one: Component, what: str, nodes: int) -> UsageError:
    return UsageError(
        f"{one.where('nodes')}: no room for {what}: the job has {counted(nodes, 'node')}",
        hint="ask for more nodes, or let components share nodes with cores_per_node and gpus_per_node",
    )


def _size_text(devices: int, cores: int) -> str:
    return " and ".join([*([counted(devices, "device")] if devices else []), counted(cores, "core")])


def _check_ports(used: Sequence[Component]) -> None:
    seen: dict[int, Component] = {}
    for one in used:
        if one.port is None:
            continue
        if not 0 < one.port < 65536:
            raise UsageError(f"{one.where('port')}: {one.port} is not a port", hint="give a number from 1 to 65535")
        if one.port in seen:
            raise UsageError(
                f"{one.where('port')}: {seen[one.port].name} uses port {one.port} on the same node",
                hint="leave one of them out: windlass chooses a free port for it",
            )
        seen[one.port] = one


# Placeholders


def filled(plan: Plan, values: Mapping[str, str]) -> Plan:
    """Return a component's plan with `{NAME.addr}`, `{NAME.port}` and `{NAME.hosts}` replaced by these values."""

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values.get(match[0][1:-1], match[0]), text)

    environment = tuple(
        msgspec.structs.replace(setting, value=fill(setting.value))
        if setting.value is not None and setting.origin.scope == "flag"
        else setting
        for setting in plan.environment
    )
    request = msgspec.structs.replace(plan.request, env=tuple((name, fill(value)) for name, value in plan.request.env))
    command = tuple(map(fill, plan.command))
    return msgspec.structs.replace(plan, command=command, environment=environment, request=request)
