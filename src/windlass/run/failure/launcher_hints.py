"""What to do about a launcher that did not start the ranks: its own words say what is wrong, not what helps."""

from __future__ import annotations

import re
from pathlib import Path

from windlass.node.sys.reading import open_plain

_READ_BYTES = 1 << 16
_HINTS = (
    (
        r"outside of job step allocation|[Uu]nable to satisfy cpu bind|"
        r"binding to cpu .{1,100} not (?:available|allowed)",
        "the job does not have these CPUs: allocate whole nodes (--exclusive), or say --cpu-bind none",
    ),
    (
        r"[Mm]ore processors requested than permitted|not enough slots available|Requested node configuration is not",
        "the job has fewer CPUs than the ranks want: start fewer (-r), or allocate more (whole nodes: --exclusive)",
    ),
    (
        r"[Cc]ould not resolve hostname|[Uu]nable to get host address|[Uu]nable to resolve|Invalid node name"
        r"|[Nn]ame or service not known|not in this job's allocation",
        "a host is not known by this name: compare --hosts and the `hosts` file of the run with the job's own list",
    ),
    (
        r"[Ii]nvalid account|account/partition combination|[Aa]ccount .{1,100} (?:not valid|required)",
        "say which project pays for it: --account NAME, and a --partition that this account may use",
    ),
    (
        r"[Hh]ost key verification failed|Permission denied \(|[Cc]onnection refused",
        "the launcher reaches its nodes by ssh here, which refuses: use the scheduler's own (--launcher)",
    ),
)


def launcher_hint(text: str) -> str | None:
    """What helps against the first complaint in these words of a launcher that somebody knows."""
    for line in text.splitlines():
        for pattern, hint in _HINTS:
            if re.search(pattern, line):
                return hint
    return None


def log_hint(launcher_log: Path) -> str | None:
    """The same for a launcher's log; None where it cannot be read."""
    try:
        with open_plain(launcher_log) as file:
            return launcher_hint(file.read(_READ_BYTES).decode(errors="replace"))
    except OSError:
        return None
