"""What each speculation of the cache earns: a start without it, beside a start with all of them.

    python bench/start_speculations.py --record FILE [--env PATH] [--nodes 4] [--latency 0] [--rounds 2] [--within 500]

A speculation is taken away by an edit of a copy of the node-side code, which is what the nodes are sent. One process
measures all variants in turns with the same trace, so that ratios within a round compare. Each row is written at once.
The push of a trace is the difference between the cases `cache` and `cache+trace` of `all`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windlass.agents.ship as ship
from startup.cases import Sample, StartSetup, cache, native
from startup.shared import Limits
from startup.workfolder import work_folder
from windlass.base.settings import current_environ
from windlass.node.sys.atomic import replace_text

Edit = tuple[str, str, str]
"""A file below `node/cache`, text that it has once, and what stands there instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One speculation, the edits that take it away, and the cases that can differ."""

    name: str
    edits: tuple[Edit, ...] = ()
    cases: tuple[str, ...] = ("cache", "cache+trace")


_WARMING = ("config.py", "    warm: bool = True", "    warm: bool = False")
_PACK = ("pack_reader.py", "        path = pack_path(config.trace_in)\n", "        return None\n")
_AHEAD = ("driver.py", "if config.placement == REPLICATE and not config.trace_in:", "if False:")
_SWEEPS = ("neighbours.py", "            if found is None:", "            found = None\n            if found is None:")
_NEIGHBOURS = ("neighbours.py", "        index = chunk_index(key)\n", "        return range(0)\n")
_HINTS = (
    "backend.py",
    "            link.tell(wire.PREFETCH",
    "            return\n            link.tell(wire.PREFETCH",
)
_FOLDERS = ("backend.py", "            self.will_want(key, 0)", "            pass")

OTHER = "other tree"
VARIANTS = (
    Variant(name="all"),
    Variant(name="no live push", edits=(("config.py", "live: bool = True", "live: bool = False"),)),
    Variant(name="no kernel warming", edits=(_WARMING,)),
    Variant(name="no pack", edits=(_PACK,), cases=("cache+trace",)),
    Variant(name="no read-ahead", edits=(_AHEAD,), cases=("cache",)),
    Variant(name="no sweeps", edits=(_SWEEPS,)),
    Variant(name="no neighbours", edits=(_NEIGHBOURS,)),
    Variant(name="no hints", edits=(_HINTS,)),
    Variant(name="no hints of folders", edits=(_FOLDERS,), cases=("cache",)),
    Variant(name="no neighbours, no hints", edits=(_NEIGHBOURS, _HINTS)),
    Variant(name=OTHER),
)


def make_tree(variant: Variant, source: Path, folder: Path) -> Path:
    """The node tree without the speculation."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in variant.edits:
        path = folder / "cache" / file
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{variant.name}: {file} has changed, renew the edit")
        path.write_text(text.replace(old, new))
    return folder


def figures(sample: Sample, nodes: int) -> dict[str, Any]:
    """Seconds, processor seconds of the caches of all nodes, and what the shared file system saw."""
    spent = {"root": 0.0, "node": 0.0}
    waits = {"root": 0.0, "node": 0.0}
    for name, (calls, seconds) in sample.costs.items():
        where = name.partition(" ")[0]
        if " thread " in name:
            spent[where] += seconds
        elif "miss of a" in name:
            waits[where] += calls
    return {
        "seconds": round(sample.seconds, 3),
        "cpu_s": round(spent["root"] + (nodes - 1) * spent["node"], 3),
        "calls": sample.shared.calls,
        "bytes": sample.shared.bytes,
        "misses_root": round(waits["root"]),
        "misses_node": round(waits["node"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=sys.prefix, help="environment with bin/python")
    parser.add_argument("--import", dest="module", default="torch")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--within", type=float, default=500.0, metavar="S", help="begin no measurement after this")
    parser.add_argument("--only", default="", metavar="NAME;…", help="variants beside `all`")
    parser.add_argument("--other", metavar="DIR", help="the folder `windlass/node` of another version, as a variant")
    parser.add_argument("--cases", default="native,cache,cache+trace", metavar="CASE,…")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--record", required=True)
    args = parser.parse_args()
    end = time.monotonic() + args.within
    rows: list[dict[str, Any]] = []
    names = set(args.only.split(";")) if args.only else {each.name for each in VARIANTS} - {OTHER}
    names |= {"all"} | ({OTHER} if args.other else set())
    chosen = [each for each in VARIANTS if each.name in names]
    with work_folder(args.work) as work:
        limits = Limits(latency_s=args.latency / 1000)
        setup = StartSetup(env=Path(args.env), module=args.module, work=work, limits=limits, environ=current_environ())
        trees = {
            each.name: make_tree(
                each, Path(args.other) if each.name == OTHER else ship._NODE, work / "trees" / each.name
            )
            for each in chosen
        }
        ship._NODE = trees["all"]
        native(setup, 1, 1)
        for turn in range(args.rounds):
            for variant in chosen:
                ship._NODE = trees[variant.name]
                for case in variant.cases if variant.name != "all" else ("native", *variant.cases):
                    if time.monotonic() > end or case not in args.cases.split(","):
                        continue
                    sample = measured(setup, case, args.nodes)
                    rows.append({"round": turn, "without": variant.name, "case": case, **figures(sample, args.nodes)})
                    print(json.dumps(rows[-1]), flush=True)
                    settings = {"import": args.module, "nodes": args.nodes, "latency_ms": args.latency}
                    replace_text(Path(args.record), json.dumps({"settings": settings, "rows": rows}, indent=1))
    print(table(rows))
    return 0


def measured(setup: StartSetup, case: str, nodes: int) -> Sample:
    return native(setup, nodes, 1) if case == "native" else cache(setup, nodes, 1, trace=case != "cache")[0]


def table(rows: list[dict[str, Any]]) -> str:
    """Medians against `all` of the same case: above 1, the speculation earns that much."""
    lines = [f"{'without':<38}{'case':<13}{'s':>8}{'ratio':>7}{'cpu':>7}{'calls':>7}{'bytes':>7}"]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, case in dict.fromkeys((row["without"], row["case"]) for row in rows):
        some = [row for row in rows if (row["without"], row["case"]) == (name, case)]
        found[name, case] = {key: statistics.median(row[key] for row in some) for key in ("seconds", *_COMPARED)}
    for (name, case), own in found.items():
        base = found["all", case]
        ratios = "".join(
            f"{own[key] / base[key]:>7.2f}" if base[key] else f"{'–':>7}" for key in ("seconds", *_COMPARED)
        )
        lines.append(f"{name:<38}{case:<13}{own['seconds']:>8.2f}{ratios}")
    return "\n".join(lines)


_COMPARED = ("cpu_s", "calls", "bytes")


if __name__ == "__main__":
    sys.exit(main())
