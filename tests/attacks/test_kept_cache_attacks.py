"""Attacks by archives of kept compile caches: code in them runs in the ranks, so only our own are unpacked."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from unit.cli.typed import Ended, run_here
from windlass.plan.render.jit_cache_lines import _unpack_lines

SHOW = ("-q", "--keep-caches", "kept", "--", "sh", "-c", 'find "$WINDLASS_CACHE_DIR/" -type f -printf "%f %m\\n"')


def archive(path: Path, *, mode: int = 0o644, names: tuple[str, ...] = ("triton/kernel.py",)) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as held:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = 4, mode
            held.addfile(entry, io.BytesIO(b"evil"))


def run(cwd: Path) -> Ended:
    done = run_here(*SHOW, cwd=cwd)
    assert done.code == 0, done.text
    return done


def test_kept_caches_that_came_with_a_cloned_project_are_not_unpacked(tmp_path: Path) -> None:
    archive(tmp_path / "kept" / "caches.tar")
    done = run(tmp_path)
    assert "kernel.py" not in done.stdout and "no signature of yours" in done.text
    record("kept caches in a cloned project", expected="not unpacked", seen="not unpacked")


def test_our_own_kept_caches_are_unpacked_and_not_those_that_took_their_place(tmp_path: Path) -> None:
    make = ("-q", "--keep-caches", "kept", "--", "sh", "-c", 'echo x > "$TRITON_CACHE_DIR/ours"')
    assert run_here(*make, cwd=tmp_path).code == 0
    held = tmp_path / "kept" / "caches.tar"
    assert held.stat().st_mode & 0o777 == 0o600
    assert "ours" in run(tmp_path).stdout
    held.unlink()
    archive(held)
    assert "kernel.py" not in run(tmp_path).stdout


def unpack(keep: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """The lines of the rank script alone, as a script without windlass runs them."""
    into.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "WINDLASS_CACHE_DIR": str(into)}
    return subprocess.run(
        ["sh", "-c", "\n".join(_unpack_lines(str(keep)))], env=env, capture_output=True, text=True, timeout=30
    )


def test_the_script_refuses_an_archive_of_another_user() -> None:
    require_stranger()
    with common_place() as place:
        keep = place / "kept"
        as_stranger(lambda: archive(keep / "caches.tar"))
        done = unpack(keep, place / "node")
        assert "not yours" in done.stderr and not any((place / "node").iterdir())


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_the_script_refuses_an_archive_that_others_can_write(tmp_path: Path, mode: int) -> None:
    archive(tmp_path / "kept" / "caches.tar")
    (tmp_path / "kept" / "caches.tar").chmod(mode)
    done = unpack(tmp_path / "kept", tmp_path / "node")
    assert "other users can write it" in done.stderr and not any((tmp_path / "node").iterdir())


def test_the_script_reads_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    os.mkfifo(tmp_path / "kept" / "caches.tar")
    assert unpack(tmp_path / "kept", tmp_path / "node").returncode == 0


def test_nothing_is_unpacked_outside_or_with_the_rights_of_another_user(tmp_path: Path) -> None:
    absolute = str(tmp_path / "absolute")
    archive(tmp_path / "kept" / "caches.tar", mode=0o6777, names=("tool", "../outside", absolute))
    unpack(tmp_path / "kept", tmp_path / "node")
    assert (tmp_path / "node" / "tool").stat().st_mode & 0o7077 == 0
    assert not (tmp_path / "outside").exists() and not Path(absolute).exists()
