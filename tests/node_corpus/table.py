"""The table of planted faults of nodes in `docs/reference/verdicts.md`, from what was recorded last."""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "results" / "real" / "nodes.json"


def node_table() -> str:
    """One row for each fault, and how many were named."""
    groups = json.loads(RECORDED.read_text())
    rows = [(name, row) for rows in groups.values() for name, row in rows.items()]
    named = sum(not row["missed"] for _, row in rows)
    applied = [row["remedy"] for _, row in rows if row["remedy"] not in {"", "leave the node out"}]
    lines = [
        f"| {name} | `{row['kind']}` | {'no' if row['missed'] else 'yes'} | {row['remedy'].partition(':')[0]} |"
        for name, row in rows
    ]
    return "\n".join(
        (
            "Named on the right node with the expected advice, and no other finding than its consequences: "
            f"{named} of {len(rows)}. "
            f"After the advice was followed the check was clean: {applied.count('applied')} of {len(applied)}.",
            "",
            "| fault | finding | named | remedy |",
            "|---|---|---|---|",
            *lines,
        )
    )
