"""Where the ranks' environment lies and what a look at it costs. Bounded: a file system may be slow, or dead."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from windlass.node.sys.mounts import mount_of, mounts
from windlass.node.sys.reading import open_plain
from windlass.plan.inputs import EnvironmentPlace

_DEADLINE_S = 0.08
_FILES = 12


@dataclass(slots=True)
class _Scan:
    """What the look has found so far; one thread adds, another reads when its patience ends."""

    real: str = ""
    stats_s: list[float] = field(default_factory=list)
    opens_s: list[float] = field(default_factory=list)


def environment_place(python: str, look: Callable[[Path, _Scan], None] | None = None) -> EnvironmentPlace | None:
    """The place of an interpreter's environment, looked at for no longer than the deadline; None for a bare name, which
    means something else in the job. The look goes on in a thread of its own where the file system does not answer."""
    if "/" not in python:
        return None
    prefix = Path(python).parent.parent
    seen = _Scan()
    thread = threading.Thread(target=look or _look, args=(prefix, seen), name="environment", daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    stats_s, opens_s = list(seen.stats_s), list(seen.opens_s)
    mount = mount_of(seen.real or str(prefix), mounts())
    return EnvironmentPlace(
        path=str(prefix),
        file_system=mount.kind,
        shared=mount.served_by == "shared",
        stat_ms=_milliseconds(stats_s),
        open_ms=_milliseconds(opens_s),
        answered=not thread.is_alive() or bool(opens_s),
    )


def _milliseconds(seconds: list[float]) -> float | None:
    return round(1000 * statistics.median(seconds), 3) if seconds else None


def _look(prefix: Path, seen: _Scan) -> None:
    """Times looking for a few files of the environment and reading the first byte of each."""
    try:
        seen.real = os.path.realpath(prefix)
        end = time.monotonic() + _DEADLINE_S
        for path in itertools.islice(_files(Path(seen.real)), _FILES):
            began = time.monotonic()
            if began > end:
                return
            path.stat()
            seen.stats_s.append(time.monotonic() - began)
            began = time.monotonic()
            with open_plain(path, follow=True) as stream:
                stream.read(1)
            seen.opens_s.append(time.monotonic() - began)
    except OSError:
        return


def _files(prefix: Path) -> itertools.chain[Path]:
    """Modules of its packages, in the order of the folder."""
    folders = sorted(prefix.glob("lib/python3*/site-packages")) or sorted(prefix.glob("lib/python3*"))
    return itertools.chain.from_iterable(folder.glob("*/__init__.py") for folder in folders)
