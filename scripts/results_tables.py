#!/usr/bin/env python3
"""Puts the figures of the records into results/snapshot/README.md and results/supervise/README.md.

python bench/snapshot.py --repeats 7 --note TEXT --json results/snapshot/snapshot.json
python bench/supervise.py --repeats 5 --nodes 4 --note TEXT --json results/supervise/restart.json
scripts/results_tables.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def snapshot_lines(result: dict[str, Any]) -> list[str]:
    rows = [("what", "median", "range or spread", "beside it"), ("---",) * 4]
    rows += _step_rows("one rank", result["step_one_rank"]) + _step_rows("two ranks", result["step_two_ranks"])
    save, load = result["save"], result["load"]
    size = f"{save['model_bytes'] / 1e9:.1f} GB"
    fsync = f"with fsync {save['torch_save_and_fsync_s']['median']:.2f} s"
    plain = f"`torch.save`: {save['torch_save_s']['median']:.2f} s, {fsync}"
    for name, what in (("first", "the first"), ("later", "later ones")):
        spent = save[f"snapshot_blocking_{name}_s"]
        rows.append((f"a save of {size} blocks, {what}", f"{spent['median']:.2f} s", _range(spent), plain))
    commit, resume = save["snapshot_until_committed_s"], load["resume_with_check_s"]
    rows.append(("until it is committed", f"{commit['median']:.2f} s", _range(commit), "training goes on meanwhile"))
    plain = f"`torch.load`: {load['torch_load_s']['median']:.2f} s"
    rows.append((f"`resume` of {size}, with its check", f"{resume['median']:.2f} s", _range(resume), plain))
    return ["| " + " | ".join(row) + " |" for row in rows]


def _step_rows(ranks: str, step: dict[str, Any]) -> list[tuple[str, ...]]:
    calls, paced = step["step_us"], step["steps_of_5_ms_us"]
    empty, idle = step["empty_us"]["median"], step["empty_between_steps_of_5_ms_us"]["median"]
    over, mean = step["share_of_calls_over_20_us"], step["steps_of_5_ms_mean_us"]
    return [
        (
            f"`step`, nothing due, {ranks}, call after call",
            f"{calls['median']:.2f} µs",
            f"p25 to p75 {calls['p25']:.2f} to {calls['p75']:.2f} µs; {over:.2%} over 20 µs",
            f"an empty call: {empty:.2f} µs",
        ),
        (
            "the same with steps of 5 ms",
            f"{paced['median']:.1f} µs",
            f"p25 to p75 {paced['p25']:.1f} to {paced['p75']:.1f} µs; mean with agreements {mean:.1f} µs",
            f"an empty call: {idle:.1f} µs",
        ),
    ]


def _range(spent: dict[str, Any]) -> str:
    return f"{spent['low']:.2f} to {spent['high']:.2f} s, n = {spent['n']}"


def restart_lines(record: dict[str, Any]) -> list[str]:
    what = {
        "detect": "windlass knows that a rank failed",
        "end": "the other ranks are gone",
        "decide": "cause and decision",
        "launch": "the new ranks are started",
        "import": "torch is imported",
        "meet": "the ranks have met",
        "load": "the snapshot is loaded",
        "step": "the first step is done",
        "total": "all of it",
    }
    fork, fresh = record["ways"]["fork"], record["ways"]["fresh"]
    count = len(fork["samples"])
    lines = [
        f"| part | until | fork, median of {count} | range | fresh interpreter | range |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in fork["parts"].items():
        both = " | ".join(
            f"{one['median_s']:.2f} s | {one['low_s']:.2f} to {one['high_s']:.2f} s"
            for one in (part, fresh["parts"][name])
        )
        lines.append(f"| {name} | {what[name]} | {both} |")
    agent = record["agent"]
    shares = agent["cpu_share_samples"]
    lines += [
        "",
        f"The agent of a node with {agent['ranks']} ranks: {agent['cpu_share']:.2%} of a core (median of {len(shares)} "
        f"windows of {agent['window_s']} s, {min(shares):.2%} to {max(shares):.2%}), {agent['memory_mb']:.0f} MB.",
    ]
    return lines


def machine_line(record: dict[str, Any], name: str) -> str:
    machine = record["machine"]
    load = f"{machine['load_before'][0]:.1f} before and {machine['load_after'][0]:.1f} after"
    note = f" ({record['note']})" if record["note"] else ""
    return f"[{name}]({name}), {record['date']}: {machine['cpus']} cores, load {load}{note}."


def fill(folder: str, name: str, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    """Write the table of this record into the page beside it; nothing where there is no such record yet."""
    if not (RESULTS / folder / name).exists():
        sys.stderr.write(f"no results/{folder}/{name}: its table stays as it is\n")
        return
    record = json.loads((RESULTS / folder / name).read_text())
    page = RESULTS / folder / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "\n".join([*lines(record), "", machine_line(record, name)])
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


def main() -> int:
    fill("snapshot", "snapshot.json", lambda record: snapshot_lines(record["result"]))
    fill("supervise", "restart.json", restart_lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
