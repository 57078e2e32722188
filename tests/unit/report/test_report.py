"""What a report says of a run: a verdict on samples made for each rule, and partial answers from what is left."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from looping import each
from requirements import missing_programs, require
from unit.cli.typed import in_process, script, windlass
from unit.report.samples import write_samples
from windlass.base.notation.counts import duration_text
from windlass.diagnose.report.gather import RunReport, gather
from windlass.diagnose.report.page import jobreport_text, report_page, report_text
from windlass.run.folder import RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that ended well."""
    cwd = tmp_path_factory.mktemp("run")
    script(cwd)
    assert windlass("run", "-r", "2", "--run-dir", "done", "place.py", cwd=cwd).code == 0
    return cwd / "done"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "train-1"))


def report_of(run: Path) -> RunReport:
    return gather(RunFolder(run), {})


def names(report: RunReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_healthy_run_gets_no_verdict_but_that_nothing_stands_out(run: Path) -> None:
    for seed_lines in range(20, 30):  # ten runs
        write_samples(run, lines=seed_lines)
        assert names(report_of(run)) == ["fine"]


def test_a_run_that_failed_or_died_is_not_called_fine(run: Path) -> None:
    write_samples(run)
    record = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**record, "outcome": "failed", "exit_code": 7}))
    assert names(report_of(run)) == ["failure"]
    (run / "result.json").write_text(json.dumps({**record, "outcome": "stopped", "exit_code": 130}))
    assert names(report_of(run)) == ["state"], "a run that was stopped on purpose has not failed"
    (run / "result.json").unlink()
    assert names(report_of(run)) == ["failure"]


def test_samples_without_a_step_are_no_measurement(run: Path) -> None:
    write_samples(run)
    now = json.loads((run / "watch" / "now.json").read_text())
    now["ranks"] = [[*rank[:3], 0, *rank[4:]] for rank in now["ranks"]]
    (run / "watch" / "now.json").write_text(json.dumps(now))
    report = report_of(run)
    assert names(report) == ["not-measured"]
    assert "no step was recorded" in report.findings[0].evidence


@each(
    ("samples", "name", "severity"),
    [
        ({"wait": 0.3}, "input-bound", "error"),
        ({"wait": 0.12}, "input-bound", "warning"),
        ({"comm": 0.5}, "network-bound", "error"),
        ({"comm": 0.25}, "network-bound", "warning"),
        ({"slow": 3}, "straggler", "error"),
        ({"slow_changes": True}, "noise", "warning"),
        ({"idle_device": 2}, "idle-devices", "error"),
        ({"retries": 4}, "device-memory", "warning"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_fault_is_named_with_its_evidence(run: Path, samples: dict[str, object], name: str, severity: str) -> None:
    write_samples(run, **samples)  # type: ignore[arg-type]
    report = report_of(run)
    assert names(report) == [name]
    finding = report.findings[0]
    assert (finding.severity, bool(finding.advice)) == (severity, True)


def test_the_straggler_is_named_with_its_node_and_its_waiting_peers_are_not_called_network(run: Path) -> None:
    write_samples(run, slow=3)
    finding = report_of(run).findings[0]
    assert "rank 3 on node0001" in finding.subject


def test_a_rank_that_was_profiled_is_not_called_a_straggler(run: Path) -> None:
    for ranks, expected in (((3,), ["profiled", "fine"]), ((0,), ["straggler"])):
        write_samples(run, slow=3, profiled=ranks)
        assert names(report_of(run)) == expected


def test_energy_is_that_of_the_nodes_and_else_of_the_devices(run: Path) -> None:
    write_samples(run, nodes=2, lines=36, power_w=500.0)
    nodes = report_of(run)
    assert (nodes.energy_of, round(nodes.energy_kwh or 0, 6)) == ("nodes", 0.1)  # 2 x 500 W for 6 minutes
    write_samples(run, nodes=2, lines=36, power_w=None)
    devices = report_of(run)
    assert (devices.energy_of, round(devices.energy_kwh or 0, 6)) == ("devices", 0.12)  # 4 x 300 W


def test_a_run_without_samples_gets_a_partial_report_with_a_note(run: Path) -> None:
    report = report_of(run)
    assert names(report) == ["not-measured", "note"]
    assert any("--watch" in finding.evidence for finding in report.findings)
    assert "100%" not in report_text(report, [])
    assert report_page(report).endswith("</html>\n")


@each(
    ("file", "content", "said"),
    [
        ("watch/now.json", b"{torn", "not samples of a job"),
        ("watch/history.jsonl", b'{"hosts": [], "devices": [], "ranks": []}\n{torn\nnull\n', "2 lines"),
        ("watch/history.jsonl", b"\xff\xfe\x00", "1 line"),
        ("result.json", b"", "its result is unknown"),
        ("verdict.json", b"[]", ""),
    ],
)
def test_torn_files_make_a_partial_report(run: Path, file: str, content: bytes, said: str) -> None:
    write_samples(run)
    (run / file).write_bytes(content)
    report = report_of(run)
    texts = (*report.notes, *(finding.evidence for finding in report.findings))
    assert any(said in text for text in texts) or not said
    assert report_page(report).endswith("</html>\n")
    assert report_text(report, [])
    assert jobreport_text(report)


def test_rules_without_evidence_are_one_line_and_a_list_in_json(run: Path) -> None:
    write_samples(run)
    report = report_of(run)
    lines = [line for line in report_text(report, []).splitlines() if "not checked" in line]
    assert len(report.not_checked) > 1 and len(lines) == 1, lines
    assert f"{len(report.not_checked)} rules not checked: " in lines[0]


def test_a_history_of_other_columns_than_its_head_says_is_passed_over(run: Path) -> None:
    write_samples(run, nodes=2)
    lines = (run / "watch/history.jsonl").read_bytes().splitlines()
    write_samples(run, nodes=4)
    head = (run / "watch/history.jsonl").read_bytes().splitlines()[0]
    (run / "watch/history.jsonl").write_bytes(b"\n".join([head, *lines[1:]]))
    assert report_of(run).measured.spans == ()


def test_words_of_a_run_are_text_in_the_page(run: Path) -> None:
    write_samples(run)
    now = json.loads((run / "watch/now.json").read_text())
    now["nodes"][0][0] = "<script>alert(1)</script>"
    (run / "watch/now.json").write_text(json.dumps(now))
    assert "<script" not in report_page(report_of(run))


def test_ten_thousand_ranks_are_folded_into_a_page_of_a_few_hundred_kilobytes(run: Path) -> None:
    write_samples(run, nodes=1250, ranks_per_node=8, devices_per_node=8, lines=12, slow=77)
    page = report_page(report_of(run))
    assert len(page) < 1_000_000
    assert "rank 77 on node0009" in page


def test_the_command_writes_the_page_and_says_where(run: Path) -> None:
    write_samples(run, wait=0.3)
    env = {"WINDLASS_RUNS": str(run.parent)}
    done = in_process("report", cwd=run, env=env)
    assert done.code == 0, done.text
    assert "input-bound" in done.stdout
    assert f"page: {run / 'report.html'}" in done.stdout
    assert (run / "report.html").stat().st_mode & 0o077 == 0
    table = in_process("report", "train-1", "--format", "jobreport", cwd=run, env=env)
    assert table.stdout.startswith("| Job ")
    data = json.loads(in_process("report", "--json", "--against", "train-1", cwd=run, env=env).stdout)
    assert data["against"]["efficiency"] == 1.0
    assert in_process("report", "nothing", cwd=run, env=env).code == 2
    assert in_process("report", "--output", "/no/such/folder/x.html", cwd=run, env=env).code == 3


def test_a_run_that_failed_tells_its_starts(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('bad data')")
    assert windlass("run", "-r", "1", "--run-dir", "f", "fails.py", cwd=tmp_path).code == 1
    report = report_of(tmp_path / "f")
    assert report.state == "failed"
    assert (report.findings[0].kind, report.findings[0].severity) == ("failure", "error")
    assert "bad data" in report_page(report)


@pytest.mark.chromium
def test_a_browser_draws_the_page_whole_in_light_and_dark(run: Path, tmp_path: Path) -> None:
    why = missing_programs("chromium")
    require("chromium", not why, why)
    write_samples(run, slow=3, wait=0.2)
    path = tmp_path / "report.html"
    path.write_text(report_page(report_of(run)))
    for scheme in ("light", "dark"):
        shot = tmp_path / f"{scheme}.png"
        flags = ["--force-dark-mode"] if scheme == "dark" else []
        done = subprocess.run(
            [
                *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync", *flags),
                *(f"--user-data-dir={tmp_path / scheme}", "--window-size=1100,1600", f"--screenshot={shot}"),
                path.as_uri(),
            ],
            capture_output=True,
            timeout=120,
        )
        assert shot.stat().st_size > 20_000, done.stderr[-500:]


@each(("seconds", "text"), [(12.34, "12.3 s"), (245, "4 min 05 s"), (11_220, "3 h 07 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
