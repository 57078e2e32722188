"""Caches as they ship: one agent per node, started from the file that travels, with the cache as its service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuse.caches import wait_for
from windlass.agents.ship import agent_argv
from windlass.agents.start import AgentManifest, ServiceSpec, agent_bytes
from windlass.node.cache.config import NodeConfig, read_config
from windlass.node.sys.messages import read_messages

NODE_VARIABLE = "TEST_NODE"
RUN_ID = "run1"


def write_agents_file(base: Path, hosts: tuple[str, ...], root: Path, **config: Any) -> Path:
    """The file that every node reads. The agents' folders are below `base`."""
    told = {"roots": [[str(root), str(root)]], "config": {"start_grace_s": 10.0, **config}, "start_s": 40.0}
    manifest = AgentManifest(
        run_id=RUN_ID,
        hosts=hosts,
        node_variables=(NODE_VARIABLE,),
        folder=str(base / "agents"),
        services=(ServiceSpec(name="cache", entry="windlass.node.agent.cache:make", settings=told),),
    )
    path = base / "agent.pyz"
    path.write_bytes(agent_bytes(manifest, os.urandom(32)))
    path.chmod(0o600)
    return path


class CacheAgent:
    """The agent of one node; it and its cache end when `stop` closes its standard input."""

    def __init__(self, base: Path, node: int, *, python: str = sys.executable, before: tuple[str, ...] = ()) -> None:
        """`before`: words that come before the command, to run it as another user or in another network."""
        self.node = node
        self.folder = base / "agents"
        mark = {name: value for name, value in os.environ.items() if name.startswith("WLTEST")}
        self._out = base / f"agent{node}.out"
        with self._out.open("wb") as out:
            self.child = subprocess.Popen(
                (*before, *agent_argv(str(base / "agent.pyz"), python, pythons=(python,))),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], NODE_VARIABLE: str(node), **mark},
                cwd="/",
            )

    def wait_up(self, timeout_s: float = 60.0) -> NodeConfig:
        """The configuration of the node's cache, once its mount is there."""
        wait_for(lambda: '"up"' in self.said() or self.child.poll() is not None, timeout_s, "the agent is up")
        assert self.child.poll() is None, self.said()
        return read_config(str(self.folder / "c" / f"{RUN_ID}.{self.node}" / "config.json"))

    @property
    def code(self) -> Path:
        """Where the agent has unpacked the modules of the cache."""
        return self.folder / "a" / f"{RUN_ID}.{self.node}" / "code"

    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def stop(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The last figures of its cache."""
        assert self.child.stdin
        self.child.stdin.close()
        try:
            self.child.wait(timeout_s)
        finally:
            self.child.kill()
            self.child.wait(10)
        lines = read_messages(self.said().splitlines())
        return next((dict(line["ended"]["cache"]) for line in lines if "ended" in line), {})
