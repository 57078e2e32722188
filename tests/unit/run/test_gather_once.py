"""Planning reads each thing of the machine once, however many options ask for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from windlass.model.request import AUTO, Request
from windlass.run import context
from windlass.run.planning import plan_request
from windlass.run.scheduler_commands import ask_scheduler
from windlass.sites.catalog import load_site

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


def test_the_scheduler_is_asked_all_questions_at_the_same_time(tmp_path: Path) -> None:
    """Each command waits until all of them have started, so that one after the other would fail."""
    programs = {
        "sinfo": "gpu*|8|64|gpu:a100:4|(null)",
        "scontrol": "PartitionName=gpu MaxTime=1-00:00:00 MaxNodes=4",
        "sacctmgr": "acct",
    }
    for name, answer in programs.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        started = " && ".join(f"[ -e {tmp_path}/{other} ]" for other in programs)
        program.write_text(
            f"#!/bin/sh\n: > {tmp_path}/{name}\nfor i in $(seq 150); do\n"
            f"  if {started}; then echo '{answer}'; exit 0; fi; sleep 0.01\ndone\nexit 1\n"
        )
        program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "USER": "me"}
    said = ask_scheduler(load_site("generic-slurm"), Request(command=("true",), account="acct"), environ)
    assert [offer.name for offer in said.offers] == ["gpu"] and said.accounts == ("acct",)
    assert said.remarks == (), "scontrol failed"
