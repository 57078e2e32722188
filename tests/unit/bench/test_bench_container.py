"""A benchmark inside a container that has Python and nothing of windlass: the code travels with the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.rootfs import make_rootfs, python_inside
from requirements import require_containers
from unit.bench.commands import bench, record_of

pytestmark = [pytest.mark.containers, pytest.mark.timeout(180)]


def test_ranks_in_a_container_need_no_windlass_inside(tmp_path: Path) -> None:
    require_containers()
    image = make_rootfs(tmp_path / "image")
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    options = ("--site", "workstation", "--container", str(image), "--python", python_inside(), "-r", "2")
    words = ("--samples", "20", "--sample-size", "1K", "--formats", "files,tar")
    done = bench(work, "io", "data", *options, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    record = record_of(work)
    assert record["where"]["container"] == str(image)
    assert {row["labels"]["format"] for row in record["rows"]} == {"files", "tar"}
    assert all(row["wrong"] == 0 for row in record["rows"])
    assert list((work / "data").iterdir()) == []
