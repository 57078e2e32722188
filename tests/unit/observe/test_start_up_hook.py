"""The start-up hook in real Python programs: it sees what torch does, and changes nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unit.observe.hooked import hooked, lines_of

_PROGRAM = "import sys, sitecustomize; print(sys.path, sitecustomize.__file__, hasattr(sitecustomize, '_main'))"


def _python(environ: dict[str, str], *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environ, check=check, timeout=120, capture_output=True, text=True
    )


def _next(tmp_path: Path, text: str) -> str:
    folder = tmp_path / "next"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def test_the_sitecustomize_behind_it_runs_as_if_it_had_been_found_first(tmp_path: Path) -> None:
    behind = _next(tmp_path, "import sys; print('mine', __name__, sys.argv)")
    with_hook = _python(hooked(tmp_path, behind=behind), "-c", _PROGRAM)
    without = _python({**hooked(tmp_path, behind=behind), "PYTHONPATH": behind}, "-c", _PROGRAM)
    assert with_hook.stdout == without.stdout
    assert with_hook.stdout.startswith("mine sitecustomize")
    assert with_hook.stderr == without.stderr == ""


def test_a_failing_sitecustomize_behind_it_fails_as_it_would_alone(tmp_path: Path) -> None:
    behind = _next(tmp_path, "raise RuntimeError('broken')")
    with_hook = _python(hooked(tmp_path, behind=behind), "-c", "print(1)")
    assert "broken" in with_hook.stderr
    assert with_hook.stdout == "1\n"


def test_without_another_one_nothing_is_said(tmp_path: Path) -> None:
    done = _python(hooked(tmp_path), "-c", "import sys; print([p for p in sys.path if p.endswith('python')])")
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert [next(iter(line)) for line in lines_of(tmp_path)] == ["python"]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_isolated_programs_run_unchanged(tmp_path: Path, flag: str) -> None:
    done = _python(hooked(tmp_path), flag, "-c", "import sys; print('sitecustomize' in sys.modules, sys.meta_path[0])")
    assert "_AfterImport" not in done.stdout
    assert not list((tmp_path / "steps").iterdir())


def test_a_folder_that_is_gone_leaves_the_program_alone(tmp_path: Path) -> None:
    environ = hooked(tmp_path)
    (tmp_path / "steps").rmdir()
    done = _python(environ, "-c", "print(1)")
    assert (done.stdout, done.stderr) == ("1\n", "")


_TRAINING = """
import json, sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(8)

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
for batch in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    other.step()

weight = torch.ones(4, requires_grad=True)
weight.grad = torch.ones(4)
compiled = torch.optim.SGD([weight], lr=0.1)
torch.compile(lambda: compiled.step(), backend="eager")()
time.sleep(1.1)  # the next step writes what there is
optimizer.step()
dist.destroy_process_group()
print(float(weight[0].detach()))
"""


@pytest.mark.torch
def test_steps_data_wait_and_collectives_of_an_unmodified_program_are_seen(tmp_path: Path) -> None:
    """One program for all that needs torch, because importing it takes seconds: DDP, a slow loader, two optimizers, and
    a compiled step, which the hook must not disturb."""
    pytest.importorskip("torch")
    done = _python(hooked(tmp_path), "-c", _TRAINING)
    assert float(done.stdout.split()[-1]) == pytest.approx(0.9)
    lines = lines_of(tmp_path)
    batches = [line["steps"] for line in lines if "steps" in line]
    us = [value for batch in batches for value in batch["us"]]  # type: ignore[attr-defined]
    wait = [value for batch in batches for value in batch["wait_us"]]  # type: ignore[attr-defined]
    assert len(us) == 12 + 1
    assert us[0] is None
    assert all(value >= 20_000 for value in wait[1:12])
    assert all(waited <= whole for waited, whole in zip(wait[1:], us[1:], strict=True))
    ddp = [line["ddp"] for line in lines if "ddp" in line]
    assert ddp
    assert ddp[-1]["backend"] == "gloo"
    assert ddp[-1]["comm_us"] > 0  # type: ignore[operator]
    assert lines[-1]["end"]["steps"] == 13
    assert not [line for line in lines if "note" in line]
