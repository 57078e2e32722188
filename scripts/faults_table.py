#!/usr/bin/env python3
"""Put the table of faults into results/supervise/README.md, from the record of a test run.

WINDLASS_FAULTS=results/supervise/faults.jsonl pytest tests/cluster/test_supervise*.py
scripts/faults_table.py results/supervise/faults.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "results" / "supervise" / "README.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the last line of each fault, in the order of first appearance."""
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        found[row["fault"]] = row
    return list(found.values())


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| fault | named as | then | repeated | losses |", "|---|---|---|---|---|"]
    for row in found:
        named = ", then ".join(row["causes"]) or "(nothing to report)"
        then = ", then ".join(row["actions"]) or "the run continues"
        limit = f" (at most {row['allowed_steps']})" if row["allowed_steps"] is not None else ""
        cells = (row["fault"], named, then, f"{row['repeated_steps']} steps{limit}", row["losses"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows(Path(sys.argv[1])))}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
