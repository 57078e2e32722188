"""Prints one line of JSON: the arguments as they arrived, where the rank is, and the variables named by SHOW.

SHOW='MASTER_* HOME' windlass run show.py --name "two words" '{rank}'
"""

from __future__ import annotations

import fnmatch
import json
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    patterns = os.environ.get("SHOW", "RANK LOCAL_RANK WORLD_SIZE").split()
    shown = {name: os.environ[name] for name in sorted(os.environ) if any(fnmatch.fnmatch(name, p) for p in patterns)}
    line = {
        "argv": sys.argv[1:],
        "host": os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cwd": str(Path.cwd()),
        "pid": os.getpid(),
        "environ": shown,
    }
    folder = os.environ.get("SHOW_TO")
    if folder:
        Path(folder, f"rank.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(line))
    else:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
