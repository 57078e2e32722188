#!/usr/bin/env python3
"""Runs the tests on all cores: run_tests.py [pytest arguments].

A test that fails has failed, but for those that tests/rerun.txt lists, each with its reason: they are run once more,
alone, and the end names those that needed it. At most three may: more fail the run. The last line is a summary of all
that ran, in pytest's own form, with the number of tests that ran once more.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RERUN = ROOT / "tests" / "rerun.txt"
MAX_WORKERS = 16
MAX_RERUN = 3
_WORST_LAST = ("passed", "skipped", "xfailed", "xpassed", "failed", "error")
_SHOWN = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")


class Outcomes:
    """A pytest plugin: how each test ended. A test that passed and failed while its fixtures were taken down failed."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seen = self.of.get(report.nodeid, "passed")
        self.of[report.nodeid] = max(seen, _outcome(report), key=_WORST_LAST.index)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.of[report.nodeid] = "error"

    @property
    def failed(self) -> list[str]:
        return [test for test, outcome in self.of.items() if outcome in {"failed", "error"}]


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "error" if report.when in {"setup", "teardown"} else "failed"
    return "skipped" if report.skipped else "passed"


def parse_rerun_list(text: str) -> dict[str, str]:
    """Pattern of node ids or files, and the reason. ValueError for a line without a reason."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        pattern, _, reason = line.partition("  # ")
        if not line.strip() or line.startswith("#"):
            continue
        if not reason.strip():
            raise ValueError(f"tests/rerun.txt:{number}: no reason; write `PATTERN  # why it may fail once`")
        found[pattern.strip()] = reason.strip()
    return found


def may_run_twice(test: str, listed: dict[str, str]) -> bool:
    """`test` is a node id, to which xdist may have added `@GROUP`.

    A pattern is a node id, the beginning of one up to `[` or `::`, or a glob of file names.
    """
    file, bare = test.split("::", 1)[0], test.split("[", 1)[0].split("@", 1)[0]
    return any(test == p or bare == p or fnmatch.fnmatchcase(file, p) for p in listed)


def summary_line(outcomes: dict[str, str], duration_s: float, rerun: int = 0) -> str:
    """As pytest closes a run: `3 failed, 120 passed, 4 skipped, 1 rerun in 12.30s`."""
    counts = Counter(outcomes.values())
    parts = [
        f"{counts[name]} {name}{'s' if name == 'error' and counts[name] > 1 else ''}" for name in _SHOWN if counts[name]
    ]
    return f"{', '.join([*parts, f'{rerun} rerun'])} in {duration_s:.2f}s"


def workers() -> int:
    """One more than there are cores: many tests wait for a process more than they compute."""
    return min(len(os.sched_getaffinity(0)) + 1, MAX_WORKERS)


def run(argv: list[str], count: int) -> tuple[int, Outcomes]:
    outcomes = Outcomes()
    # The order is that of tests/conftest.py, which knows what takes long; xdist's own is by the number of tests.
    spread = ["-n", str(count), "--dist", "loadgroup", "--no-loadscope-reorder", "--durations=40"]
    code = pytest.main([*spread, *argv], plugins=[outcomes])
    return int(code), outcomes


def main(argv: list[str]) -> int:
    start = time.monotonic()
    listed = parse_rerun_list(RERUN.read_text())
    code, first = run(argv, workers())
    if code != pytest.ExitCode.TESTS_FAILED:
        return close(code, first.of, start)
    final = [test for test in first.failed if not may_run_twice(test, listed)]
    if final:
        say("These failed, and tests/rerun.txt does not list them:", final)
        return close(code, first.of, start)
    if len(first.failed) > MAX_RERUN:
        say(f"These failed, and at most {MAX_RERUN} tests may run once more:", first.failed)
        return close(code, first.of, start)
    say("These failed, and tests/rerun.txt lets them run once more:", first.failed)
    files = list(dict.fromkeys(test.partition("::")[0] for test in first.failed))  # to collect no others
    again_code, second = run(["--last-failed", "--last-failed-no-failures", "none", *argv, *files], 1)
    missed = [test for test in first.failed if test not in second.of]
    if again_code == 0 and not missed:
        say("These passed only when run once more:", first.failed)
        return close(0, {**first.of, **second.of}, start, len(first.failed))
    say("These failed twice:", second.failed + missed)
    return close(again_code or code, {**first.of, **second.of}, start, len(first.failed))


def say(head: str, tests: list[str]) -> None:
    print(f"\n{head}", *tests, sep="\n  ")


def close(code: int, outcomes: dict[str, str], start: float, rerun: int = 0) -> int:
    print(f"\n{summary_line(outcomes, time.monotonic() - start, rerun)}", flush=True)
    return code


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
