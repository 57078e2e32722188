from __future__ import annotations

import signal
import subprocess

from windlass.node.sys.identity import kill_marked


def test_only_marked_processes_are_killed() -> None:
    mine = subprocess.Popen(["sleep", "60"], env={"WINDLASS_PLACE": "run-x.0.3"})
    other = subprocess.Popen(["sleep", "60"], env={"WINDLASS_PLACE": "run-x.0.33"})
    try:
        assert kill_marked(b"WINDLASS_PLACE=run-x.0.3", 5.0) == 1
        assert mine.wait(timeout=30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        mine.kill()
        other.kill()
        other.wait(timeout=30)
