"""Traces on the submitting side: which environment one belongs to; listed, shown and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.node.cache.trace import Touch, Trace, directory_touch, write_trace
from windlass.run.sidecars.traces import drop_trace, environment_identity, list_traces, show_trace, trace_path


@pytest.fixture
def env(tmp_path: Path) -> Path:
    root = tmp_path / "env"
    (root / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return root


def test_the_identity_follows_the_environment(env: Path) -> None:
    before = environment_identity([str(env)])
    assert environment_identity([str(env)]) == before
    (env / "lib" / "python3.11" / "site-packages" / "new").mkdir()
    assert environment_identity([str(env)]) != before


def test_traces_are_listed_shown_and_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert list_traces(folder) == ()
    trace = Trace("abc1", (b"/env",), (directory_touch(b"/env"), Touch(b"/env/f", 0, 500), Touch(b"/env/f", 900, 50)))
    write_trace(str(trace_path(folder, "abc1")), trace)
    (folder / "broken.trace.json").write_text("{")
    (summary,) = list_traces(folder)
    assert (summary.identity, summary.roots, summary.directories, summary.files) == ("abc1", ("/env",), 1, 1)
    assert summary.file_bytes == 550
    assert show_trace(folder, "abc1") == trace
    drop_trace(folder, "abc1")
    for call in (show_trace, drop_trace):
        with pytest.raises(UsageError, match="no trace"):
            call(folder, "abc1")
    with pytest.raises(UsageError):
        trace_path(folder, "../../etc/passwd")
