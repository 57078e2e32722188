"""The cooperative cache as a service of the agent: one mount and one peer process.

Both end with the agent, even if it is killed. The service also writes the *front* of environments. The scripts in `bin`
name their interpreter by its original path in the first line. That path would bypass the view. The front therefore has
a short shell script for each, which starts it with the interpreter of the view.
"""

from __future__ import annotations

import os
import pkgutil
import py_compile
import shlex
import socket
import zipfile
from collections.abc import Iterable
from typing import Any

from windlass.node.agent.claim import leave, other_runs
from windlass.node.agent.host import NodeContext, expand
from windlass.node.cache import control
from windlass.node.cache.config import NodeConfig, state_folder
from windlass.node.cache.roots import Root
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.messages import node_writer

_CODE = (
    "windlass/__init__.py",
    "windlass/node/__init__.py",
    *("windlass/node/%s/" % part for part in ("cache", "sys", "wire")),
)
"""The modules of the bundle that the two processes of the cache need."""


def make(node: NodeContext, settings: dict[str, Any]) -> CacheService:
    return CacheService(node, settings)


class CacheService:
    def __init__(self, node: NodeContext, settings: dict[str, Any]) -> None:
        self._node = node
        self._settings = settings
        self.state_dir = state_folder(node.folder, node.run_id, node.number)
        self._lost: set[str] = set()

    def start(self) -> None:
        os.makedirs(self.state_dir, mode=0o700, exist_ok=True)
        key_file = os.path.join(os.path.dirname(self._node.bundle), "key")
        replace_file(key_file, self._node.key)
        config = self._config(key_file)
        code = unpacked(self._node.bundle, os.path.join(os.path.dirname(self._node.bundle), "code"))
        for other in other_runs(self._node.folder):
            control.sweep(os.path.join(other, "c"))
            leave(other)
        control.start(config, float(self._settings.get("start_s", 30.0)), code)
        for index, front in enumerate(self._settings.get("fronts", ())):
            write_front(os.path.join(self.state_dir, "front", str(index)), config.mount, front)
        write_hook(os.path.join(self.state_dir, "front", "python"), config.mount, config.roots)

    def _config(self, key_file: str) -> NodeConfig:
        told = self._settings
        node = self._node.number
        first = node == 0
        return NodeConfig(
            job=self._node.run_id,
            node=node,
            hosts=reachable_hosts(self._node.hosts, node),
            roots=tuple(Root(os.fsencode(view), os.fsencode(self._own(real))) for view, real in told["roots"]),
            state_dir=self.state_dir,
            key_file=key_file,
            mount=os.path.join(self.state_dir, "view"),
            store_dir=expand(told.get("store", "")),
            trace_in=self._own(told.get("trace_in", "")),
            # Only one node writes the trace, because all nodes see the same program start.
            trace_out=told.get("trace_out", "") if first else "",
            owner_pids=self._node.owners or (os.getpid(),),
            **told.get("config", {}),
        )

    def _own(self, path: str) -> str:
        """Return a path that differs between nodes when several nodes share one machine (`bench/start.py`)."""
        return path.replace("{node}", str(self._node.number)) if self._settings.get("per_node") else path

    def news(self) -> list[str]:
        said = []
        for role in control.ROLES:
            if role not in self._lost and not control.is_running(self.state_dir, role):
                self._lost.add(role)
                said.append(_LOST[role])
        return said

    def end(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        try:
            (own,) = control.status(self.state_dir, timeout_s=2.0)
            figures = short(own)
        except control.ControlError:
            pass
        control.stop(self.state_dir, 10.0)
        told = self._settings
        if figures and self._node.number == 0 and told.get("trace_out") and not told.get("trace_in"):
            figures["recorded"] = os.path.exists(told["trace_out"])
        return figures


def unpacked(bundle: str, folder: str) -> str:
    """Extract the cache's modules from the bundle, and compile them once for the two processes that run them."""
    with zipfile.ZipFile(bundle) as archive:
        modules = [name for name in archive.namelist() if name.startswith(_CODE)]
        archive.extractall(folder, modules)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for name in modules:
        py_compile.compile(os.path.join(folder, name), doraise=False, quiet=2, invalidation_mode=mode)
    return folder


_LOST = {
    "peer": "the peer process of the cache is gone: this node reads the shared file system itself",
    "mount": "the mount of the cache is gone: what reads through it gets errors",
}


def short(status: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a node that are kept after it ends, small enough for one line."""
    mount = status.get("mount", {})
    return {
        "host": status["host"],
        "hits": mount.get("hits", 0),
        "misses": mount.get("misses", 0),
        "calls": status["calls"],
        "bytes": status["bytes"],
        "source_calls": status["source_calls"] + mount.get("source_calls", 0),
        "source_bytes": status["source_bytes"] + mount.get("source_bytes", 0),
        "used_bytes": status["used_bytes"],
        "errors": status["errors"] + mount.get("errors", 0),
        "failovers": status["failovers"],
        "corrupt": status["corrupt"],
        "changed": status["changed"],
        "direct": mount.get("direct", 0),
        "pushed": status["push"]["planned"],
    }


def reachable_hosts(hosts: tuple[str, ...], own: int) -> tuple[str, ...]:
    """Return the hosts, with our own entry as the address to listen on.

    On some systems /etc/hosts maps a node's name to loopback on that node only. Such a node listens on all addresses,
    because the other nodes could not reach it on loopback.
    """
    if len(hosts) == 1:
        return ("127.0.0.1",)
    try:
        mine = socket.gethostbyname(hosts[own])
        other = socket.gethostbyname(hosts[own - 1])
    except OSError:
        return hosts
    if mine.startswith("127.") and not other.startswith("127."):
        return (*hosts[:own], "0.0.0.0", *hosts[own + 1 :])
    return hosts


# Fronts


def write_front(folder: str, mount: str, front: dict[str, Any]) -> None:
    """Write the front of one environment.

    `front` has the prefix and its scripts with the interpreter that they name. For a virtual environment whose base is
    also in the view, it has the configuration and the names of the environment's parts.
    """
    view = mount + front["prefix"]
    os.makedirs(os.path.join(folder, "bin"), mode=0o700, exist_ok=True)
    prefix = view
    if "config" in front:
        prefix = folder
        _write(os.path.join(folder, "pyvenv.cfg"), front["config"].replace("{view}", mount), 0o600)
        os.symlink(mount + front["base_python"], os.path.join(folder, "bin", "python"))
        for name in front["pythons"]:
            if name != "python":
                os.symlink("python", os.path.join(folder, "bin", name))
        for name in front["parts"]:
            os.symlink(os.path.join(view, name), os.path.join(folder, name))
    for name, (interpreter, options) in front["scripts"].items():
        python = mount + interpreter
        if interpreter.startswith(front["prefix"] + "/"):
            python = prefix + interpreter[len(front["prefix"]) :]
        words = [python, *options, os.path.join(view, "bin", name)]
        text = '#!/bin/sh\nexec %s "$@"\n' % " ".join(shlex.quote(word) for word in words)
        _write(os.path.join(folder, "bin", name), text, 0o700)


def write_hook(folder: str, mount: str, roots: Iterable[Root]) -> None:
    """Write a start-up hook for the ranks' Python, which redirects original paths to the view (`view_hook`)."""
    pairs = [(os.fsdecode(root.view), os.fsdecode(root.real)) for root in roots]
    text = (pkgutil.get_data(__package__, "view_hook.py") or b"").decode()
    told = {'ROOTS: "list[tuple[str, str]]" = []': "ROOTS = %s" % ascii(pairs), 'VIEW = ""': "VIEW = %s" % ascii(mount)}
    for line, value in told.items():
        text = text.replace("\n%s\n" % line, "\n%s\n" % value, 1)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _write(os.path.join(folder, "sitecustomize.py"), text, 0o600)


def _write(path: str, text: str, mode: int) -> None:
    replace_file(path, text.encode("utf-8", "surrogateescape"), mode)


def status(settings: dict[str, Any]) -> int:
    """Send the status of all nodes, one message each. Run on node 0."""
    out = node_writer(settings)
    try:
        found = control.status(expand(settings["state"]), tree=True, timeout_s=5.0)
    except control.ControlError as error:
        out.send(failed=str(error))
        return 1
    for one in found:
        out.send(status=one)
    out.send(done=True)
    return 0
