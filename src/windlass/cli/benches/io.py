"""Can this file system and these workers feed the devices? Reads many small samples: files, a tar, a squashfs image.

The samples are written below PATH first, and removed afterwards."""

from __future__ import annotations

import argparse
import secrets
import shutil
from pathlib import Path

from windlass.bench import io_table
from windlass.bench.ranks.io import FORMATS
from windlass.bench.reading import read_record
from windlass.bench.records import Row
from windlass.bench.runner import Part
from windlass.bench.sizes import parse_size
from windlass.bench.verdict import training_rate
from windlass.cli.benches.launching import add_run_options, finish, open_bench
from windlass.cli.result import Result
from windlass.errors import UsageError, unknown_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    parser.usage = f"{parser.prog} PATH [options]"
    parser.add_argument("path", metavar="PATH", help="a folder of the file system to measure")
    what = parser.add_argument_group("what")
    what.add_argument("--samples", type=int, default=2000, help="how many to read (default 2000)")
    what.add_argument("--sample-size", default="114660", metavar="BYTES", help="default: an ImageNet image, 114660")
    what.add_argument("--workers", type=int, default=0, help="reading threads of a rank (default: its cores, up to 8)")
    what.add_argument("--formats", default=",".join(FORMATS), metavar="LIST", help=f"of {', '.join(FORMATS)}")
    what.add_argument("--need", metavar="RATE", help="samples/s that one device takes: a number, or a record of a run")


def main(args: argparse.Namespace) -> Result:
    base = Path(args.path).expanduser().absolute()
    if not base.is_dir():
        raise UsageError(f"{base} is not a folder", hint="give a folder of the file system that holds your data")
    for form in args.formats.split(","):
        if form not in FORMATS:
            raise unknown_name("format", form, FORMATS)
    size = parse_size(args.sample_size)
    if args.samples < 1 or size < 8 or args.workers < 0:
        raise UsageError("--samples must be 1 or more, --sample-size 8 bytes or more, --workers 0 or more")
    need = _need(args.need)
    folder = base / f".windlass-io-{secrets.token_hex(8)}"
    words = ["--folder", str(folder), "--samples", str(args.samples), "--bytes", str(size)]
    words += ["--workers", str(args.workers), "--formats", args.formats]
    bench = open_bench("io", args, {"path": str(base), "samples": args.samples, "need": need, "formats": args.formats})
    try:
        outcome = bench.run(Part(name="io", program="io", words=tuple(words)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = io_table.rows_of(outcome, sample_bytes=size, need_per_device=need) if outcome else []
    return finish(bench, bench.record(rows, remarks=_remarks(rows)), args)


def _need(text: str | None) -> float | None:
    """Samples per second and device, from a number or from the record of a benchmark of images."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        record = read_record(text)
        value, unit = max((training_rate(row) for row in record.rows), default=(0.0, ""))
        if unit != "images/s":
            raise UsageError(f"{text} has no images/s", hint="give a record of bench ddp or synthetic") from None
    if value <= 0:
        raise UsageError(f"--need {text}: it must be a positive rate")
    return value


def _remarks(rows: list[Row]) -> list[str]:
    poor = [row for row in rows if "fed" in row.figures and row.figures["fed"].value < io_table.PASS_LINE]
    cold = [row for row in rows if row.labels["pass"] == "cold"]
    best = max(cold, key=lambda row: row.figures["samples_per_s"].value, default=None)
    if not poor or best is None:
        return []
    return [
        f"{best.labels['format']} is the fastest cold; stage the data to node-local storage where that is not enough"
    ]
