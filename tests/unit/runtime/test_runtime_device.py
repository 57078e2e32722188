"""Device, backend, CPU mask and evidence: the choices of `init` that need no second rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from looping import each
from windlass.errors import MachineError, UsageError
from windlass.node.sampler.on_request import recorder_variables, switch_on
from windlass.runtime.device import Devices, choose
from windlass.runtime.start import import_keeping_affinity, scaled_timeout_s


@each(
    ("devices", "local_rank", "name", "backend"),
    [
        (Devices(), 3, "cpu", "gloo"),
        (Devices(cuda=8, nccl=True), 3, "cuda:3", "nccl"),
        (Devices(cuda=1, nccl=True), 3, "cuda:0", "nccl"),
        (Devices(cuda=8), 3, "cuda:3", "gloo"),
        (Devices(xpu=12, xccl=True, ccl=True), 11, "xpu:11", "xccl"),
        (Devices(xpu=12, ccl=True), 11, "xpu:11", "ccl"),
        (Devices(xpu=1, xccl=True), 11, "xpu:0", "xccl"),
    ],
)
def test_device_and_backend_follow_from_what_is_visible(
    devices: Devices, local_rank: int, name: str, backend: str
) -> None:
    choice = choose(devices, local_rank=local_rank)
    assert (choice.name, choice.backend) == (name, backend)


def test_more_ranks_than_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="local rank 4 has no own device: 4 cuda"):
        choose(Devices(cuda=4, nccl=True), local_rank=4)


def test_ranks_that_were_planned_to_share_devices_take_them_in_blocks() -> None:
    """Aurora's four streamers of a tile: 48 ranks, of which each sees all 12 tiles."""
    taken = [choose(Devices(xpu=12, xccl=True), local_rank=i, ranks_planned=48).index for i in range(48)]
    assert taken == [i // 4 for i in range(48)]
    assert choose(Devices(xpu=12, xccl=True), local_rank=5, ranks_planned=12).index == 5


def test_a_device_that_was_asked_for_and_is_not_there_is_an_error_not_a_fallback() -> None:
    with pytest.raises(MachineError, match="no cuda device"):
        choose(Devices(), local_rank=0, kind="cuda")


def test_cpu_may_be_asked_for_on_a_node_with_devices() -> None:
    assert choose(Devices(cuda=4, nccl=True), local_rank=0, kind="cpu").name == "cpu"


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        choose(Devices(), local_rank=0, kind="gpu")
    assert "cuda" in (caught.value.hint or "")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_module_that_narrows_the_cpu_mask_is_undone(tmp_path: Path) -> None:
    (tmp_path / "narrowing.py").write_text("import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n")
    code = (
        "import os\n"
        "from windlass.runtime.start import import_keeping_affinity\n"
        "before = os.sched_getaffinity(0)\n"
        "module, restored = import_keeping_affinity('narrowing')\n"
        "assert restored and os.sched_getaffinity(0) == before\n"
        "os.sched_setaffinity(0, {min(before)})\n"
        "_, restored = import_keeping_affinity('json', ','.join(map(str, before)))\n"
        "assert restored and os.sched_getaffinity(0) == before\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})


def test_a_module_that_leaves_the_mask_alone_is_not_reported() -> None:
    assert import_keeping_affinity("json")[1] is False


def test_the_flight_recorder_has_the_names_of_this_torch(tmp_path: Path) -> None:
    assert recorder_variables("2.13.0+cpu", str(tmp_path))["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert recorder_variables("2.8.0a0", str(tmp_path))["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_DUMP_TEMP_FILE" not in recorder_variables("2.13.0", None)


def test_the_flight_recorder_keeps_what_the_user_has_set_and_makes_its_folder(tmp_path: Path) -> None:
    environ = {"TORCH_FR_BUFFER_SIZE": "7"}
    switch_on(environ, "2.13.0", str(tmp_path / "run 1"))
    assert environ["TORCH_FR_BUFFER_SIZE"] == "7" and environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert Path(environ["TORCH_FR_DUMP_TEMP_FILE"]).parent.is_dir()


def test_waits_grow_with_the_number_of_ranks() -> None:
    assert scaled_timeout_s(1) == 600
    assert scaled_timeout_s(98_304) > scaled_timeout_s(1024) >= 600
