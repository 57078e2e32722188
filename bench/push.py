"""Push one file to all nodes of this machine: `windlass stage`, one reader, Slurm's sbcast, MPI_Bcast, a plain copy.

    python bench/push.py 1G [--link 400M] [--nodes 2,4,8] [--cases stage,sbcast] [--repeat 5] [--record FILE]

With --link every node is a network namespace whose link has this rate (needs root). Without it all nodes are addresses
of loopback, and a plain TCP copy is measured beside them.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from dataclasses import asdict
from pathlib import Path

from startup.cases import load_average
from startup.push import LINK_CASES, LOOPBACK_CASES, PushSetup, measure_push
from startup.rows import start_record
from startup.workfolder import work_folder
from windlass.base.notation.counts import parse_size
from windlass.bench.cases import table_text
from windlass.bench.record import write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", metavar="SIZE", help="bytes of the file, as in 1G")
    parser.add_argument("--link", metavar="RATE", help="bits a second of each node's link, as in 400M")
    parser.add_argument("--nodes", default="2,4,8", metavar="N,N…")
    parser.add_argument("--cases", metavar="CASE,…", help=f"of {', '.join(LOOPBACK_CASES)} (default: all)")
    parser.add_argument("--repeat", type=int, default=5, metavar="K", help="rounds (default 5)")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write rows, machine and settings as a record")
    args = parser.parse_args()
    size, link = parse_size(args.size, "SIZE"), bits(args.link) if args.link else None
    known = LOOPBACK_CASES if link is None else LINK_CASES
    cases = tuple(args.cases.split(",")) if args.cases else known
    sizes = tuple(int(part) for part in args.nodes.split(","))
    if min(sizes) < 2 or not set(cases) <= set(known):
        parser.error(f"two nodes or more, and cases of {', '.join(known)}")
    machine = {"cpus": os.cpu_count(), "load_before": load_average()}
    with work_folder(args.work) as work:
        setup = PushSetup(work=work, size=size, link_bits_per_s=link)
        rows = measure_push(setup, cases, sizes, args.repeat, print)
    options = {"bytes": size, "link_bits_per_s": link, "repeat": args.repeat}
    record = start_record(
        [asdict(row) for row in rows],
        options={name: value for name, value in options.items() if value is not None},
        machine=machine | {"load_after": load_average()},
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    if args.record:
        write_record(args.record, record)
    print("\n".join([table_text(record), *(f"not measured: {line}" for line in record.skipped)]))


def bits(text: str) -> int:
    """Bits a second of `400M`. Rates of links count in thousands."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:bit(?:/s)?)?", text.strip(), re.IGNORECASE)
    found = int(float(match.group(1)) * 1000 ** " KMG".index(match.group(2).upper() or " ")) if match else 0
    if found < 1_000_000:
        raise SystemExit(f"--link {text!r} is not a rate of a megabit a second or more: write 400M or 1G")
    return found


if __name__ == "__main__":
    main()
