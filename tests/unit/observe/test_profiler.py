"""What a profile of some steps says: on events made for it, and on a real training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from requirements import require_torch
from unit.cli.typed import windlass
from windlass.node.sampler.profiler import length, page, summarise, union

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.rand(64, 8)), batch_size=2):
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
"""


@dataclass
class Event:
    name: str
    start: float
    end: float
    device_type: str = "DeviceType.CUDA"
    self_cpu_time_total: float = 0.0
    is_user_annotation: bool = False

    @property
    def time_range(self) -> SimpleNamespace:
        return SimpleNamespace(start=self.start, end=self.end)


def test_communication_is_told_with_what_hides_it_and_idle_gaps() -> None:
    events = [
        Event("gemm", 0, 400),
        Event("ncclDevKernel_AllReduce", 300, 600),
        Event("gemm", 800, 1000),
        Event("aten::mm", 0, 1000, device_type="DeviceType.CPU"),
        Event("Optimizer.step#SGD.step", 500, 900, is_user_annotation=True),
    ]
    told = summarise(events, 0.001, 2)
    assert told["of"] == "device"
    assert told["top"][0] == {"name": "gemm", "ms": 0.6, "calls": 2}
    assert told["communication_share"] == 0.3
    assert told["communication_hidden"] == pytest.approx(1 / 3, abs=1e-3)
    assert told["idle_share"] == 0.2
    assert told["longest_gap_ms"] == 0.2
    assert "30.0% of the time, 33.3% of it hidden" in page(told, "3")


def test_without_a_device_the_own_time_of_names_counts_and_nothing_is_said_of_idleness() -> None:
    told = summarise([Event("aten::mm", 0, 10, "DeviceType.CPU", 7.0)], 0.0001, 1)
    assert (told["of"], told["total_ms"], told["idle_share"]) == ("cpu", 0.007, None)
    assert "device idle" not in page(told, "0")


def test_a_profile_of_nothing_is_a_page_all_the_same() -> None:
    assert "0 steps" in page(summarise([], 0.0, 0), "0")


def test_spans_are_joined() -> None:
    assert union([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert length([(0, 3), (5, 6)]) == 4


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_a_real_training_is_profiled_on_the_chosen_rank_alone(tmp_path: Path) -> None:
    require_torch()
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("run", "-r", "2", "--profile", "torch:1:4", "--run-dir", "r")
    done = windlass(*words, "train.py", cwd=tmp_path, timeout_s=200)
    assert done.code == 0, done.text
    kept = sorted(path.name for path in (tmp_path / "r" / "profile").iterdir())
    assert kept == ["rank-1.json", "rank-1.trace.json", "rank-1.txt"]
    told = json.loads((tmp_path / "r/profile/rank-1.json").read_text())
    assert told["steps"] == 4
    assert any("addmm" in row["name"] for row in told["top"])
    assert json.loads((tmp_path / "r/profile/rank-1.trace.json").read_text())["traceEvents"]
    assert "profile/rank-1.txt" in windlass("report", "r", cwd=tmp_path).stdout
