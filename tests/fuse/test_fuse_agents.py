"""The file that travels, with the cache in it, run by a Python that has nothing else to import from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from interpreters import NODE, interpreters

from fuse.agents import RUN_ID, CacheAgent, write_agents_file
from fuse.caches import make_tree
from requirements import require_fuse
from windlass.agents.ship import agent_file, program_argv
from windlass.node.sys.messages import read_messages
from windlass.run.sidecars.cache_service import STATUS_ENTRY

pytestmark = pytest.mark.fuse


def pythons() -> list[object]:
    """This interpreter and the oldest supported one; the others that are here are left to `make test-all`."""
    found = interpreters(NODE)
    usual = [sys.executable, *([found.pop(NODE[0])] if NODE[0] in found else [])]
    return [*usual, *(pytest.param(path, marks=pytest.mark.slow) for path in found.values())]


@pytest.mark.parametrize("python", pythons())
def test_cache_is_served_from_the_file_that_travels_and_leaves_nothing(tmp_path: Path, python: str) -> None:
    require_fuse()
    root = make_tree(tmp_path / "shared", files=5)
    write_agents_file(tmp_path, ("localhost",), root)
    agent = CacheAgent(tmp_path, 0, python=python)
    try:
        config = agent.wait_up()
        same = ["diff", "-r", "--no-dereference", "-x", "absolute", str(root), config.mount + str(root)]
        subprocess.run(same, check=True, timeout=60)
        told = {"state": config.state_dir, "place": [], "first": 0}
        words = program_argv(STATUS_ENTRY, told, file=agent_file(str(agent.folder), RUN_ID, 0))
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert read_messages(done.stdout.splitlines())[0]["status"]["state"] == "ready"
    finally:
        figures = agent.stop()
    assert figures["errors"] == 0
    assert not agent.folder.exists(), "the last agent of a run takes its folder away"


@pytest.mark.parametrize("python", pythons())
def test_no_module_that_travels_needs_more_than_the_file_and_the_standard_library(tmp_path: Path, python: str) -> None:
    bundle = write_agents_file(tmp_path, ("localhost",), tmp_path)
    with zipfile.ZipFile(bundle) as archive:
        names = [name[: -len(".py")].replace("/", ".") for name in archive.namelist() if name.endswith(".py")]
    code = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
        "found = [getattr(m, '__file__', None) or '' for n, m in sys.modules.items() if n.startswith('windlass')]\n"
        "print([f for f in found if not f.startswith(sys.argv[1])], 'site' in sys.modules)"
    )
    argv = [python, "-S", "-I", "-c", code, str(bundle), *(name.replace(".__init__", "") for name in names)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[] False", done.stdout + done.stderr
    assert bundle.stat().st_size < 300_000
