"""Golden text of a report and of a table of published figures."""

from __future__ import annotations

import msgspec

from unit.bench.made import collectives_record, told
from windlass.bench import report
from windlass.bench.reference import load_references, reference_lines
from windlass.bench.verdict import judge
from windlass.model.finding import finding_lines

REFERENCES = load_references()

REPORT = """\
collectives on somewhere: 2 nodes x 4 NVIDIA GH200 120GB, PARTIAL
2026-11-15T04:00:00+0000 on nid[0001-0002], job 77, 12 s
torch 2.11.0, nccl 2.29.7
commit 0123abcd
$ windlass bench collectives --sizes 1G

# all_reduce over 8 ranks on 2 nodes (NVIDIA GH200 120GB)
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   150000    7.16   12.53      0      N/A     N/A     N/A    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 12.527
#
skipped: all_reduce of 1 TiB: needs 2 TiB per rank, 90 GiB are free
partial: it was stopped, or a part of it failed; this is what was measured until then
error    bandwidth: all_reduce: looks like TCP: check that the plugin is loaded 12.5 GB/s busbw at 1 GiB, published \
149 to 154.35"""


def test_the_text_of_a_report() -> None:
    record = collectives_record(
        told(1 << 30, 150_000.0),
        started="2026-11-15T04:00:00+0000",
        seconds=12.3,
        complete=False,
        commit="0123abcd",
        command=("windlass", "bench", "collectives", "--sizes", "1G"),
        software={"torch": "2.11.0", "nccl": "2.29.7", "cuda": None},
        skipped=("all_reduce of 1 TiB: needs 2 TiB per rank, 90 GiB are free",),
    )
    where = msgspec.structs.replace(record.where, hosts="nid[0001-0002]", job_id="77")
    assert report.text(msgspec.structs.replace(record, where=where), finding_lines(judge(record, REFERENCES))) == REPORT


PUBLISHED = """\
B200    1 node, 8 ranks    all_reduce     16 GiB    845.7 GB/s busbw nvlink    8 x B200 [collectives/ml]
B200    4 nodes, 32 ranks  all_reduce     16 GiB    381.8 GB/s busbw fabric    4 x 8 B200 [collectives/ml]

[collectives/ml] ml-engineering (Stas Bekman): network benchmarks, nccl-tests and all_reduce_bench; read 2026-11-15"""


def test_the_text_of_published_figures() -> None:
    assert "\n".join(reference_lines("collectives", REFERENCES, "B200")) == PUBLISHED
