"""The cooperative cache inside a real container: the view stands where the folder itself would be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import require_containers, require_fuse

pytestmark = [pytest.mark.containers, pytest.mark.fuse, pytest.mark.timeout(120)]

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def root() -> Iterator[Path]:
    """Not in /tmp, which containers share with the host as it is."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-test.", dir="/var/tmp"))
    (folder / "word").write_text("ahoy")
    yield folder
    shutil.rmtree(folder)


def test_folder_is_read_through_the_view_under_its_own_name(rootfs: Path, root: Path, tmp_path: Path) -> None:
    require_containers()
    require_fuse()
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "WINDLASS_CONFIG": str(tmp_path / "none"),
    }
    (rootfs / root.relative_to("/")).mkdir(parents=True)  # ch-run makes no place in an image that it cannot write
    show = f'cat "{root}/word"; cat /proc/self/mountinfo; echo x > "{root}/new" || echo refused'
    words = (
        "run",
        "--site",
        "workstation",
        "--container",
        str(rootfs),
        "--cache",
        str(root),
        "--cache-set",
        "trace=off",
    )
    argv = [sys.executable, "-m", "windlass", *words, "--", "/bin/sh", "-c", show]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ahoy" in done.stdout and "refused" in done.stdout
    assert [line for line in done.stdout.splitlines() if str(root) in line and "fuse.windlass" in line]
