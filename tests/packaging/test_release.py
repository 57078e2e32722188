"""A release as people get it: what starts windlass again, the zip application, and everything in fresh environments."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import LOGIN, interpreters

from requirements import require

ROOT = Path(__file__).parents[2]


def test_an_old_python_can_read_the_start_of_the_zip_application() -> None:
    ast.parse((ROOT / "scripts" / "zipapp_main.py").read_text(), feature_version=(3, 6))


def test_an_unpacked_zip_application_starts_itself_again_by_its_own_file(tmp_path: Path) -> None:
    """As it lies in the cache folder: no `python -m windlass` finds it there."""
    msgspec = Path(__import__("msgspec").__file__).parent
    tag = f"{sys.implementation.cache_tag}-{os.uname().machine}"
    (tmp_path / "deps" / tag).mkdir(parents=True)
    (tmp_path / "deps" / tag / "msgspec").symlink_to(msgspec)
    (tmp_path / "windlass").symlink_to(ROOT / "src" / "windlass")
    (tmp_path / "windlass-zipapp").write_text("build\n")
    (tmp_path / "__main__.py").write_text((ROOT / "scripts" / "zipapp_main.py").read_text())
    start = [sys.executable, "-S", str(tmp_path / "__main__.py")]
    env = {"PATH": os.defpath, "WINDLASS_RUNS": str(tmp_path / "runs"), "WINDLASS_CONFIG": str(tmp_path / "none")}
    words = ("submit", "--dry-run", "--site", "lumi", "--account", "x", "--", "true")
    done = subprocess.run([*start, *words], env=env, cwd="/", capture_output=True, text=True, timeout=60)
    assert f"{tmp_path}/__main__.py -m windlass run --plan" in done.stdout, done.stderr
    again = [*start, "-m", "windlass", "--version"]
    looked = subprocess.run(again, env=env, cwd="/", capture_output=True, text=True, timeout=60)
    assert looked.stdout.startswith("windlass "), looked.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_release_works_in_fresh_environments_under_every_python_that_is_here() -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "release_check.py"), "--no-demo"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    require("registry", "FAIL tools" not in done.stdout, "build, pipx and uv cannot be installed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"ok   pip, Python {version}:" in done.stdout for version in interpreters(LOGIN))
