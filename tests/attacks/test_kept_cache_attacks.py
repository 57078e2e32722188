"""Attacks by archives of kept compile caches: code in them runs in the ranks, so only our own are unpacked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from unit.cli.typed import Ended, environment, in_process, run_here, windlass
from windlass.plan.render.rank_lines import _unpack_lines
from windlass.run.folder import make_folder
from windlass.run.trust import carry_file_key, key_digest

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
    assert "kernel.py" not in done.stdout and "not have your signature" in done.text
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


def job_folder(tmp_path: Path, number: int, *words: str) -> tuple[str, str]:
    """A run folder as `submit` makes it, and the digest in its batch script."""
    state = Path(environment(tmp_path)["WINDLASS_STATE"])
    plan = in_process("plan", "--python", sys.executable, "--json", *words, cwd=tmp_path).stdout
    folder = make_folder(str(tmp_path / f"job{number}"), tmp_path, "x", state_dir=state)
    folder.write_signed("plan.json", plan.encode())
    carry_file_key(folder.path, tmp_path / "kept" / "caches.tar", state)
    return str(folder.path), key_digest(folder.path)


def test_a_job_that_cannot_see_the_secret_keeps_and_uses_our_caches_alone(tmp_path: Path) -> None:
    """Each compute node has a HOME of its own, where a state folder can be made or not."""
    make = ("--keep-caches", "kept", "--", "sh", "-c", 'echo x > "$TRITON_CACHE_DIR/ours"')
    jobs = [job_folder(tmp_path, 0, *make), *(job_folder(tmp_path, number, *SHOW[1:]) for number in (1, 2))]
    seen = []
    for (folder, digest), state in zip(jobs, ("of-node-0", "/proc/nowhere", "of-node-2"), strict=True):
        if folder.endswith("2"):
            (tmp_path / "kept" / "caches.tar").unlink()
            archive(tmp_path / "kept" / "caches.tar")
        done = windlass(
            "run",
            "-q",
            "--plan",
            folder,
            "--signed-by",
            digest,
            cwd=tmp_path,
            env={"WINDLASS_STATE": str(tmp_path / state)},
        )
        assert done.code == 0, done.text
        seen.append(done)
    assert "ours" in seen[1].stdout and "another signature" not in seen[1].text
    assert "kernel.py" not in seen[2].stdout and "another signature" in seen[2].text


def test_submit_hands_the_key_of_the_kept_caches_to_its_job_and_to_no_script(tmp_path: Path) -> None:
    submit = ("submit", "--site", "frontier", "-A", "a", "-t", "1h", "--keep-caches", "kept")
    tool = tmp_path / "bin" / "sbatch"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    tool.chmod(0o755)
    env = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done = windlass(*submit, "--run-dir", "run", "--", "true", cwd=tmp_path, env=env)
    assert done.code == 0, done.text
    carried = json.loads((tmp_path / "run/signature.json").read_text())["file_key"]
    assert len(carried) == 64 and carried not in (tmp_path / "run/batch.sh").read_text()
    refused = windlass(*submit, "--standalone", "--", "true", cwd=tmp_path, env=env)
    assert refused.code == 2 and "--standalone with --keep-caches" in refused.text


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
