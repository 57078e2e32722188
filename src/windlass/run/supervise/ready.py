"""Test whether a component of a job file is ready: port, HTTP, log line, file."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from pathlib import Path

from windlass.model.plan import Plan
from windlass.model.request import Ready
from windlass.node.sys.reading import open_plain

_ANSWER_S = 1.0
_CHUNK = 1 << 20


@dataclass(kw_only=True, slots=True)
class ReadyTest:
    """The test of one component. `offsets` are the positions up to which its output was searched."""

    ready: Ready
    plan: Plan
    out: Path
    """Folder with the output of its ranks."""
    address: str
    port: int
    offsets: dict[Path, int]

    def passes(self) -> bool:
        """Return whether the component is ready now. Takes a second at most."""
        if self.ready.port:
            return self._connects()
        if self.ready.http:
            return self._answers()
        if self.ready.file:
            return (Path(self.plan.request.cwd) / self.ready.file).exists()
        return self._printed(self.ready.log.encode())

    def text(self) -> str:
        """Return what is missing, for an error."""
        where = f"{self.address}:{self.port}"
        if self.ready.port:
            return f"nothing accepts connections at {where}"
        if self.ready.http:
            return f"http://{where}{self.ready.http} does not answer with 200"
        if self.ready.file:
            return f"there is no file {self.ready.file}"
        return f"no line of its output contains {self.ready.log!r}"

    def _connects(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), timeout=_ANSWER_S).close()
        except OSError:
            return False
        return True

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", self.ready.http)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _printed(self, wanted: bytes) -> bool:
        for path in sorted(self.out.glob("*.log")):
            try:
                with open_plain(path) as file:
                    file.seek(self.offsets.get(path, 0))
                    data = file.read(_CHUNK)
            except OSError:
                continue
            if any(wanted in line for line in data.splitlines()):
                return True
            # A progress bar can fill the whole chunk without a line end.
            self.offsets[path] = self.offsets.get(path, 0) + (data.rfind(b"\n") + 1 or max(0, len(data) - _CHUNK // 2))
        return False
