"""windlass as a library: the same runs as the command line makes, without one."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.typed import environment, only_run, script, trust
from windlass import api
from windlass.errors import UsageError
from windlass.model.plan import plan_to_json

# Rank 1 ends with the code that is the first word, at its first start.
RANK = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "1" and os.environ.get("WINDLASS_ATTEMPT", "0") == "0":
    sys.exit(int(sys.argv[1]))
"""


def request(folder: Path, code: int = 0, **options: object) -> api.Request:
    path = script(folder, RANK, "rank.py")
    return api.Request(
        command=(str(path), str(code)),
        kind="script",
        cwd=str(folder),
        python=sys.executable,
        ranks_per_node=2,
        **options,  # type: ignore[arg-type]
    )


def test_a_request_is_planned_and_nothing_is_written(tmp_path: Path) -> None:
    planned = api.plan_request(request(tmp_path), environ=environment(tmp_path))
    assert (planned.plan.world_size, planned.plan.launcher) == (2, "local")
    assert planned.context.on_node
    assert [path.name for path in tmp_path.iterdir()] == ["rank.py"]


def test_a_plan_for_nodes_elsewhere_does_not_look_at_this_one(tmp_path: Path) -> None:
    asked = request(tmp_path, site="frontier", nodes=2, account="ACCOUNT")
    planned = api.plan_request(asked, environ=environment(tmp_path), here=False)
    assert (planned.plan.site, planned.plan.nodes, planned.context.on_node) == ("frontier", 2, False)


def test_two_ranks_run_to_their_end_and_show_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready = api.new_run(request(tmp_path), environ=environment(tmp_path))
    record = api.start(ready)
    assert (record.outcome, record.exit_code, record.ranks_per_node) == ("ok", 0, 2)
    said = (ready.folder.path / "out" / "node-0000.log").read_text()
    assert "rank 0 of 2" in said and "rank 1 of 2" in said
    assert json.loads((ready.folder.path / "result.json").read_text())["outcome"] == "ok"
    assert capfd.readouterr() == ("", "")


def test_a_view_gets_the_ranks_and_the_words_of_windlass(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    record = api.run(request(tmp_path), environ=environment(tmp_path), view=api.terminal_view("1", out, err))
    assert record.outcome == "ok"
    assert out.getvalue() == "[1] rank 1 of 2\n"
    assert "1 node x 2 ranks" in err.getvalue()


def test_a_view_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    view = api.terminal_view("7", io.StringIO(), io.StringIO())
    with pytest.raises(UsageError, match="ranks 0 to 1"):
        api.new_run(request(tmp_path), environ=environment(tmp_path), view=view)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_failed_is_a_record_and_can_be_resumed(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    record = api.run(request(tmp_path, code=3), environ=environ)
    assert (record.outcome, record.exit_code) == ("failed", 3)
    assert record.failure is not None and record.failure.rank == 1
    again = api.resume(only_run(tmp_path), environ=environ)
    assert isinstance(again, api.RunRecord) and again.exit_code == 3
    assert (only_run(tmp_path) / "attempt-1" / "result.json").exists()


def test_a_run_at_another_size_is_resumed_with_a_plan_of_its_own(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    api.run(request(tmp_path, code=3), environ=environ)
    again = api.resume(only_run(tmp_path), environ=environ, ranks_per_node=1)
    assert isinstance(again, api.RunRecord)
    assert (again.ranks_per_node, again.outcome) == (1, "ok")


def test_a_request_with_restarts_is_supervised(tmp_path: Path) -> None:
    ready = api.new_run(request(tmp_path, code=85, restarts=1), environ=environment(tmp_path))
    assert api.start(ready).outcome == "ok"
    assert (ready.folder.path / "attempt-1" / "verdict.json").exists()


def test_a_saved_plan_runs_in_a_folder_of_its_own(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    saved = tmp_path / "saved.json"
    saved.write_bytes(plan_to_json(api.plan_request(request(tmp_path), environ=environ).plan))
    with pytest.raises(UsageError, match="not trusted"):
        api.saved_run(saved, environ=environ)
    trust(saved, tmp_path)
    ready = api.saved_run(saved, environ=environ)
    assert api.start(ready).outcome == "ok"
    assert ready.folder.path == only_run(tmp_path)


def test_a_machine_without_a_scheduler_has_nothing_to_submit_to(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no scheduler"):
        api.submit_request(request(tmp_path), environ=environment(tmp_path))


def test_children_that_a_process_had_before_a_run_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        assert api.run(request(tmp_path), environ=environment(tmp_path)).outcome == "ok"
        assert other.poll() is None
        other.kill()
        assert other.wait() == -signal.SIGKILL
