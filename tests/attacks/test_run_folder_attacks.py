"""Attacks on the run folder: what windlass runs from it, nobody else can have put or swapped there."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import UID, as_stranger, common_place, require_stranger
from windlass.cli import report as report_command
from windlass.errors import UsageError
from windlass.node.sys.atomic import replace_file
from windlass.run.folder import RunFolder, make_folder, open_folder


def windlass(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "WINDLASS_RUNS": str(cwd / "runs"), "HOME": str(cwd), **env}
    return subprocess.run(
        [sys.executable, "-m", "windlass", *argv], cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
    )


def fails(act: object) -> bool:
    try:
        act()  # type: ignore[operator]
    except OSError:
        return True
    return False


def test_a_folder_of_another_user_is_refused_with_its_uid() -> None:
    require_stranger()
    with common_place() as place:
        theirs = place / "run"
        as_stranger(lambda: theirs.mkdir(mode=0o777))
        with pytest.raises(UsageError, match=f"uid {UID}"):
            make_folder(str(theirs), place, "x")
        assert not any(theirs.iterdir())


def test_a_link_of_another_user_to_a_folder_of_ours_is_refused(tmp_path: Path) -> None:
    require_stranger()
    (tmp_path / "ours").mkdir()
    with common_place() as place:
        link = place / "run"
        as_stranger(lambda: link.symlink_to(tmp_path / "ours"))
        with pytest.raises(UsageError, match=f"uid {UID}"):
            make_folder(str(link), place, "x")
        assert not any((tmp_path / "ours").iterdir())


def test_our_own_link_to_a_folder_of_ours_is_fine(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch")
    make_folder(str(tmp_path / "run"), tmp_path, "x").write("rank.sh", "")
    assert (tmp_path / "scratch" / "rank.sh").exists()


@pytest.mark.parametrize("name", ["out", "rank.sh", "secrets.sh", ".anything"])
def test_a_folder_in_which_a_stranger_was_before_us_is_refused_and_left_as_it_is(name: str) -> None:
    require_stranger()
    with common_place() as place:
        ours = place / "run"
        ours.mkdir()
        ours.chmod(0o777)
        as_stranger(lambda: (ours / name).mkdir() if name == "out" else (ours / name).write_text("evil"))
        with pytest.raises(UsageError, match=f"uid {UID}"):
            make_folder(str(ours), place, "x")
        assert ours.stat().st_mode & 0o777 == 0o777


def test_a_project_folder_of_umask_002_works_and_nobody_else_writes_in_it_afterwards() -> None:
    require_stranger()
    with common_place() as place:
        for mode in (0o775, 0o777, 0o2775):
            ours = place / f"run-{mode:o}"
            ours.mkdir()
            ours.chmod(mode)
            (ours / "train.py").write_text("")
            folder = make_folder(str(ours), place, "x")
            folder.write("rank.sh", "exec true\n")
            assert ours.stat().st_mode & 0o7777 == mode & ~0o022

            def attack(where: Path = ours) -> None:
                evil = place / f"evil-{os.urandom(4).hex()}"
                evil.write_text("id")
                assert fails(lambda: evil.replace(where / "rank.sh"))
                assert fails((where / "rank.sh").unlink)
                assert fails(lambda: (where / "secrets.sh").write_text("id"))
                assert fails(lambda: (where / "out").rename(where / "o"))
                assert fails(lambda: (where / "out" / "x").write_text("id"))

            as_stranger(attack)
            assert folder.part("rank.sh").read_text() == "exec true\n"


def test_a_whole_run_in_a_folder_that_all_may_write_runs_only_our_scripts() -> None:
    """The stranger waits for rank.sh and puts its own in its place; before, that ran with the user's secrets."""
    require_stranger()
    with common_place() as place:
        ours = place / "run"
        ours.mkdir()
        ours.chmod(0o777)
        swap = (
            "import os,sys,time\n"
            f"os.setgroups([]); os.setresgid({UID},{UID},{UID}); os.setresuid({UID},{UID},{UID})\n"
            f"run = {str(ours)!r}\n"
            "while True:\n"
            "    for name in ('rank.sh', 'launch.sh', 'secrets.sh', '.rank.sh', 'plan.json'):\n"
            "        try:\n"
            f"            evil = {str(place)!r} + '/evil-' + os.urandom(4).hex()\n"
            f"            open(evil, 'w').write('#!/bin/sh\\nid -u > {place}/ran\\n')\n"
            "            os.replace(evil, run + '/' + name)\n"
            "            print('swapped', name, flush=True)\n"
            "        except OSError:\n"
            "            os.unlink(evil)\n"
            "    time.sleep(0.001)\n"
        )
        wait = ours / "out"
        watcher = f"import os,time\nwhile not os.path.isdir({str(wait)!r}): time.sleep(0.005)\n" + swap
        attacker = subprocess.Popen([sys.executable, "-c", watcher], stdout=subprocess.PIPE, text=True)
        try:
            done = windlass("run", "--run-dir", str(ours), "--", "sh", "-c", "sleep 1; echo fine", cwd=place)
        finally:
            attacker.kill()
            swapped = attacker.communicate()[0]
        assert done.returncode == 0 and "fine" in done.stdout, done.stderr
        assert swapped == "" and not (place / "ran").exists()
        record("swapping scripts of a run in a folder open to all", expected="nothing swapped", seen="nothing swapped")


def test_partial_files_have_no_name_that_can_be_waited_for(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x")
    folder.part(f".rank.sh.{os.getpid()}").symlink_to(victim)
    folder.write("rank.sh", "exec true\n")
    assert victim.read_text() == "mine"


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x")
    folder.part("rank.sh").symlink_to(victim)
    folder.write("rank.sh", "exec true\n")
    assert victim.read_text() == "mine" and not folder.part("rank.sh").is_symlink()


def test_a_saved_plan_in_a_folder_of_another_user_is_not_run() -> None:
    require_stranger()
    with common_place() as place:
        done = windlass("run", "--run-dir", "theirs", "--", "true", cwd=place)
        assert done.returncode == 0, done.stderr
        for path in (place / "theirs", *(place / "theirs").rglob("*")):
            os.chown(path, UID, UID)
        again = windlass("run", "--plan", "theirs", cwd=place)
        assert again.returncode == 2 and f"uid {UID}" in again.stderr, again.stderr
        assert open_folder(place / "theirs").path.exists()


def test_a_parent_in_which_all_may_rename_gets_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with common_place(0o777) as place, caplog.at_level(logging.WARNING):
        make_folder(str(place / "run"), place, "x")
        assert [str(place) in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    require_stranger()
    with common_place(0o1777) as place, caplog.at_level(logging.WARNING):
        as_stranger(lambda: (place / "theirs").mkdir(mode=0o1777))
        make_folder(str(place / "theirs" / "run"), place, "x")
        assert [f"uid {UID} can rename" in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    with common_place(0o1777) as place, caplog.at_level(logging.WARNING):
        make_folder(str(place / "run"), place, "x")
        assert not caplog.records


def test_the_standalone_script_makes_its_folder_ours_or_ends(tmp_path: Path) -> None:
    require_stranger()
    from windlass.plan.render.batch_script import _folder_lines

    with common_place() as place:
        theirs, ours = place / "th'eirs", place / "$(our s)"
        as_stranger(lambda: theirs.mkdir(mode=0o777))
        ours.mkdir()
        ours.chmod(0o777)
        (ours / "rank.sh").symlink_to(tmp_path / "victim")
        for folder, code in ((theirs, 3), (ours, 0)):
            text = "\n".join(_folder_lines(str(folder)))
            assert subprocess.run(["bash", "-c", text], cwd=tmp_path, timeout=60).returncode == code, shlex.quote(text)
        assert ours.stat().st_mode & 0o022 == 0
        assert not (ours / "rank.sh").is_symlink()
        assert RunFolder(ours).part("out").is_dir()


def test_replacing_a_file_never_writes_through_a_link_that_another_user_laid() -> None:
    """The temporary file has a random name and is never opened through a link; nor is the file itself."""
    require_stranger()
    with common_place() as place:
        secret, folder = place / "authorized_keys", place / "theirs"
        secret.write_text("mine")
        secret.chmod(0o600)

        def trap() -> None:
            folder.mkdir(mode=0o1777)
            folder.chmod(0o1777)
            for pid in range(os.getppid() - 50, os.getppid() + 50):
                (folder / f".report.html.{pid}").symlink_to(secret)
            (folder / "report.html").symlink_to(secret)

        as_stranger(trap)
        with contextlib.suppress(OSError):
            replace_file(folder / "report.html", b"theirs")
        assert secret.read_text() == "mine"
        as_stranger(lambda: folder.chmod(0o777))
        with pytest.raises(PermissionError):
            replace_file(folder / "other.html", b"x")
    record(
        "links at the place of a page", expected="no file of ours changes", seen="no file of ours changes", links=101
    )


def test_the_report_of_another_users_run_is_written_to_the_current_folder() -> None:
    require_stranger()
    with common_place() as place:
        theirs, mine = place / "run", place / "mine"
        mine.mkdir()
        as_stranger(lambda: theirs.mkdir(mode=0o777))
        theirs.chmod(0o777)
        assert report_command.page_path(theirs) != theirs / "report.html"
        assert report_command.page_path(mine) == mine / "report.html"
