"""Curves of `bench/start_curves.py`: from which point on which way wins, told from rows alone."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path

import pytest

from requirements import require_fuse
from startup.curves import (
    FREE,
    Point,
    beats_direct_from,
    curves_svg,
    curves_text,
    estimate_s,
    milder_first,
    quick_points_first,
    sweep,
    waited_s,
)
from startup.rows import measurement
from windlass.bench.record import Measurement, Where, new_record
from windlass.cli.main import main

ROOT = Path(__file__).parents[4]


def row(case: str, seconds: float, ready: float = 0.0, **limits: float) -> Measurement:
    values = {"case": case, "nodes": 4, "ranks": 4, "seconds": seconds, "ready_seconds": ready, "samples": (seconds,)}
    point = {"latency_ms": 0.0, "calls_per_s": 0.0, "bytes_per_s": 0.0}
    return measurement({**values, "shared_calls": 8000, "shared_bytes": 100_000_000, **point, **limits})


ROWS = (
    *(row("direct", 1.0 + 4 * latency, latency_ms=latency) for latency in (0.0, 0.5, 1.0, 2.0)),
    *(row("cache", 2.0 + latency, 1.0, latency_ms=latency) for latency in (0.0, 0.5, 1.0, 2.0)),
    row("cache+trace", 1.0, 1.0, latency_ms=2.0),
    row("direct", 80.0, calls_per_s=100.0),
    row("stage", 90.0, calls_per_s=100.0),
)


def test_a_way_wins_from_the_mildest_point_after_which_it_never_loses() -> None:
    assert beats_direct_from(ROWS, "latency_ms", "cache") == Point(latency_ms=1.0)
    assert beats_direct_from(ROWS, "latency_ms", "cache+trace") == Point(latency_ms=2.0)
    assert beats_direct_from(ROWS, "calls_per_s", "stage") is None
    assert beats_direct_from(ROWS, "bytes_per_s", "stage") is None


def test_what_came_before_the_ranks_counts_for_the_cache_and_is_in_the_seconds_of_staging() -> None:
    assert waited_s(row("cache", 2.0, 1.5)) == 3.5 and waited_s(row("stage", 2.0, 1.5)) == 2.0


def test_points_of_an_axis_go_from_the_quickest_file_system_to_the_slowest() -> None:
    points = sweep((4, 0, 1), (500, 8000), (2e9,))
    assert points[0] == FREE and len(points) == 6
    assert [point.latency_ms for point in milder_first(points, "latency_ms")] == [0, 1, 4]
    assert [point.calls_per_s for point in milder_first(points, "calls_per_s")] == [0, 8000, 500]


def test_an_estimate_grows_with_the_limit_and_serial_calls_cost_most() -> None:
    slow = Point(latency_ms=4.0)
    direct, traced = row("direct", 1.0), row("cache+trace", 1.0, 1.0)
    assert estimate_s(direct, slow) > estimate_s(traced, slow) > estimate_s(traced, FREE)
    assert estimate_s(direct, Point(calls_per_s=100.0)) > 80


def test_all_ways_of_a_point_stand_together_and_a_slow_point_comes_last() -> None:
    free = {way: row(way, 1.0) for way in ("direct", "cache+trace")}
    points = (Point(latency_ms=4.0), Point(latency_ms=1.0), Point(bytes_per_s=2e9))
    order = quick_points_first([(way, point) for way in free for point in points], free)
    assert [point for _, _, point in order] == [points[2]] * 2 + [points[1]] * 2 + [points[0]] * 2
    assert [way for _, way, _ in order[2:]] == ["cache+trace", "direct"] * 2


def test_the_tables_name_the_quickest_and_the_charts_have_every_way() -> None:
    record = new_record("start", where=Where(nodes=4), options={"import": "torch"}, rows=ROWS)
    text = curves_text(record)
    assert "| 2 ms | 9.0 | 5.0 | 2.0 | – | cache+trace |" in text
    assert "latency of a call: quicker than direct: cache from 1 ms on, cache+trace from 2 ms on" in text
    assert "calls a second: quicker than direct: stage nowhere" in text
    assert "bytes a second: quicker than direct: nothing was measured beside it" in text
    assert "| no limit | 1.0 | 3.0 | – | – | direct |" in text
    svg = curves_svg(record, "latency_ms")
    assert (
        all(f">{way}<" in svg for way in ("direct", "cache", "cache+trace")) and curves_svg(record, "bytes_per_s") == ""
    )


def sweep_main(argv: list[str]) -> int:
    return int(runpy.run_path(str(ROOT / "bench" / "start_curves.py"))["main"](argv))


@pytest.mark.fuse
@pytest.mark.timeout(120)
def test_a_sweep_goes_on_where_its_record_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_fuse()
    env, record = tmp_path / "env", tmp_path / "curves.json"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", env], check=True, timeout=60)
    (site,) = (env / "lib").glob("python3*/site-packages")
    (site / "small.py").write_text("")
    argv = ["--env", str(env), "--import", "small", "--nodes", "1", "--work", str(tmp_path)]
    argv += ["--cases", "direct", "--rates", "", "--bandwidths", "", "--record", str(record)]
    assert sweep_main([*argv, "--latencies", "1", "--within", "0.1"]) == 0
    assert "would take about" in capsys.readouterr().out
    first = json.loads(record.read_text())["rows"]
    assert len(first) == 1
    assert sweep_main([*argv, "--latencies", "1", "--plot", str(tmp_path / "c.svg")]) == 0
    rows = json.loads(record.read_text())["rows"]
    assert rows[0] == first[0] and rows[1]["labels"]["latency_ms"] == 1.0 and len(rows) == 2
    assert (tmp_path / "c-latency.svg").exists()
    assert main(["bench", "report", str(record)]) == 0
    assert "direct latency_ms=1 " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        sweep_main([*argv[:2], "--import", "other", *argv[4:]])
