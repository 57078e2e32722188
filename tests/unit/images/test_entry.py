"""The entry script's treatment of CUDA's compatibility libraries, by a real shell in a made-up tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from looping import each
from windlass.build.images.build import entry_script


@each(
    ("driver", "before", "after"),
    [
        ("580.65.06", "/a:{}/compat/lib:/b", "/a:/b"),
        ("575.57.08", "{}/compat", ""),
        ("535.161.08", "/a", "/a"),
        ("535.161.08", "{}/compat/lib:/a", "{}/compat/lib:/a"),
        ("470.82.01", "/a", "{}/compat/lib.real:/a"),
        ("470.82.01", "", "{}/compat/lib.real"),
        ("", "{}/compat/lib", "{}/compat/lib"),
    ],
)
def test_compatibility_libraries_follow_the_hosts_driver(driver: str, before: str, after: str, tmp_path: Path) -> None:
    cuda = tmp_path / "cuda"
    (cuda / "compat/lib.real").mkdir(parents=True)
    (cuda / "compat/lib.real/libcuda.so.575.57.08").touch()
    text = entry_script().replace("/sys/module/nvidia/version", f"{tmp_path}/driver")
    text = text.replace("/usr/local/cuda", str(cuda)).replace("/host/", f"{tmp_path}/host/")
    if driver:
        (tmp_path / "driver").write_text(f"{driver}\n")
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "LD_LIBRARY_PATH": before.format(cuda)}
    argv = ["sh", "-c", text, "entry", "sh", "-c", 'printf %s "$LD_LIBRARY_PATH"']
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=env)
    assert (done.stdout, done.stderr, done.returncode) == (after.format(cuda), "", 0)
