"""Read from a log of NCCL or RCCL (`NCCL_DEBUG=INFO`) which transport was really used. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_NETWORK = re.compile(r"Using network (\S.{0,79})|(?:Initialized|Assigned) NET plugin (\S.{0,79})")
_PLUGIN = re.compile(r"NET/OFI (?:Initializing|Using) (aws-ofi-[nr]ccl) ?(\S{1,80})?")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;]{1,80})")
_USING = re.compile(r"NET/\w{1,20} ?: Using (\[\d{1,4}\]\S.{0,1000})")
_ENTRY = re.compile(r"\[\d{1,4}\]([\w.-]{1,64}):")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d{1,4}\])?([\w.-]{1,64}):")
_CHANNEL = re.compile(r"via NET/(.{0,200})")
_VERSION = re.compile(r"\b(NCCL|RCCL) version ([\w.+:-]{1,80})")
_MISSING = re.compile(
    r"NET/Plugin ?: ?(?:No plugin found|Plugin load .{0,200} returned \d|Could not find: )"
    r"|No plugin found \(lib[nr]ccl-net"
)
_NOT_FOUND = re.compile(r"(?:WARN|Error).{0,100}network (\S.{0,80}?) not found")
_MAX_INTERFACES = 64
_NOWHERE = ("lo", "docker", "virbr", "veth", "podman")


class Transport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The transport between nodes, as far as the log shows it. Empty fields are unknown."""

    library: str = ""
    network: str = ""
    """`AWS Libfabric`, `IB`, `Socket`."""
    plugin: str = ""
    provider: str = ""
    interfaces: tuple[str, ...] = ()
    bootstrap: str = ""
    direct: bool | None = None
    """The NIC reads device memory directly (GPUDirect). None if the log has no channel between nodes."""
    plugin_missing: bool = False
    """The library found no plugin. This is normal with InfiniBand, which it supports itself."""
    forced_missing: str = ""
    """A network that NCCL_NET forces and that is not available."""

    @property
    def is_tcp(self) -> bool:
        return self.network == "Socket"


class CommLog:
    """Reads lines one by one and keeps only the facts in them."""

    def __init__(self) -> None:
        self._found: dict[str, object] = {}
        self._interfaces: dict[str, None] = {}

    def feed(self, line: str) -> None:
        """Read one line. Lines of other programs are ignored."""
        found = self._found
        if match := _VERSION.search(line):
            found.setdefault("library", f"{match[1]} {match[2]}")
        if match := _NOT_FOUND.search(line):
            found["forced_missing"] = match[1]
        elif match := _NETWORK.search(line):
            found["network"] = (match[1] or match[2].partition(" to comm")[0]).strip()
        if match := _PLUGIN.search(line):
            found["plugin"] = " ".join(part for part in match.groups() if part)
        if match := _PROVIDER.search(line):
            found["provider"] = match[1]
        if (match := _USING.search(line)) and len(self._interfaces) < _MAX_INTERFACES:
            self._interfaces |= dict.fromkeys(_ENTRY.findall(match[1]))
        if match := _BOOTSTRAP.search(line):
            found.setdefault("bootstrap", match[1])
        if match := _CHANNEL.search(line):
            found["direct"] = found.get("direct", False) or "/GDRDMA" in match[1]
        if _MISSING.search(line):
            found["plugin_missing"] = True

    def transport(self) -> Transport:
        """The transport according to the lines so far."""
        missing = self._found.get("plugin_missing", False) and not self._found.get("plugin")
        told = {**self._found, "plugin_missing": missing, "interfaces": tuple(self._interfaces)}
        return msgspec.convert(told, Transport)


def parse_comm_log(lines: Iterable[str]) -> Transport:
    """Return the transport according to these lines. Lines of other programs are ignored."""
    log = CommLog()
    for line in lines:
        log.feed(line)
    return log.transport()


def transport_text(way: Transport) -> str:
    """Format the transport as one line."""
    parts = [way.network or "unknown"]
    if way.plugin:
        parts.append(way.plugin)
    if way.provider:
        parts.append(f"provider {way.provider}")
    if way.interfaces:
        parts.append(f"over {', '.join(way.interfaces)}")
    if way.direct is not None:
        parts.append("GPUDirect" if way.direct else "no GPUDirect")
    return ", ".join(parts)


def leads_nowhere(interface: str) -> bool:
    """Return whether an interface does not reach another node."""
    return interface.startswith(_NOWHERE) and not interface.startswith("lom")
