"""What vendors' tools and drivers print, in the forms that they have printed it in."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from looping import each
from windlass.node.sampler import amd, intel, nvidia
from windlass.node.sampler import sampler as devices
from windlass.node.sampler.readings import DeviceReading, number
from windlass.node.sys.tools import MissingError

_NVIDIA_SMI = """\
0, 97, 71234, 143771, 688.42, 61, 1980, 0x0000000000000004
1, 0, 4, 143771, 77.10, 30, 345, 0x0000000000000001
2, 100, 70000, 143771, 402.00, 88, 900, 0x0000000000000028
3, [N/A], 1024, [Not Supported], [N/A], 45, 1980, [Not Supported]
"""

_ROCM_SMI = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"Temperature (Sensor edge) (C)": "43.0", "Temperature (Sensor junction) (C)": "51.0",
 "fclk clock speed:": "(1600Mhz)", "sclk clock speed:": "(1700Mhz)", "sclk clock level:": "1",
 "Average Graphics Package Power (W)": "503.0", "GPU use (%)": "100",
 "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "60129542144"},
 "card1": {"Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": "48.0",
 "sclk clock speed:": "(800Mhz)", "Average Graphics Package Power (W)": "N/A (Secondary die)", "GPU use (%)": "0",
 "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896"},
 "system": {"Driver version": "6.3.6"}}
"""
_ROCM_SMI_MI300 = """\
{"card0": {"Temperature (Sensor junction) (C)": "61.0", "Current Socket Graphics Package Power (W)": "212.0",
 "GPU use (%)": "87", "GPU Memory Allocated (VRAM%)": "40", "GPU Memory Read/Write Activity (%)": "12"}}
"""

_AMD_SMI_7 = """\
{"gpu_data": [{"gpu": 0,
  "usage": {"gfx_activity": {"value": 40, "unit": "%"}, "umc_activity": {"value": 3, "unit": "%"},
            "vcn_activity": [{"value": 0, "unit": "%"}, "N/A"]},
  "power": {"socket_power": {"value": 239, "unit": "W"}, "gfx_voltage": "N/A"},
  "clock": {"gfx_0": {"clk": {"value": 2100, "unit": "MHz"}, "min_clk": {"value": 132, "unit": "MHz"}}},
  "temperature": {"edge": "N/A", "hotspot": {"value": 36, "unit": "C"}},
  "mem_usage": {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}}},
 {"gpu": 1, "usage": "N/A", "mem_usage": "N/A"}]}
"""
_AMD_SMI_6 = """\
[{"gpu": 0, "usage": {"gfx_activity": {"value": 5, "unit": "%"}}, "power": {"current_socket_power": 22,
  "socket_power": "N/A"}, "temperature": {"edge": {"value": 44, "unit": "C"}, "hotspot": "N/A"},
  "mem_usage": {"total_vram": {"value": 20464, "unit": "MB"}, "used_vram": {"value": 26, "unit": "MB"}}}]
"""

_XPU_HEAD = (
    "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), "
    "GPU Core Temperature (Celsius Degree), GPU Memory Used (MiB)"
)
_XPU_SMI = f"""\
{_XPU_HEAD}
21:48:07.398,    0, 99.50, 318.87, 1550,  N/A, 27.99
21:48:07.398,    1, N/A, 118.10, 1550,  48.50, 2048.00
"""
_XPU_SMI_TILES = """\
Timestamp, DeviceId, TileId, GPU Utilization (%), GPU Power (W)
06:14:46.000,    0, 0, 12.00, 214.61
06:14:46.000,    0, 1, 88.00, 215.00
"""


def test_nvidia_smi_is_read_with_what_a_device_does_not_support_left_out() -> None:
    busy, idle, hot, odd = nvidia.parse_nvidia_smi(_NVIDIA_SMI)
    assert busy == DeviceReading(0, 0.97, 71234 << 20, 143771 << 20, 688.42, 61.0, 1980.0, False)
    assert (idle.busy, idle.throttled) == (0.0, False)
    assert hot.throttled is True
    assert odd == DeviceReading(3, None, 1024 << 20, None, None, 45.0, 1980.0, None)


def test_rocm_smi_of_an_mi250x_has_the_power_of_a_card_on_its_first_die_alone() -> None:
    first, second = amd.parse_rocm_smi(_ROCM_SMI)
    assert first == DeviceReading(0, 1.0, 60129542144, 68702699520, 503.0, 51.0, 1700.0, driver="6.3.6")
    assert (second.power_w, second.busy, second.clock_mhz) == (None, 0.0, 800.0)


def test_rocm_smi_of_an_mi300_names_its_power_otherwise() -> None:
    (only,) = amd.parse_rocm_smi(_ROCM_SMI_MI300)
    assert (only.power_w, only.busy, only.memory_bytes, only.temperature_c) == (212.0, 0.87, None, 61.0)


@each(
    ("text", "expected"),
    [
        (_AMD_SMI_7, DeviceReading(0, 0.4, 283 << 20, 294896 << 20, 239.0, 36.0, 2100.0)),
        (_AMD_SMI_6, DeviceReading(0, 0.05, 26 << 20, 20464 << 20, 22.0, 44.0, None)),
    ],
    ids=["ROCm 7", "ROCm 6"],
)
def test_amd_smi_is_read_in_its_newer_and_its_older_form(text: str, expected: DeviceReading) -> None:
    assert amd.parse_amd_smi(text)[0] == expected


def test_a_device_of_which_amd_smi_says_nothing_is_still_a_device() -> None:
    assert amd.parse_amd_smi(_AMD_SMI_7)[1] == DeviceReading(1)


def test_xpu_smi_is_read_by_the_names_of_its_columns() -> None:
    first, second = intel.parse_xpu_smi(_XPU_SMI)
    assert first == DeviceReading(0, 0.995, int(27.99 * (1 << 20)), None, 318.87, None, 1550.0)
    assert (second.busy, second.temperature_c) == (None, 48.5)
    assert [device.busy for device in intel.parse_xpu_smi(_XPU_SMI_TILES)] == [0.12, 0.88]


@each("text", ["", "nonsense", "{", "[]", '{"gpu_data": {}}', "No devices were found", "\x00,,,"])
def test_nonsense_of_a_tool_gives_no_device_and_no_traceback(text: str) -> None:
    assert nvidia.parse_nvidia_smi(text) == []
    assert intel.parse_xpu_smi(text) == []
    for parse in (amd.parse_amd_smi, amd.parse_rocm_smi):
        with contextlib.suppress(MissingError):
            assert parse(text) == []


@each(("text", "value"), [("N/A", None), ("(1700Mhz)", 1700.0), ("12 %", 12.0), (True, None), ({}, None)])
def test_numbers_are_read_with_their_units(text: object, value: float | None) -> None:
    assert number(text) == value


def _card(root: Path, name: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = root / "sys/class/drm" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_the_files_of_the_amd_driver_are_read_without_any_tool(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for number_, power in ((1, "503000000\n"), (2, "")):
        files = {
            "device/vendor": "0x1002\n",
            "device/gpu_busy_percent": "99\n",
            "device/mem_info_vram_used": "1024\n",
            "device/mem_info_vram_total": "4096\n",
            "device/pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *\n",
            "device/hwmon/hwmon3/temp1_input": "43000\n",
        }
        _card(tmp_path, f"card{number_}", {**files, "device/hwmon/hwmon3/power1_average": power})
    _card(tmp_path, "card0", {"device/vendor": "0x1a03\n"})
    found = devices.DeviceReader(str(tmp_path)).read()
    assert found[0] == DeviceReading(0, 0.99, 1024, 4096, 503.0, 43.0, 1700.0, unverified=True)
    assert (found[1].place, found[1].power_w) == (1, None)


def test_power_of_intel_cards_comes_from_their_energy_counter(tmp_path: Path) -> None:
    _card(tmp_path, "card0", {"device/vendor": "0x8086", "device/hwmon/hwmon1/energy1_input": "1000000"})
    now = [10.0]
    reader = intel.Sysfs(str(tmp_path), lambda: now[0])
    assert reader.devices() == [DeviceReading(0)]
    _card(tmp_path, "card0", {"device/hwmon/hwmon1/energy1_input": "601000000"})
    now[0] = 12.0
    assert reader.devices()[0].power_w == pytest.approx(300.0)


def test_devices_that_are_here_but_cannot_be_read_are_a_note(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    reader = devices.DeviceReader(str(tmp_path))
    assert reader.read() == []
    assert reader.read() == []
    (note,) = reader.notes
    assert note.startswith("AMD devices are not sampled")


def test_a_node_without_devices_has_nothing_to_note(tmp_path: Path) -> None:
    reader = devices.DeviceReader(str(tmp_path))
    assert (reader.read(), reader.notes) == ([], [])
