"""Services for tests of the agent: they travel in its file as any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any


class Echo:
    def __init__(self, node: Any, settings: dict[str, Any]) -> None:
        self._node = node
        self._settings = settings
        self._told = False

    def start(self) -> None:
        if self._settings.get("fails"):
            raise RuntimeError("told to fail")
        if self._settings.get("kills_itself"):
            os.kill(os.getpid(), signal.SIGKILL)

    def news(self) -> list[str]:
        if self._told:
            return []
        self._told = True
        return [f"{self._node.number} of {len(self._node.hosts)}, key of {len(self._node.key)} bytes, {Path.cwd()}"]

    def end(self) -> dict[str, Any]:
        return {"ended": self._settings.get("word", "")}


def make(node: Any, settings: dict[str, Any]) -> Echo:
    return Echo(node, settings)


def program(settings: dict[str, Any]) -> int:
    print(settings["word"])
    return 0
