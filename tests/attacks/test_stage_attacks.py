"""Attacks on staging: a shared target full of traps, and layouts that lead out of it."""

from __future__ import annotations

import io
import os
import random
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import UID, as_stranger, common_place, require_stranger
from windlass.node.agent.host import AgentError
from windlass.node.cache.keys import Pin
from windlass.node.stage.layout import BlockPart, Item, Layout, LayoutError, StageBlock, parse_items
from windlass.node.stage.places import PARTIAL, Workplace, sweep_partial
from windlass.node.stage.unpacking import unpack
from windlass.node.stage.writing import Copy

FOLDER, FILE, LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777


def test_a_layout_with_a_link_writes_nothing_behind_it(tmp_path: Path) -> None:
    """Refused when it is parsed; and a writer that is handed it all the same ends with an error."""
    victim, target = tmp_path / "victim", tmp_path / "to"
    victim.mkdir()
    target.mkdir()
    items = [
        Item(0, b"", FOLDER, Pin(0, 0, 0), None),
        Item(0, b"a", LINK, Pin(1, 0, 0), os.fsencode(victim)),
        Item(0, b"a/b", FILE, Pin(4, 0, 0), None),
        Item(0, b"c", LINK, Pin(1, 0, 0), os.fsencode(victim / "d")),
        Item(0, b"c", FILE, Pin(4, 0, 0), None),
    ]
    with pytest.raises(LayoutError):
        parse_items(Layout(items, 1).packed)
    with pytest.raises(LayoutError):
        parse_items(Layout([items[0], *items[3:]], 1).packed)
    with Workplace(str(target)) as work:
        copy = Copy([items[0], *items[3:]], 0, work.fd, "0", 1 << 20)
        copy.begin()
        with pytest.raises(FileExistsError):
            copy.write(StageBlock(0, 4, (BlockPart(2, 0, 0, 4),)), memoryview(b"evil"))
    assert not list(victim.iterdir())
    record(
        "layout with a link and a file behind it",
        expected="refused, nothing outside the target",
        seen="refused by the parser and by the writer, nothing outside",
        layouts=2,
        files_outside=len(list(victim.iterdir())),
    )


def test_a_thousand_broken_layouts_are_refused_or_stay_inside() -> None:
    """What the parser lets through has every item in a folder that stands before it."""
    chance = random.Random(20261115)
    names = (b"", b"a", b"a/b", b"a/b/c", b"..", b"a/..", b"/etc", b"x\0", b"a//b", b"\xff")
    refused = kept = 0
    for _ in range(1000):
        items = [Item(0, b"", FOLDER, Pin(0, 0, 0), None)]
        for _ in range(chance.randrange(5)):
            mode = chance.choice((FOLDER, FILE, LINK, 0, stat.S_IFIFO))
            link = chance.choice((b"/etc", b"..", b"", b"x")) if mode == LINK or chance.random() < 0.1 else None
            pin = Pin(chance.choice((0, 5, -1, 1 << 80)), chance.choice((0, 1 << 70)), 0)
            items.append(Item(chance.choice((0, 0, 0, 1, -1)), chance.choice(names), mode, pin, link))
        packed = bytearray(Layout(items, 1).packed)
        if chance.random() < 0.3:
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        try:
            found = parse_items(packed)
        except LayoutError:
            refused += 1
            continue
        kept += 1
        folders = {(item.source, item.path) for item in found if item.is_folder and item.target is None}
        for item in found:
            assert not item.path or (item.source, item.path.rpartition(b"/")[0]) in folders
    assert refused and kept
    record(
        "broken and hostile layouts (seed 20261115)",
        expected="refused, or every item inside a folder of the layout",
        seen=f"{refused} refused, {kept} harmless",
        layouts=1000,
    )


def test_traps_of_another_user_in_a_shared_target_catch_nothing() -> None:
    """Links under the names that staging used to write, and locks that the stranger holds: nothing is written through
    them, nothing waits for them, nothing of theirs is removed."""
    require_stranger()
    with common_place() as target:
        victim = target / "victim"
        victim.write_bytes(b"precious")
        victim.chmod(0o666)
        old = [f"{PARTIAL}run.{number}{end}" for number in range(4) for end in ("", ".lock", ".old")]

        def set_traps() -> None:
            for name in old:
                (target / name).symlink_to(victim)
            (target / f"{PARTIAL}ffff").mkdir(mode=0o777)
            (target / f"{PARTIAL}ffff" / "lock").touch(mode=0o600)
            (target / f"{PARTIAL}linked").symlink_to("/etc")
            (target / "data").mkdir(mode=0o777)

        as_stranger(set_traps)
        before = sorted(path.name for path in target.iterdir())
        sweep_partial(str(target))
        assert sorted(path.name for path in target.iterdir()) == before, "nothing of theirs is removed"
        with Workplace(str(target)) as work:
            made = [path for path in target.iterdir() if path.name not in before]
            assert len(made) == 1 and stat.S_IMODE(made[0].stat().st_mode) == 0o700
            big = Item(0, b"", FILE, Pin(3 << 20, 0, 0), None)
            copy = Copy([big], 0, work.fd, "0", 1 << 20)
            copy.begin()
            for chunk in range(3):
                copy.write(StageBlock(0, 1 << 20, (BlockPart(0, chunk, 0, 1 << 20),)), memoryview(bytes(1 << 20)))
            work.put_in_place("0", "mine")
        assert victim.read_bytes() == b"precious"
        assert (target / "mine").stat().st_size == 3 << 20
        record(
            "links, locks and folders of another user in a shared `stage --to` folder",
            expected="not followed, not waited for, not removed",
            seen="3 MiB staged beside them, their traps as before",
            traps=len(before) - 1,
            bytes_behind_links=0,
        )


def test_a_name_that_another_user_took_is_an_error_with_their_uid() -> None:
    """Without root's rights: a sticky folder protects what is theirs, and the error says whose it is."""
    require_stranger()
    with common_place() as target:
        (target / "data").mkdir()
        (target / "data" / "full").touch()

        def stage() -> None:
            with Workplace(str(target)) as work:
                os.mkdir("0", dir_fd=work.fd)
                try:
                    work.put_in_place("0", "data")
                except AgentError as error:
                    assert "uid 0" in str(error), error
                    return
                raise AssertionError("it took the place of another user's folder")

        as_stranger(stage)
        assert [path.name for path in target.iterdir()] == ["data"]
        record(
            "the name of a staged copy taken by another user",
            expected="an error that names the uid",
            seen="AgentError with the uid, nothing left behind",
            attempts=1,
        )


def test_a_folder_that_a_stranger_puts_in_the_place_of_ours_is_not_worked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a target without a sticky bit, between the making of our folder and its opening."""
    require_stranger()
    real = os.mkdir

    with common_place(0o777) as target:

        def swapped(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real(name, mode, dir_fd=dir_fd)
            monkeypatch.undo()

            def swap() -> None:
                (target / name).rename(target / "taken")
                (target / name).mkdir(mode=0o777)

            as_stranger(swap)

        monkeypatch.setattr(os, "mkdir", swapped)
        with pytest.raises(AgentError, match="another user"), Workplace(str(target)):
            pass
        record(
            "our folder in a `stage --to` folder swapped for another user's before it is opened",
            expected="refused",
            seen="AgentError, nothing written",
            attempts=1,
        )


def test_who_can_swap_what_was_staged_is_told(tmp_path: Path) -> None:
    require_stranger()
    with common_place() as place:
        as_stranger(lambda: (place / "theirs").mkdir(mode=0o1777))
        (place / "ours").mkdir()
        (tmp_path / "data").write_text("x")
        for name, told in (("theirs", True), ("ours", False)):
            argv = ["stage", "data", "--to", str(place / name), "--scheduler", "none"]
            env = {**os.environ, "HOME": str(tmp_path), "WINDLASS_RUNS": str(tmp_path / "runs")}
            done = subprocess.run(
                [sys.executable, "-m", "windlass", *argv],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            assert (f"warning: uid {UID} can rename files in {place / name}" in done.stderr) is told, done.stderr


Member = tuple[str, bytes, str]
"""Name, type and target of a member of an archive; files hold `evil`."""


def archive(*members: Member) -> memoryview:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode, info.uid = kind, target, 0o755, UID
            info.devmajor, info.devminor = 1, 3
            info.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"evil") if info.size else None)
    return memoryview(packed.getvalue())


def unpacked(inside: Path, packed: memoryview) -> str:
    """Unpacks into `inside`; what was said where it was refused."""
    folder = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpack(iter([packed]), folder, "hostile.tar")
        return ""
    except AgentError as error:
        return str(error)
    finally:
        os.close(folder)


@pytest.mark.parametrize("options", ["", "--absolute-names"])
def test_an_archive_writes_nothing_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """Names that lead out, and links that lead out with files behind them; also where the user's own defaults for tar
    would let them."""
    monkeypatch.setenv("TAR_OPTIONS", options)
    file, link, hard = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    victim = tmp_path / "victim"
    archives: list[tuple[Member, ...]] = [
        (("../victim/a", file, ""),),
        ((f"{victim}/a", file, ""),),
        (("x/../../victim/a", file, ""),),
        (("way", link, "../victim"), ("way/a", file, "")),
        (("way", link, str(victim)), ("way/a", file, "")),
        (("down", link, "."), ("down/way", link, "../victim"), ("way/a", file, "")),
        (("kept", hard, "../victim/secret"), ("kept", file, "")),
        (("kept", hard, f"{victim}/secret"), ("kept", file, "")),
        (("way", link, "../victim"), ("kept", hard, "way/secret")),
    ]
    refused = 0
    for number, members in enumerate(archives):
        victim.mkdir(exist_ok=True)
        (victim / "secret").write_text("precious")
        inside = tmp_path / f"inside{number}"
        inside.mkdir()
        refused += bool(unpacked(inside, archive(*members)))
        assert [path.name for path in victim.iterdir()] == ["secret"]
        assert (victim / "secret").read_text() == "precious" and (victim / "secret").stat().st_nlink == 1
        assert {path.lstat().st_uid for path in inside.rglob("*")} <= {os.geteuid()}, (
            "owners of the archive are not ours"
        )
    record(
        "archives whose names and links lead out of the folder",
        expected="refused or unpacked inside, nothing written, linked or owned outside",
        seen=f"{refused} of {len(archives)} refused, nothing outside",
        archives=len(archives),
        files_outside=0,
    )


def test_an_archive_with_a_device_or_a_pipe_is_refused(tmp_path: Path) -> None:
    for number, kind in enumerate((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)):
        inside = tmp_path / f"inside{number}"
        inside.mkdir()
        said = unpacked(inside, archive(("sub", tarfile.DIRTYPE, ""), ("sub/null", kind, "")))
        assert "sub/null" in said, said
    record(
        "archives with a device or a named pipe",
        expected="refused before anything gets its name",
        seen="refused, and the member is named",
        archives=3,
    )


def test_a_copy_has_no_setuid_bit_and_no_write_permission_for_others(tmp_path: Path) -> None:
    """A colleague's data set with a setuid shell must not become a setuid shell of the user who stages it."""
    items = [
        Item(0, b"", stat.S_IFDIR | 0o6777, Pin(0, 0, 0), None),
        Item(0, b"empty", stat.S_IFREG | 0o4777, Pin(0, 0, 0), None),
        Item(0, b"shell", stat.S_IFREG | 0o6775, Pin(4, 0, 0), None),
        Item(0, b"plain", stat.S_IFREG | 0o755, Pin(0, 0, 0), None),
    ]
    with Workplace(str(tmp_path)) as work:
        copy = Copy(items, 0, work.fd, "0", 1 << 20)
        copy.begin()
        copy.write(StageBlock(0, 4, (BlockPart(2, 0, 0, 4),)), memoryview(b"evil"))
        copy.settle()
        work.put_in_place("0", "data")
    found = {path: stat.S_IMODE((tmp_path / path).lstat().st_mode) for path in ("data", "data/empty", "data/shell")}
    assert {path: mode & 0o7022 for path, mode in found.items()} == dict.fromkeys(found, 0)
    assert copy.dropped_bits == 3
    record("setuid programs in a staged data set", expected="plain copies", seen="plain copies", copies=len(found))


def test_an_unpacked_archive_has_no_setuid_bit_and_no_write_permission_for_others(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, mode in (("shell", 0o6777), ("plain", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            archive.addfile(entry, io.BytesIO(b""))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        unpack(iter([memoryview(packed.getvalue())]), folder, "data.tar")
    finally:
        os.close(folder)
    assert stat.S_IMODE((tmp_path / "shell").stat().st_mode) & 0o7022 == 0
    assert (tmp_path / "plain").stat().st_mode & 0o100
