from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuse.caches import configs
from windlass.cache.bundle import bundle_bytes, write_bundle
from windlass.cache.node.config import dump_config

NODE = Path(sys.modules["windlass.cache.bundle"].__file__ or "").parent / "node"


def pythons() -> list[str]:
    """This interpreter, and the oldest supported one where there is one."""
    old = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"))
    return [sys.executable, *map(str, old[:1])]


@pytest.mark.parametrize("python", pythons())
def test_the_bundle_runs_with_nothing_else_importable(tmp_path: Path, python: str) -> None:
    bundle = write_bundle(tmp_path / "cache.pyz")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"x")
    (config,) = configs(tmp_path / "c", 1, tmp_path / "root")
    (tmp_path / "config.json").write_text(dump_config(config))

    def call(*arguments: str) -> object:
        argv = [python, "-S", "-I", str(bundle), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, cwd="/", check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    try:
        assert "peer" in call("start", str(tmp_path / "config.json"), "0")  # type: ignore[operator]
        ready = call("ready", config.state_dir, "10")
        assert isinstance(ready, dict) and ready["state"] == "ready"
        (status,) = call("status", config.state_dir, "tree")  # type: ignore[misc]
        assert status["node"] == 0
    finally:
        call("stop", config.state_dir)
    assert not Path(config.state_dir).exists()


def test_no_daemon_module_can_reach_beyond_its_folder_and_the_standard_library() -> None:
    code = (
        "import sys, pkgutil; sys.path.insert(0, sys.argv[1]); import node\n"
        "for m in pkgutil.iter_modules(node.__path__):\n"
        "    if m.name != '__main__': __import__('node.' + m.name)\n"
        "bad = [n for n, m in sys.modules.items() if 'site-packages' in (getattr(m, '__file__', '') or '')]\n"
        "bad += [n for n in sys.modules if n.startswith('windlass')]\n"
        "print(bad)"
    )
    argv = [sys.executable, "-S", "-I", "-c", code, str(NODE.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_bundle_is_the_same_for_the_same_source_and_small() -> None:
    assert bundle_bytes() == bundle_bytes()
    assert len(bundle_bytes()) < 500_000


def test_wrong_arguments_are_answered_with_the_usage(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "cache.pyz")
    done = subprocess.run(
        [sys.executable, str(bundle), "dance"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "usage" in done.stderr
