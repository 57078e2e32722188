"""Predict the start of `import torch` on up to 16,384 nodes. Starts nothing.

    python bench/simulate_start.py --from results/start/stages-….json [--page FILE] [--plot FILE]

RECORD comes from `python bench/start.py --nodes 1,8 --cases native,direct,cache,cache+trace --stages --output FILE`.
Without it only direct and Copper-like starts are predicted: the costs of the cache are measured, not assumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from startup.chart import plot_svg
from startup.measured import stage_costs
from startup.page import renewed
from startup.simulate import FANOUT, WAYS, predict
from windlass.bench.reading import read_record

_SIZES = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", metavar="RECORD", help="a record of the stages of the cache")
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the generated part of this page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the chart as SVG")
    args = parser.parse_args()
    if args.page and not args.source:
        parser.error("--page needs --from RECORD")
    costs = stage_costs(read_record(args.source), FANOUT) if args.source else None
    ways = WAYS if costs else tuple(way for way in WAYS if not way.startswith("windlass"))
    series = [predict(way, _SIZES, 12, costs=costs) for way in ways]
    if args.plot:
        args.plot.write_text(plot_svg(series))
    if args.page and costs:
        args.page.write_text(renewed(args.page.read_text(), args.source, costs, series))
    print("simulated, not measured: seconds until the last of nodes x 12 ranks has imported (10 %, middle, 90 %)")
    for point in (point for way in series for point in way):
        print(f"{point.way:<15} {point.nodes:>6} nodes {point.low:>9.1f} {point.middle:>9.1f} {point.high:>9.1f}")


if __name__ == "__main__":
    main()
