"""What the layers above use: planning, keys, traces, totals, and the life of one node's cache without a mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from windlass import cache
from windlass.cache.node.trace import Touch, Trace, directory_touch, write_trace
from windlass.errors import DeadlineError, MachineError, UsageError


@pytest.fixture
def env(tmp_path: Path) -> Path:
    root = tmp_path / "env"
    (root / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return root


def plan(tmp_path: Path, root: Path, **more: Any) -> cache.NodeConfig:
    key = tmp_path / "key"
    if not key.exists():
        cache.write_key(key)
    settings: dict[str, Any] = {
        "job": "j1",
        "hosts": ("127.9.9.1",),
        "roots": (str(root),),
        "mount": "",
        "state_dir": str(tmp_path / "state" / "{node}"),
        "key_file": key,
    }
    return cache.plan_cache(**{**settings, **more})


def test_a_key_is_new_private_and_never_overwritten(tmp_path: Path) -> None:
    one = cache.write_key(tmp_path / "a").read_bytes()
    two = cache.write_key(tmp_path / "b").read_bytes()
    assert one != two and len(one) == 32
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(MachineError):
        cache.write_key(tmp_path / "a")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"hosts": ()}, "host"),
        ({"roots": ()}, "root"),
        ({"job": "a/b"}, "job"),
        ({"options": cache.CacheOptions(budget_bytes=1000)}, "budget"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_its_reason(tmp_path: Path, env: Path, more: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        plan(tmp_path, env, **more)


def test_a_root_that_is_missing_and_a_mount_inside_a_root_are_refused(tmp_path: Path, env: Path) -> None:
    with pytest.raises(MachineError, match="nowhere"):
        plan(tmp_path, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="inside"):
        plan(tmp_path, env, mount=str(env / "mnt"))


def test_each_node_gets_its_own_folders_and_only_node_0_records(tmp_path: Path, env: Path) -> None:
    config = plan(tmp_path, env, hosts=("h0", "h1"), trace_out="/t.json")
    one = config.for_node(1)
    assert one.node == 1 and one.state_dir.endswith("/state/1")
    assert (config.for_node(0).trace_out, one.trace_out) == ("/t.json", "")


def test_paths_are_found_in_the_view_by_any_of_their_names(tmp_path: Path, env: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(env)
    config = plan(tmp_path, alias, mount="/mnt/x")
    for name in (alias, env):
        assert cache.view_path(config, str(name / "bin/python")) == f"/mnt/x{alias}/bin/python"
    assert cache.view_path(config, "/usr/bin/python3") is None
    assert cache.view_path(config, str(env) + "ironment") is None


def test_the_identity_follows_the_environment(env: Path) -> None:
    before = cache.environment_identity([str(env)])
    assert cache.environment_identity([str(env)]) == before
    assert cache.environment_identity([str(env)], "other program") != before
    (env / "lib" / "python3.11" / "site-packages" / "new").mkdir()
    assert cache.environment_identity([str(env)]) != before


def test_traces_are_listed_shown_and_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert cache.list_traces(folder) == ()
    trace = Trace("abc1", (b"/env",), (directory_touch(b"/env"), Touch(b"/env/f", 0, 500), Touch(b"/env/f", 900, 50)))
    write_trace(str(cache.trace_path(folder, "abc1")), trace)
    (folder / "broken.trace.json").write_text("{")
    (summary,) = cache.list_traces(folder)
    assert (summary.identity, summary.roots, summary.directories, summary.files) == ("abc1", ("/env",), 1, 1)
    assert summary.file_bytes == 550
    assert cache.show_trace(folder, "abc1") == trace
    cache.drop_trace(folder, "abc1")
    for call in (cache.show_trace, cache.drop_trace):
        with pytest.raises(UsageError, match="no trace"):
            call(folder, "abc1")
    with pytest.raises(UsageError):
        cache.trace_path(folder, "../../etc/passwd")


def test_a_node_is_started_asked_and_stopped(tmp_path: Path, env: Path) -> None:
    config = cache.start_node(plan(tmp_path, env), 0)
    try:
        cache.wait_ready(config, 10.0, pushed=True)
        (status,) = cache.node_status(config, tree=True)
        assert status["state"] == "ready"
        total = cache.totals([status, {"node": 1, "state": "gone"}])
        assert (total.nodes, total.ready, total.gone, total.pushed) == (1, 1, (1,), True)
        assert total.budget_bytes == 2 << 30
    finally:
        cache.stop_node(config)
    assert not Path(config.state_dir).exists()
    with pytest.raises(MachineError, match="no cache answers"):
        cache.node_status(config)


def test_a_missing_node_is_named_at_the_deadline(tmp_path: Path, env: Path) -> None:
    config = cache.start_node(plan(tmp_path, env, hosts=("127.9.9.1", "127.9.9.2")), 0)
    try:
        with pytest.raises(DeadlineError, match=r"127\.9\.9\.2"):
            cache.wait_ready(config, 0.5)
    finally:
        cache.stop_node(config)


def test_a_node_that_cannot_start_says_why(tmp_path: Path, env: Path) -> None:
    config = plan(tmp_path, env)
    os.chmod(config.key_file, 0o644)  # noqa: PTH101
    with pytest.raises(MachineError, match="chmod 600"):
        cache.start_node(config, 0)
    assert not (tmp_path / "state" / "0").exists()
