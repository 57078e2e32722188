"""Golden text of the tables that are not collectives, and how their rows come about."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from unit.bench.made import GH200, ddp_record, training_rowed
from windlass.bench.cases import table_text
from windlass.bench.ddp import sweep
from windlass.bench.llm import with_utilisation
from windlass.bench.measure import Figure
from windlass.bench.record import Measurement, Where, new_record
from windlass.bench.scale import figure_of, parse_counts, scaled
from windlass.errors import UsageError

DATA = Path(__file__).parent / "data"


def test_the_table_of_ddp_is_that_of_the_published_benchmark() -> None:
    record = ddp_record(
        training_rowed("no ddp", 1, 1, [0.023] * 10, parallel="none"),
        training_rowed("1M/1G", 1, 1, [0.024] * 10),
        training_rowed("2M/8G", 8, 2, [0.026] * 6 + [0.027] * 3 + [0.4] * 2),
    )
    assert table_text(record) + "\n" == (DATA / "ddp.txt").read_text()


def test_the_sweep_goes_from_one_device_to_all_nodes() -> None:
    labels = [(step.label, step.nodes, step.ranks_per_node, step.ddp) for step in sweep(3, 4)]
    assert labels == [
        ("no ddp", 1, 1, False),
        ("1M/1G", 1, 1, True),
        ("1M/2G", 1, 2, True),
        ("1M/4G", 1, 4, True),
        ("2M/8G", 2, 4, True),
        ("3M/12G", 3, 4, True),
    ]
    assert [step.label for step in sweep(1, 1)] == ["no ddp", "1M/1G"]
    assert [step.label for step in sweep(2, 6)][-1] == "2M/12G"


LLM = """\
llama2-7b bf16, parallel fsdp, 8 ranks on 2 nodes, batch 1 x sequence 4096 per device
  step          700.00 ms p50 (n 3, 690.00 to 720.00, cv 2.2%)
  tokens/s      5,851.4 per device, 46,811.4 in all
  TFLOP/s       per device: 236.6 [6*N*tokens]; 269.7 [(6*N + 12*L*h*s)*tokens]
  utilisation   35.3% [6*N*tokens / bf16 matmul 8192, sustained, same run]; 23.9% [6*N*tokens / datasheet 989 TFLOP/s]
  ceiling       670.0 TFLOP/s [2*m*n*k, bf16 matmul 8192, sustained, same run]
  loss          10.5000 to 9.8000 over 2 steps"""


def test_the_words_of_a_language_model_name_every_formula() -> None:
    row = Measurement(
        labels={
            "model": "llama2-7b",
            "precision": "bf16",
            "parallel": "fsdp",
            "batch": 1,
            "ranks": 8,
            "nodes": 2,
            "sequence": 4096,
        },
        samples={"step_s": (0.69, 0.7, 0.72), "loss": (10.5, 9.8)},
        figures={
            "tokens_per_s_per_device": Figure(value=4096 / 0.7, unit="tokens/s", formula="items/time"),
            "tflops_6n": Figure(value=236.6, unit="TFLOP/s", formula="6*N*tokens"),
            "tflops_palm": Figure(value=269.7, unit="TFLOP/s", formula="(6*N + 12*L*h*s)*tokens"),
        },
    )
    full = with_utilisation(row, {"type": "bf16", "size": 8192, "tflops": 670.0}, 989.0)
    assert table_text(new_record("llm", rows=(full,))) == LLM


MATMUL = """\
matrix products on NVIDIA GH200 120GB [2*m*n*k, median]
type               m x n x k      burst  sustained  TFLOP/s
bf16      8192 x 8192 x 8192      797.0      700.0  (2 devices: 650.0 to 700.0)
fp32      8192 x 8192 x 8192       55.0       54.0"""


def test_the_table_of_matrix_products() -> None:
    def row(kind: str, burst: float, kept: float, rank: int) -> Measurement:
        figures = {
            "burst": Figure(value=burst, unit="TFLOP/s", formula="2*m*n*k, median"),
            "sustained": Figure(value=kept, unit="TFLOP/s", formula="2*m*n*k, median"),
        }
        return Measurement(labels={"type": kind, "m": 8192, "n": 8192, "k": 8192, "rank": rank}, figures=figures)

    rows = (row("bf16", 790.0, 700.0, 0), row("bf16", 797.0, 650.0, 1), row("fp32", 55.0, 54.0, 0))
    assert table_text(new_record("matmul", device=GH200, rows=rows)) == MATMUL


IO = """\
reading samples of 114660 bytes with 4 ranks x 8 workers on 1 node; figures of one node
format     pass   samples/s      MB/s       p50       p95    needed
files      cold         800      91.7   1.00 ms   1.00 ms     4,000   devices wait: 20% of what they need
tar        cold       3,800     435.7   1.00 ms   1.00 ms     4,000   just feeds them (95%)
squashfs   warm       8,000     917.3   1.00 ms   1.00 ms     4,000   feeds the devices (2.0 x)"""


def test_the_table_of_input_says_whether_the_devices_wait() -> None:
    def row(form: str, which: str, rate: float) -> Measurement:
        return Measurement(
            labels={"format": form, "pass": which, "bytes": 114660, "workers": 8, "ranks": 4, "nodes": 1},
            samples={"sample_s": (0.001,) * 5},
            figures={
                "samples_per_s": Figure(value=rate, unit="samples/s", formula="f"),
                "mb_per_s": Figure(value=rate * 114660 / 1e6, unit="MB/s", formula="f"),
                "needed": Figure(value=4000, unit="samples/s", formula="f"),
                "fed": Figure(value=rate / 4000, unit="share", formula="f"),
            },
        )

    rows = (row("files", "cold", 800), row("tar", "cold", 3800), row("squashfs", "warm", 8000))
    assert table_text(new_record("io", rows=rows)) == IO


SCALE = """\
ddp at several sizes on NVIDIA GH200 120GB; efficiency = rate(n) / (n*rate(smallest)/smallest)
nodes  ranks     per device           in all  efficiency   images/s
    1      4        1,000.0          4,000.0      100.0%
    2      8          900.0          7,200.0       90.0%
    4     16          800.0         12,800.0       80.0%"""


def test_the_table_of_scaling_is_against_the_smallest_size() -> None:
    rows = [training_rowed("", 4 * n, n, [32 / rate] * 5) for n, rate in ((1, 1000), (2, 900), (4, 800))]
    measured = [one for row in rows if (one := figure_of("ddp", [row]))]
    made = scaled("ddp", measured)
    record = new_record("scale", device=GH200, where=Where(), options={"case": "ddp"}, rows=tuple(made))
    assert table_text(record) == SCALE


def test_bandwidth_of_one_rank_is_no_base_for_scaling() -> None:
    def row(ranks: int, busbw: float) -> Measurement:
        figure = Figure(value=busbw, unit="GB/s", formula="f")
        return Measurement(
            labels={"op": "all_reduce", "bytes": 1 << 20, "ranks": ranks, "nodes": 1}, figures={"busbw": figure}
        )

    measured = [one for r in (row(1, 0.0), row(2, 10.0), row(4, 9.0)) if (one := figure_of("collectives", [r]))]
    shares = [made.figures["efficiency"].value for made in scaled("collectives", measured)]
    assert shares == [0.0, 1.0, pytest.approx(0.9)]


@each("text", ["", "a", "1,,2", "0,1", "1;2"])
def test_a_list_of_sizes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        parse_counts(text, "--nodes")
    assert parse_counts("4,1,2,2", "--nodes") == (1, 2, 4)
