"""Planning reads each thing of the machine once, however many options ask for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from windlass.model.request import AUTO, Request
from windlass.run import context
from windlass.run.planning import plan_request

READERS = ("detect_site", "find_python", "find_allocation", "probe_topology", "with_auto_cache")


@pytest.mark.parametrize("here", [True, False])
def test_site_interpreter_and_node_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Any:
        real = getattr(context, name)

        def reader(*args: Any, **fields: Any) -> Any:
            calls[name] += 1
            return real(*args, **fields)

        return reader

    for name in READERS:
        monkeypatch.setattr(context, name, counted(name))
    (tmp_path / "windlass").mkdir()
    (tmp_path / "windlass" / "config.toml").write_text('account = "a"\n')
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    lists = ", ".join([f'"{tmp_path}/env"'] * 4)
    python.write_text(f"#!/bin/sh\necho '[{lists}, []]'\n")
    python.chmod(0o755)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    (tmp_path / "work").mkdir()
    request = Request(command=("t.py",), kind="script", cache=(AUTO,), python=str(python), cwd=str(tmp_path / "work"))
    planned = plan_request(request, environ, here=here)
    assert planned.request.cache == (f"{tmp_path}/env",)
    assert calls and max(calls.values()) == 1, calls
