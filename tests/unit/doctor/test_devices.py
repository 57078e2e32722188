"""What the vendors' tools print, parsed and judged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from captured import FOLDER
from windlass.node.checks.finding import Finding
from windlass.node.checks.machine import holders, judge_devices
from windlass.node.sampler import amd, intel
from windlass.node.sampler.nvidia import HEALTH, OLD_DRIVERS, parse_nvidia_smi

H200 = (FOLDER / "devices" / "nvidia-smi-h200.csv").read_text()
A100 = """\
0, NVIDIA A100-SXM4-40GB, 40960, 4, 535.161.08, 0, 0x0000000000000000, 1410, 1410, No, No
1, NVIDIA A100-SXM4-40GB, 40960, 39800, 535.161.08, 0, 0x0000000000000004, 1410, 1410, No, No
2, NVIDIA A100-SXM4-40GB, 40960, 4, 535.161.08, 3, 0x0000000000000000, 1410, 1410, Yes, No
3, NVIDIA A100-SXM4-40GB, 40960, 4, 535.161.08, [N/A], 0x0000000000000048, 210, 1410, No, No
"""
ROCM = json.dumps(
    {
        **{
            f"card{index}": {
                "VRAM Total Memory (B)": "68702699520",
                "VRAM Total Used Memory (B)": "10960896",
                "Card series": "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2",
                "Card model": "0x0b0c",
            }
            for index in (0, 1, 10, 2)
        },
        "system": {"Driver version": "6.3.6"},
    }
)
AMD = """\
[
    {
        "gpu": 0,
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": 283, "unit": "MB"},
            "free_vram": {"value": 196309, "unit": "MB"}
        },
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 2, "total_deferred_count": 0}
    },
    {"gpu": 1, "mem_usage": {"total_vram": "N/A", "used_vram": "N/A"}, "ecc": "N/A"}
]
"""
XPU = """\
{
    "device_list": [
        {
            "device_function_type": "physical",
            "device_id": 1,
            "device_name": "Intel(R) Data Center GPU Max 1550",
            "device_type": "GPU",
            "drm_device": "/dev/dri/card1",
            "pci_bdf_address": "0000:4b:00.0",
            "pci_device_id": "0xbd5",
            "vendor_name": "Intel(R) Corporation"
        },
        {"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550", "device_type": "GPU",
         "memory_physical_size_byte": "137438953472"}
    ]
}
"""
XPU_HEALTH = """\
{"device_list": [{"device_id": 0,
  "core_temperature": {"custom_threshold": -1, "description": "All temperature sensors are healthy.", "status": "OK"},
  "memory": {"description": "The memory is degraded.", "status": "Warning"}}]}
"""


def _by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding["kind"]: finding for finding in found}


def test_an_h200_is_read_as_its_driver_prints_it() -> None:
    (seen,) = parse_nvidia_smi(H200, HEALTH)
    assert (seen.place, seen.name, seen.driver) == (0, "NVIDIA H200", "580.159.04")
    assert seen.memory_total_bytes == 143771 << 20 and seen.uncorrected == 0 and not seen.needs_reset
    found = judge_devices("nvidia", [seen], {"count": 1, "cards": 1, "memory_bytes": 141 * 10**9}, "nvidia-smi")
    assert {finding["severity"] for finding in found} == {"ok"}


def test_processes_of_others_on_the_devices_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, name in ((17, "python"), (23, "vllm")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
        (tmp_path / f"sys/class/kfd/kfd/proc/{pid}").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/nvidia-smi"
    tool.write_text("#!/bin/sh\necho 17; echo 99999; echo '[N/A]'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    me = os.getuid()
    assert holders("nvidia", str(tmp_path)) == [f"python (process 17, user {me})"]
    assert holders("amd", str(tmp_path)) == [f"python (process 17, user {me})", f"vllm (process 23, user {me})"]
    assert holders("intel", str(tmp_path)) == []
    (seen,) = parse_nvidia_smi(H200, HEALTH)
    others = ["python (process 17, user 1003)"]
    taken = _by_name(judge_devices("nvidia", [seen], {"count": 1}, "nvidia-smi", (), others))["device-memory"]
    assert taken["severity"] == "warning" and others[0] in taken["evidence"]
    shared = _by_name(judge_devices("amd", [seen], {"count": 1}, "amd-smi", (), others))["device-memory"]
    assert shared["severity"] == "ok", "AMD's list has processes on the devices of other jobs too"


def test_faults_of_nvidia_devices_have_names() -> None:
    seen = parse_nvidia_smi(A100, HEALTH)
    assert len(seen) == 4 and seen[3].uncorrected is None
    found = _by_name(judge_devices("nvidia", seen, {"count": 4, "cards": 4, "memory_bytes": 40 << 30}, "nvidia-smi"))
    assert found["devices"]["severity"] == "ok" and "driver 535.161.08" in found["devices"]["evidence"]
    assert (
        found["device-memory"]["severity"] == "warning" and "device 1: 38.9 GiB" in found["device-memory"]["evidence"]
    )
    errors = found["device-errors"]
    assert errors["severity"] == "error"
    assert "device 2: 3 uncorrected memory errors; device 2: rows of memory wait for a reset" in errors["evidence"]
    assert found["device-clocks"]["evidence"] == "device 3: hardware slowdown, hardware thermal slowdown"


@pytest.mark.parametrize(("count", "severity"), [(4, "ok"), (8, "error")])
def test_a_missing_device_is_found(count: int, severity: str) -> None:
    found = _by_name(judge_devices("nvidia", parse_nvidia_smi(A100, HEALTH), {"count": count}, "nvidia-smi"))
    assert found["devices"]["severity"] == severity
    assert ("where the plan has 8" in found["devices"]["evidence"]) == (severity == "error")


def test_an_older_driver_that_knows_few_fields_is_read() -> None:
    (seen,) = parse_nvidia_smi("0, Tesla V100-SXM2-16GB, 16160, 0, 418.67\n", OLD_DRIVERS)
    assert seen.name == "Tesla V100-SXM2-16GB" and seen.throttled is None
    assert parse_nvidia_smi("Failed to initialize NVML: Driver/library version mismatch\n") == []


def test_rocm_smi_counts_dies_in_their_order() -> None:
    seen = amd.parse_rocm_smi("WARNING: AMD GPU device(s) is/are in a low-power state.\n" + ROCM)
    assert [device.place for device in seen] == [0, 1, 2, 10]
    assert (
        seen[0].memory_total_bytes == 68702699520
        and seen[0].driver == "6.3.6"
        and seen[0].name.startswith("AMD INSTINCT")
    )
    assert amd.parse_rocm_smi("WARNING: No JSON data to report\n") == []
    assert amd.parse_ras("ue: 2\nce: 17\n") == 2 and amd.parse_ras("") is None


@pytest.mark.parametrize("text", [AMD, json.dumps({"gpu_data": json.loads(AMD)})])
def test_amd_smi_is_read_in_both_of_its_forms(text: str) -> None:
    first, second = amd.parse_amd_smi(text)
    assert first.memory_total_bytes == 196592 << 20 and first.uncorrected == 2
    assert (second.memory_total_bytes, second.uncorrected) == (None, None)
    found = _by_name(judge_devices("amd", [first, second], {"count": 2}, "amd-smi"))
    assert found["device-errors"]["severity"] == "error"


def test_xpu_smi_counts_cards_and_tells_their_health() -> None:
    seen = intel.parse_discovery(XPU)
    assert [device.place for device in seen] == [0, 1] and seen[0].memory_total_bytes == 137438953472
    troubles = intel.parse_health(XPU_HEALTH)
    assert troubles == ["device 0 memory: Warning"]
    found = _by_name(judge_devices("intel", seen, {"count": 12, "cards": 6}, "xpu-smi", troubles))
    assert found["devices"]["severity"] == "error" and "where the plan has 6" in found["devices"]["evidence"]
    assert found["device-errors"]["severity"] == "error"
    assert intel.parse_discovery('{"error": "no device"}') == [] and intel.parse_discovery("") == []
