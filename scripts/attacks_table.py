#!/usr/bin/env python3
"""Put the table of attacks into results/security/README.md, from the record of a test run.

WINDLASS_ATTACKS=results/security/attacks.jsonl pytest tests/attacks
scripts/attacks_table.py results/security/attacks.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "results" / "security" / "README.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"


def rows(file: Path) -> list[dict[str, Any]]:
    """One row for each attack, by its name. Tests with several cases write several lines, whose counts are added."""
    found: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        counts = found.setdefault(row["attack"], {**row, "counts": Counter()})["counts"]
        counts.update(row["counts"])
    return [found[name] for name in sorted(found)]


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| attack | expected | seen | counts |", "|---|---|---|---|"]
    for row in found:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in row["counts"].items())
        cells = (row["attack"], row["expected"], row["seen"], counts)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write(f"usage: {sys.argv[0]} FILE\n")
        return 2
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows(Path(sys.argv[1])))}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
