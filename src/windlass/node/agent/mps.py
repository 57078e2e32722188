"""NVIDIA's multi-process service (MPS) on one node, as a service of the agent: ranks that share a device run at once.

The control daemon has private folders of this node and is started before the ranks. Where it cannot start, the ranks
run without it, in time slices, and the user gets a message. At the end the daemon is asked to quit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import Any

from windlass.node.agent.host import NodeContext
from windlass.node.sys.folders import private_folder
from windlass.node.sys.identity import kill_marked, own_environ

_CONTROL = "nvidia-cuda-mps-control"
_MARK = "WINDLASS_MPS"
_TIMEOUT_S = 20.0


def make(node: NodeContext, settings: dict[str, Any]) -> MpsService:
    return MpsService(os.path.join(node.folder, settings["folder"], "%s.%d" % (node.run_id, node.number)))


class MpsService:
    """`NodeService`: the control daemon of MPS."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pipes, self._logs = (os.path.join(self._folder, name) for name in ("pipe", "log"))
        own = {name: value for name, value in own_environ().items() if name != "CUDA_VISIBLE_DEVICES"}
        places = {"CUDA_MPS_PIPE_DIRECTORY": self._pipes, "CUDA_MPS_LOG_DIRECTORY": self._logs, _MARK: self._folder}
        self._environ = {**own, **places}  # the daemon sees all devices: those of the ranks are numbered the same
        self._news: list[str] = []

    def start(self) -> None:
        for folder in (os.path.dirname(self._folder), self._folder, self._pipes, self._logs):
            private_folder(folder)
        try:
            done = self._control("-d")
        except (OSError, subprocess.TimeoutExpired) as error:
            self._refused(str(error))
        else:
            if done.returncode:
                self._refused((done.stderr or done.stdout).strip() or "code %d" % done.returncode)

    def _refused(self, why: str) -> None:
        self._news.append("MPS does not start, the ranks of a device run in time slices: %s" % why[-300:])
        self._remove()

    def _control(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        argv, out = [_CONTROL, *words], subprocess.PIPE
        return subprocess.run(
            argv, check=False, input=text, env=self._environ, stdout=out, stderr=out, text=True, timeout=_TIMEOUT_S
        )

    def news(self) -> list[str]:
        told, self._news = self._news, []
        return told

    def end(self) -> dict[str, Any]:
        """Ask the daemon to quit, and kill it if it does not."""
        asked = -1
        if os.path.isdir(self._pipes):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                asked = self._control(text="quit\n").returncode
        killed = kill_marked(os.fsencode("%s=%s" % (_MARK, self._folder))) if asked else 0
        self._remove()
        return {"killed": killed}

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
