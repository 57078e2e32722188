"""Messages through a launcher's output: JSON objects in short marked lines, mixed with other output.

Standard output is the only channel from a node that every launcher has. Slurm forwards it in pieces of 1,024 bytes and
mixes the pieces of two tasks, so no line is longer. A message that does not fit into one line is compressed and split.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

MARK = "@windlass "
_PIECE = 800
_numbers = itertools.count()


def message_lines(sender: int, name: str, message: dict[str, Any]) -> list[str]:
    """Return the message as lines: mark, number of the sender, name of the message, part/parts, text.

    `name` must differ between the messages of one sender.
    """
    text = json.dumps(message, separators=(",", ":"))
    pieces = [text]
    if len(text) > _PIECE:
        text = _compressed(text)
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return ["%s%d %s %d/%d %s" % (MARK, sender, name, i, len(pieces), piece) for i, piece in enumerate(pieces, 1)]


class MessageWriter:
    """Write messages of one node or rank to a file descriptor without buffering. Each has the fields in `always`."""

    def __init__(self, sender: int, out: int = 1, **always: Any) -> None:
        self._sender = sender
        self._out = out
        self._always = always

    def send(self, **fields: Any) -> None:
        """Send one message. Each line is one write, so a pipe takes all of it or nothing.

        Raises `OSError` if the pipe has no reader.
        """
        name = "%x.%d" % (os.getpid(), next(_numbers))  # a process that takes over may have the same sender
        for line in message_lines(self._sender, name, {**self._always, **fields}):
            os.write(self._out, line.encode() + b"\n")


class MessageReader:
    """Assemble messages from lines. The parts of a message may arrive in any order."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], dict[int, str]] = {}

    def read_line(self, line: str) -> dict[str, Any] | None:
        """Return the message that this line completes, or None. Ignores torn and foreign lines."""
        start = line.find(MARK)
        fields = line[start + len(MARK) :].rstrip("\r\n").split(" ", 3) if start >= 0 else ()
        if len(fields) != 4:
            return None
        sender, name, (part, _, count), text = fields[0], fields[1], fields[2].partition("/"), fields[3]
        if not part.isdecimal() or not count.isdecimal():
            return None
        if int(count) > 1:
            parts = self._parts.setdefault((sender, name), {})
            parts[int(part)] = text
            if len(parts) < int(count):
                return None
            del self._parts[sender, name]
            text = "".join(parts[index] for index in sorted(parts))
        return _decoded(text)


def _compressed(text: str) -> str:
    """Compress the text. Return it unchanged if this Python has no zlib, which containers may lack."""
    try:
        import base64
        import zlib
    except ImportError:
        return text
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text if text.startswith("{") else _decompressed(text))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _decompressed(text: str) -> bytes:
    import base64
    import zlib

    try:
        return zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(str(error)) from error


def read_messages(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return all complete messages, in the order of completion."""
    reader = MessageReader()
    return [message for line in lines if (message := reader.read_line(line)) is not None]


def node_writer(settings: dict[str, Any]) -> MessageWriter:
    """Return the writer of a program that `agents.step` started. Its messages have the node's number and name."""
    node = place_of(settings["place"]) + int(settings["first"])
    return MessageWriter(node, node=node, host=host_name())


def host_name() -> str:
    """Return this node's name from the scheduler, or else the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def place_of(variables: Sequence[str]) -> int:
    """Return this task's number in its step from the launcher's variables, or 0 if none is set."""
    environ = os.environ
    return next((int(environ[name]) for name in variables if environ.get(name, "").isdigit()), 0)
