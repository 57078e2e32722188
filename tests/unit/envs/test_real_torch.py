"""An environment with the real torch and a compiled mpi4py, made, checked, packed, staged and used. Minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from requirements import require_mpi
from unit.cli.typed import windlass

pytestmark = pytest.mark.slow


def test_torch_is_installed_checked_packed_staged_and_imported(tmp_path: Path) -> None:
    env = tmp_path / "env"
    made = windlass(
        "env", "create", str(env), "--site", "workstation", "--torch", "2.13.0+cpu", cwd=tmp_path, timeout_s=1800
    )
    assert made.code == 0, made.text
    checked = windlass("env", "check", str(env), cwd=tmp_path, timeout_s=300)
    assert checked.code == 0 and "2.13.0" in checked.stdout, checked.text
    packed = windlass("env", "pack", str(env), "-o", "env.tar.zst", "--with-python", cwd=tmp_path, timeout_s=900)
    assert packed.code == 0, packed.text
    staged = windlass("stage", "env.tar.zst", "--extract", "--to", str(tmp_path / "node"), cwd=tmp_path, timeout_s=600)
    assert staged.code == 0, staged.text
    env.rename(tmp_path / "gone")
    code = "import torch, sys; print(torch.__version__.split('+')[0], sys.prefix, int(torch.ones(3).sum()))"
    words = [str(tmp_path / "node" / "env" / "bin" / "python"), "-I", "-c", code]
    said = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
    assert said.split() == ["2.13.0", str(tmp_path / "node" / "env"), "3"]


def test_mpi4py_is_compiled_with_the_wrapper_that_is_in_path(tmp_path: Path) -> None:
    require_mpi()
    env, wrappers = tmp_path / "env", str(Path(sys.executable).parent)
    words = ("env", "create", str(env), "--torch", "none", "--with", "mpi4py", "--python", sys.executable)
    made = windlass(*words, cwd=tmp_path, env={"PATH": f"{wrappers}:/usr/bin:/bin"}, timeout_s=3000)
    assert made.code == 0, made.text
    checked = windlass("env", "check", str(env), cwd=tmp_path)
    assert "linked with libmpi.so.12 (MPICH's ABI)" in checked.stdout, checked.text
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    assert subprocess.check_output([env / "bin" / "python", "-c", code], text=True, timeout=120).strip() == "1"
