"""What a report of 10,000 ranks costs: reading the samples, judging, writing the page, and a browser drawing it.

    python bench/report.py [--nodes 1250] [--ranks-per-node 8] [--lines 96] [--repeats 5] [--json FILE]

Samples are made up (`tests/unit/report/samples.py`); the run is a real one of one rank. The browser is a headless
Chromium, whose own start is measured beside it with an empty page.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from unit.report.samples import write_samples  # noqa: E402
from windlass.diagnose.report.gather import gather  # noqa: E402
from windlass.diagnose.report.page import report_page  # noqa: E402
from windlass.run.folder import RunFolder  # noqa: E402


def timed(call: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def browse(page: Path, work: Path) -> None:
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    more = ("--disable-component-update", "--disable-sync", f"--user-data-dir={work / 'profile'}")
    shot = ("--window-size=1100,2600", f"--screenshot={work / 'shot.png'}")
    subprocess.run(["chromium", *flags, *more, *shot, page.as_uri()], check=True, capture_output=True, timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--lines", type=int, default=96, help="a history is at most 64 MiB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run = work / "run"
        command = [sys.executable, "-m", "windlass", "run", "-r", "1", "--quiet", "--run-dir", str(run), "--", "true"]
        subprocess.run(command, check=True, timeout=60)
        per_node = args.ranks_per_node
        write_samples(
            run, nodes=args.nodes, ranks_per_node=per_node, devices_per_node=per_node, lines=args.lines, slow=77
        )
        history = (run / "watch" / "history.jsonl").stat().st_size
        report = gather(RunFolder(run), {})
        page = work / "page.html"
        page.write_text(report_page(report))
        (work / "empty.html").write_text("<p>empty</p>")
        seconds = {
            "gather": timed(lambda: gather(RunFolder(run), {}), args.repeats),
            "page": timed(lambda: report_page(report), args.repeats),
        }
        if shutil.which("chromium"):
            browse(work / "empty.html", work)  # the profile's folder is made
            seconds["browser"] = timed(lambda: browse(page, work), args.repeats)
            seconds["browser, empty page"] = timed(lambda: browse(work / "empty.html", work), args.repeats)
        size = page.stat().st_size
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    ranks = args.nodes * per_node
    print(f"{ranks} ranks, {args.lines} lines of {history / 1e6:.1f} MB: a page of {size / 1e6:.2f} MB")
    for what, samples in seconds.items():
        print(f"{what:<20} median {statistics.median(samples):.2f} s, most {max(samples):.2f} s")
    if args.json:
        record = {"machine": machine, "ranks": ranks, "lines": args.lines, "history_bytes": history, "page_bytes": size}
        rounded = {what: [round(value, 4) for value in samples] for what, samples in seconds.items()}
        args.json.write_text(json.dumps({**record, "seconds": rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
