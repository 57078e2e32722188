"""Read small files in /proc and /sys and the output of tools, any of which may be missing."""

from __future__ import annotations

import os
import subprocess
from typing import Mapping, Optional

COMMAND_S = 15.0


class MissingError(Exception):
    """A source that does not exist or does not answer. The message has the reason."""


def text_of(path: str) -> str:
    """Return the stripped text of a small file, or an empty string if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def output_of(*argv: str, timeout_s: float = COMMAND_S, env: Optional[Mapping[str, str]] = None) -> str:
    """Return the standard output of a tool. Raises `MissingError` if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError("%s: %s" % (argv[0], error)) from None
    if done.returncode:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise MissingError("%s: code %d%s" % (argv[0], done.returncode, ": " + last[-1][:200] if last else ""))
    return done.stdout.decode(errors="replace")
