"""The look at an environment: which file system, how quick, and never longer than its deadline."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from windlass.node.sys.mounts import MountPoint, mount_of
from windlass.run.interpreter import environment_place


def test_a_local_environment_is_timed_and_not_shared() -> None:
    place = environment_place(f"{sys.prefix}/bin/python")
    assert place is not None and place.path == sys.prefix and place.answered
    assert place.file_system and place.stat_ms is not None and place.open_ms is not None


def test_a_bare_name_means_something_else_in_the_job() -> None:
    assert environment_place("python3") is None


def test_a_file_system_that_does_not_answer_costs_the_deadline_alone() -> None:
    dead = threading.Event()

    def stuck(prefix: Path, seen: Any) -> None:
        dead.wait(60)

    try:
        place = environment_place("/nonexistent/env/bin/python", stuck)
    finally:
        dead.set()
    assert place is not None and not place.answered and place.stat_ms is None


def test_the_deepest_mount_counts_and_of_equals_the_last() -> None:
    def made(place: str, kind: str) -> MountPoint:
        return MountPoint(place, kind, "x", None)

    table = [made("/", "ext4"), made("/lus", "lustre"), made("/lus/flare", "nfs4"), made("/lus/flare", "gpfs")]
    assert mount_of("/lus/flare/p/env", table).kind == "gpfs"
    assert mount_of("/lus/other", table).kind == "lustre" and mount_of("/lustre2", table).kind == "ext4"
