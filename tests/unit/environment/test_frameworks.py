"""Real torch, and the ways in which frameworks ask where they are, under windlass run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from requirements import require_torch
from unit.cli.typed import SRC, run_here, script

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

TRAIN = SRC.parent / "examples" / "ddp" / "train.py"

# What each reads when it starts, by its own documentation; none of them is needed here.
ASK = """
import datetime, json, os
import torch, torch.distributed as dist

def first(*names):
    return next((int(os.environ[name]) for name in names if name in os.environ), None)

answers = {
    # Lightning takes torchrun's word that the processes are there already, and starts none.
    "lightning": dist.is_torchelastic_launched()
    and [first("RANK"), first("LOCAL_RANK"), first("GROUP_RANK"), first("WORLD_SIZE")],
    # accelerate and the HF Trainer go by LOCAL_RANK, then by the names of several MPIs.
    "accelerate": [first("RANK", "PMI_RANK"), first("LOCAL_RANK", "MPI_LOCALRANKID"), first("WORLD_SIZE", "PMI_SIZE")],
    "deepspeed": all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
    "horovod": [first("HOROVOD_RANK"), first("HOROVOD_LOCAL_RANK"), first("HOROVOD_SIZE")],
}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
answers["sum"] = total.item()
answers["threads"] = torch.get_num_threads()
print(json.dumps(answers))
dist.destroy_process_group()
"""


def test_every_way_to_ask_gives_the_same_place_and_ranks_meet(tmp_path: Path) -> None:
    require_torch()
    script(tmp_path, ASK)
    ended = run_here("-q", "-r", "2", "--show", "all", "place.py", cwd=tmp_path, timeout_s=100)
    assert ended.code == 0, ended.text
    said = {int(line[1]): json.loads(line[4:]) for line in ended.stdout.splitlines() if line[4:].startswith("{")}
    for rank in (0, 1):
        assert said[rank]["lightning"] == [rank, rank, 0, 2]
        assert said[rank]["accelerate"] == [rank, rank, 2]
        assert said[rank]["horovod"] == [rank, rank, 2]
        assert said[rank]["deepspeed"] is True
        assert said[rank]["sum"] == 3.0
        assert said[rank]["threads"] >= 1


def test_the_example_trains_with_two_ranks(tmp_path: Path) -> None:
    require_torch()
    ended = run_here("-r", "2", str(TRAIN), "--steps", "80", cwd=tmp_path, timeout_s=110)
    assert ended.code == 0, ended.text
    assert "ranks: 2" in ended.stdout
    first, last = (float(word) for word in ended.stdout.split("done: loss ")[1].split(" in ")[0].split(" -> "))
    assert last < first / 2
    assert "as planned" in ended.stderr
