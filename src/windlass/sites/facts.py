"""Check the facts of a site file beyond its shape: CPU lists parse, presets do not overlap, names are unique."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windlass.base.notation.counts import format_cpulist, parse_cpulist
from windlass.errors import ConfigError, nearest
from windlass.model.origin import argument_key
from windlass.sites.shape import Misfit, Path

RUNTIMES = ("apptainer", "singularity", "podman-hpc", "shifter", "edf", "pyxis", "charliecloud")
SCHEDULERS = ("slurm", "pbs", "flux", "none")
LAUNCHERS = ("srun", "pals", "hydra", "openmpi", "flux", "local")
"""Names that conditions and containers may use. Their packages are above this layer. A test keeps the lists equal."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"(\d+-)?\d{1,3}:\d{2}:\d{2}")

Table = Mapping[str, Any]


def fact_misfits(data: Table) -> Iterator[Misfit]:
    """All values that have the right type but cannot be correct."""
    yield from _cpu_lists(data)
    yield from _node(data)
    yield from _presets(data)
    yield from _patterns(data)
    yield from _twice(data)
    yield from _settings(data)
    yield from _conditions(data, ())
    yield from _queues(data)
    yield from _containers(data)


def tables(data: Table, *keys: str) -> Iterator[tuple[Path, Table]]:
    """The tables in the list at this path, with their own paths. Elements of another type are left out."""
    value: object = data
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, Mapping):
                yield (*keys, index), item


def _text(table: object, key: str) -> str | None:
    value = table.get(key) if isinstance(table, Mapping) else None
    return value if isinstance(value, str) else None


def _parsed(text: str | None) -> tuple[int, ...]:
    """CPUs of a list. Empty for a list that does not parse, which another check reports."""
    try:
        return parse_cpulist(text) if text else ()
    except ConfigError:
        return ()


def _cpu_lists(data: Table) -> Iterator[Misfit]:
    places: list[tuple[Path, str | None]] = [(("node", "reserved"), _text(data.get("node"), "reserved"))]
    for key in ("agent_cpus", "comm_cpus"):
        places.append((("binding", key), _text(data.get("binding"), key)))
    places += [((*path, "cpus"), _text(table, "cpus")) for path, table in tables(data, "node", "domains")]
    for path, table in tables(data, "binding", "presets"):
        places.append(((*path, "comm_cpus"), _text(table, "comm_cpus")))
        cpus = _text(table, "cpus")
        places += [((*path, "cpus"), part) for part in (cpus.split(":") if cpus else ())]
    caches = data.get("node", {}).get("l3") if isinstance(data.get("node"), Mapping) else None
    if isinstance(caches, list):
        places += [(("node", "l3", i), text) for i, text in enumerate(caches) if isinstance(text, str)]
    for where, text in places:
        try:
            parse_cpulist(text or "")
        except ConfigError as error:
            yield Misfit(path=where, message=error.message, hint=error.hint or "")


def _node(data: Table) -> Iterator[Misfit]:
    """Check that domains share no CPU, contain all caches and reserved CPUs, and have the right number of cores."""
    seen: dict[int, Path] = {}
    devices: dict[int, Path] = {}
    for path, table in tables(data, "node", "domains"):
        cpus = _parsed(_text(table, "cpus"))
        shared = [cpu for cpu in cpus if cpu in seen]
        if shared:
            yield Misfit(path=(*path, "cpus"), message=f"CPUs {format_cpulist(shared)} are in two domains")
        seen.update(dict.fromkeys(cpus, path))
        listed = table.get("devices")
        for device in (d for d in listed if isinstance(d, int)) if isinstance(listed, list) else ():
            if device in devices:
                yield Misfit(path=(*path, "devices"), message=f"device {device} is in two domains")
            devices[device] = path
    node = data.get("node")
    if not seen or not isinstance(node, Mapping):
        return
    cores, threads = node.get("cores"), node.get("threads_per_core", 1)
    if isinstance(cores, int) and isinstance(threads, int) and cores * threads != len(seen):
        message = f"{cores} cores of {threads} threads are {cores * threads} CPUs, but the domains list {len(seen)}"
        yield Misfit(path=("node", "cores"), message=message)
    strangers = sorted(set(_parsed(_text(node, "reserved"))) - set(seen))
    if strangers:
        message = f"CPUs {format_cpulist(strangers)} are in no domain"
        yield Misfit(path=("node", "reserved"), message=message)


def _presets(data: Table) -> Iterator[Misfit]:
    defaults: dict[tuple[Any, Any], str] = {}
    for path, table in tables(data, "binding", "presets"):
        parts = [_parsed(part) for part in (_text(table, "cpus") or "").split(":")]
        ranks = table.get("ranks_per_node")
        if isinstance(ranks, int) and len(parts) != ranks:
            message = f"has {len(parts)} lists for {ranks} ranks per node"
            yield Misfit(path=(*path, "cpus"), message=message, hint="one list per local rank, separated by colons")
        owner: dict[int, int] = {}
        for rank, cpus in enumerate(parts):
            shared = [cpu for cpu in cpus if cpu in owner]
            if shared:
                message = f"CPU {shared[0]} is given to local ranks {owner[shared[0]]} and {rank}"
                yield Misfit(path=(*path, "cpus"), message=message)
            owner.update(dict.fromkeys(cpus, rank))
        both = sorted(set(owner) & set(_parsed(_text(table, "comm_cpus"))))
        if both:
            message = f"CPUs {format_cpulist(both)} are given to ranks and to communication threads"
            yield Misfit(path=(*path, "comm_cpus"), message=message)
        chosen = table.get("devices")
        if isinstance(chosen, list) and chosen and isinstance(ranks, int) and len(chosen) != ranks:
            yield Misfit(path=(*path, "devices"), message=f"has {len(chosen)} devices for {ranks} ranks per node")
        if table.get("default") is True:
            key = (ranks, table.get("device_unit"))
            if key in defaults:
                message = f"{defaults[key]!r} is the default for {ranks} ranks per node already"
                yield Misfit(path=(*path, "default"), message=message)
            defaults[key] = _text(table, "name") or "?"


def _patterns(data: Table) -> Iterator[Misfit]:
    detect = data.get("detect")
    if not isinstance(detect, Mapping):
        return
    places: list[tuple[Path, str]] = []
    for key in ("hostnames", "login_hosts"):
        value = detect.get(key)
        if isinstance(value, list):
            places += [(("detect", key, i), text) for i, text in enumerate(value) if isinstance(text, str)]
    variables = detect.get("variables")
    if isinstance(variables, Mapping):
        places += [(("detect", "variables", key), text) for key, text in variables.items() if isinstance(text, str)]
    for path, text in places:
        try:
            re.compile(text)
        except re.error as error:
            yield Misfit(path=path, message=f"not a regular expression: {error}", hint=f"in {text!r}")


def _argument(item: Table) -> object:
    words = item.get("words")
    plain = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return (argument_key(tuple(words)), repr(item.get("when"))) if words and plain else None


_ONCE: tuple[tuple[tuple[str, ...], str, Callable[[Table], object]], ...] = (
    (("binding", "presets"), "preset", lambda item: item.get("name")),
    (("queues",), "queue", lambda item: (item.get("kind", "partition"), item.get("name"))),
    (("peaks",), "peak for precision", lambda item: item.get("precision")),
    (("notes",), "note on", lambda item: item.get("topic")),
    (("containers",), "container", lambda item: (item.get("runtime"), repr(item.get("images")))),
    (("settings",), "setting", lambda item: (item.get("name"), repr(item.get("when")))),
    (("limits",), "limit", _argument),
    (("scheduler", "directives"), "directive", _argument),
    (("launcher", "arguments"), "argument", _argument),
)


def _twice(data: Table) -> Iterator[Misfit]:
    for keys, what, name_of in _ONCE:
        seen: set[str] = set()
        for path, item in tables(data, *keys):
            name = name_of(item)
            if name is None:
                continue
            if repr(name) in seen:
                shown = name[-1] if isinstance(name, tuple) and what == "queue" else name
                shown = name[0] if isinstance(name, tuple) and what != "queue" else shown
                same = " under the same condition" if what in {"setting", "directive", "argument", "limit"} else ""
                yield Misfit(path=path, message=f"{what} {shown!r} is here twice{same}")
            seen.add(repr(name))


def _settings(data: Table) -> Iterator[Misfit]:
    lists = [list(tables(data, "settings"))]
    for path, table in (*tables(data, "binding", "presets"), *tables(data, "containers")):
        lists.append([((*path, *inner), item) for inner, item in tables(table, "settings")])
    partitions = data.get("partitions")
    for key, spec in partitions.items() if isinstance(partitions, Mapping) else ():
        if isinstance(spec, Mapping):
            lists.append([(("partitions", key, *inner), item) for inner, item in tables(spec, "settings")])
    for path, item in (entry for entries in lists for entry in entries):
        name = _text(item, "name")
        if name is not None and not _VARIABLE.fullmatch(name):
            yield Misfit(path=(*path, "name"), message=f"{name!r} is not a name of a variable")
        if (item.get("prepend") or item.get("append")) and "value" not in item:
            yield Misfit(path=path, message="adds nothing to the variable: the key 'value' is missing")
        if item.get("prepend") and item.get("append"):
            yield Misfit(path=path, message="cannot go both in front of the variable's value and behind it")


def _conditions(data: object, path: Path) -> Iterator[Misfit]:
    """Check every `when` at any depth: names must exist, and limits must not contradict each other."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _conditions(item, (*path, index))
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if key == "when" and isinstance(value, Mapping):
                yield from _condition(value, (*path, key))
            else:
                yield from _conditions(value, (*path, key))


def _condition(when: Table, path: Path) -> Iterator[Misfit]:
    for low, high in (("nodes_min", "nodes_max"), ("ranks_per_node_min", "ranks_per_node_max")):
        least, most = when.get(low), when.get(high)
        if isinstance(least, int) and isinstance(most, int) and least > most:
            yield Misfit(path=(*path, low), message=f"never holds: {low} is {least}, {high} is {most}")
    for key, known in (("runtime", RUNTIMES), ("scheduler", SCHEDULERS), ("launcher", LAUNCHERS)):
        names = when.get(key)
        for index, name in enumerate(names if isinstance(names, list) else ()):
            if isinstance(name, str) and name not in known:
                yield _unknown((*path, key, index), key, name, known)


def _queues(data: Table) -> Iterator[Misfit]:
    for path, item in tables(data, "queues"):
        least, most = item.get("nodes_min"), item.get("nodes_max")
        if isinstance(least, int) and isinstance(most, int) and least > most:
            yield Misfit(path=(*path, "nodes_min"), message=f"is {least}, more than nodes_max, which is {most}")
        limit = _text(item, "time_max")
        if limit is not None and not _TIME.fullmatch(limit):
            message = f"must be a time such as 2-00:00:00 or 12:00:00, not {limit!r}"
            yield Misfit(path=(*path, "time_max"), message=message)


def _containers(data: Table) -> Iterator[Misfit]:
    default: str | None = None
    for path, item in tables(data, "containers"):
        runtime = _text(item, "runtime")
        if runtime is not None and runtime not in RUNTIMES:
            yield _unknown((*path, "runtime"), "container runtime", runtime, RUNTIMES)
        if item.get("default") is True:
            if default is not None:
                yield Misfit(path=(*path, "default"), message=f"{default!r} is the default already")
            default = runtime
    for keys in (("scheduler", "directives"), ("launcher", "arguments"), ("limits",)):
        for path, item in tables(data, *keys):
            if item.get("words") == []:
                yield Misfit(path=(*path, "words"), message="is empty")


def _unknown(path: Path, kind: str, name: str, known: tuple[str, ...]) -> Misfit:
    close = nearest(name, known)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
    return Misfit(path=path, message=f"unknown {kind} {name!r}", hint=hint)
