"""What the node changes in a container's environment, run by a real shell; CUDA's compatibility libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

from looping import each
from windlass.node.libs.closure import SystemRoot
from windlass.node.libs.variables import (
    SET,
    UNSET,
    Variable,
    compat_variables,
    driver_version,
    environment_text,
    judge_compat,
    provider_variable,
)


def _shell(text: str, **environ: str) -> dict[str, str]:
    script = f"set -eu\n{text}\n/usr/bin/env -0"
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=30, env=environ).stdout
    return dict(part.split("=", 1) for part in out.decode().split("\0") if part)


@each(
    ("compat", "driver", "verdict"),
    [
        ("575.57.08", "575.57.08", "harmful"),
        ("575.57.08", "580.65.06", "harmful"),
        ("575.57.08", "535.161.08", "optional"),
        ("575.57.08", "470.82.01", "needed"),
        ("580.65.06", "575.57.08", "needed"),
        ("440.33.01", "418.40.04", "needed"),
        ("575.57.08", "", ""),
        ("", "575.57.08", ""),
    ],
)
def test_compatibility_libraries_are_for_older_drivers_alone(compat: str, driver: str, verdict: str) -> None:
    assert judge_compat(compat, driver).verdict == verdict


def test_they_go_in_front_where_needed_and_out_where_harmful() -> None:
    folder = "/usr/local/cuda/compat/lib.real"
    needed = environment_text(compat_variables("580.65.06", folder, "535.161.08"), "/job")
    assert _shell(needed, LD_LIBRARY_PATH="/a")["LD_LIBRARY_PATH"] == f"{folder}:/a"
    assert _shell(needed)["LD_LIBRARY_PATH"] == folder
    harmful = environment_text(compat_variables("535.161.08", folder, "580.65.06"), "/job")
    before = "/a:/usr/local/cuda/compat/lib:/b c/d:/usr/local/cuda-12.8/compat:/x/compat"
    assert _shell(harmful, LD_LIBRARY_PATH=before)["LD_LIBRARY_PATH"] == "/a:/b c/d:/x/compat"
    assert _shell(harmful)["LD_LIBRARY_PATH"] == ""
    assert compat_variables("575.57.08", folder, "535.161.08") == ()


def test_hostile_folders_arrive_unchanged() -> None:
    folder = '/tmp/it\'s $(id) `id` "x"'
    made = (Variable("FI_PROVIDER_PATH", SET, "{folder}/providers", ""), Variable("GONE", UNSET, "", ""))
    seen = _shell(environment_text(made, folder), GONE="1")
    assert seen["FI_PROVIDER_PATH"] == f"{folder}/providers"
    assert "GONE" not in seen


def test_providers_belong_to_the_libfabric_that_is_loaded() -> None:
    assert provider_variable(True, "/image", True).value == "{folder}/providers"
    assert provider_variable(False, "/image", True).how == UNSET
    assert provider_variable(False, "/image", False).value == "/image"
    assert provider_variable(False, None, False).how == UNSET


@each(
    ("file", "text"),
    [
        ("sys/module/nvidia/version", "535.161.08\n"),
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Fri Feb 1 2024\n"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.161.08  Release Build\nGCC version: gcc 12\n",
        ),
    ],
)
def test_the_driver_of_a_host_is_read(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert driver_version(SystemRoot(str(tmp_path))) == "535.161.08"
    assert driver_version(SystemRoot(str(tmp_path / "sys/none"))) == ""
