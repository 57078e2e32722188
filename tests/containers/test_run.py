"""`windlass run --container` from the command line to the ranks, in a real container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.harness import HOSTILE
from containers.rootfs import python_inside
from requirements import require_containers

pytestmark = pytest.mark.containers

SCRIPT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "CH_RUNNING", "SPECIAL")
found = {name: os.environ.get(name) for name in names}
with open(f"rank-{os.environ['RANK']}.json", "w") as out:
    json.dump({"env": found, "argv": sys.argv[1:], "cwd": os.getcwd()}, out)
"""


def _windlass(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "WINDLASS_CONFIG": str(cwd / "none")}
    argv = [sys.executable, "-m", "windlass", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=cwd, env=env)


def test_two_ranks_run_a_script_inside_with_their_arguments_and_variables(rootfs: Path, tmp_path: Path) -> None:
    require_containers()
    (tmp_path / "train.py").write_text(SCRIPT)
    options = (
        "--site",
        "workstation",
        "--container",
        str(rootfs),
        "--python",
        python_inside(),
        "--ranks-per-node",
        "2",
    )
    done = _windlass("run", *options, "--env", "SPECIAL=$(id) 'q'", "train.py", *HOSTILE, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in ("0", "1"):
        seen = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert seen["argv"] == list(HOSTILE)
        assert seen["cwd"] == str(tmp_path)
        assert seen["env"]["RANK"] == rank
        assert seen["env"]["WORLD_SIZE"] == "2"
        assert seen["env"]["SPECIAL"] == "$(id) 'q'"
        assert seen["env"]["CH_RUNNING"]


def test_an_image_that_is_not_there_is_an_error_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = _windlass("run", "--site", "workstation", "--container", "./no/such/image/", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no such image" in done.stderr
    assert not list(tmp_path.glob("runs/*/out/*"))
