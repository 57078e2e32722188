"""Real mounts: what programs see agrees with the source."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuse.agents import CacheAgent, write_agents_file
from fuse.caches import Mounts, make_tree, mounts, wait_for
from requirements import require_fuse
from windlass.node.cache.fuse import DO_READDIRPLUS, MAX_PAGES, NO_OPEN_SUPPORT, NO_OPENDIR_SUPPORT

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module", autouse=True)
def _fuse() -> None:
    require_fuse()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shared")


def run(*argv: str | Path, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(a) for a in argv], capture_output=True, text=True, errors="surrogateescape", timeout=timeout, check=False
    )
    assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done


def assert_same(source: Path, view: Path) -> None:
    """Every name, attribute, link and byte of the two trees is the same."""
    here, there = sorted(source.rglob("*")), sorted(view.rglob("*"))
    assert [p.relative_to(source) for p in here] == [p.relative_to(view) for p in there]
    for a, b in zip(here, there, strict=True):
        one, two = a.lstat(), b.lstat()
        fields = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_mtime_ns", "st_ctime_ns")
        assert [getattr(one, f) for f in fields] == [getattr(two, f) for f in fields], a
        if a.is_symlink():
            assert a.name == "absolute" or a.readlink() == b.readlink()
        elif a.is_file():
            assert one.st_size == two.st_size
            assert a.read_bytes() == b.read_bytes()


# An old kernel is a kernel with fewer flags: 4.18 has no opendir without messages, older ones no readdirplus.
OLD_4_18 = ~NO_OPENDIR_SUPPORT & 0xFFFFFFFF
OLDER = ~(NO_OPENDIR_SUPPORT | NO_OPEN_SUPPORT | DO_READDIRPLUS | MAX_PAGES) & 0xFFFFFFFF


@pytest.mark.parametrize("mask", [0xFFFFFFFF, OLD_4_18, OLDER], ids=["this-kernel", "4.18", "older"])
def test_two_mounts_agree_with_the_source(tmp_path: Path, tree: Path, mask: int) -> None:
    with mounts(tmp_path / "c", 2, tree, fuse_flags_mask=mask) as caches:
        for node in (1, 0):
            assert_same(tree, caches.view(node, tree))
        for node in (1, 0):  # again, from the kernel's cache or not
            assert_same(tree, caches.view(node, tree))
        assert caches.status(1)["source_calls"] == 0


def test_common_programs_agree_with_the_source(tmp_path: Path, tree: Path) -> None:
    (tree / "absolute").unlink()  # shown relative in the view: the one intended difference
    with mounts(tmp_path / "c", 2, tree) as caches:
        view = caches.view(1, tree)
        run("diff", "-r", "--no-dereference", tree, view)
        found = [
            run("sh", "-c", f"cd '{p}' && find . -printf '%p %y %s %m %n %l\\n' | sort").stdout for p in (tree, view)
        ]
        assert found[0] == found[1]
        tars = [run("sh", "-c", f"tar --sort=name -C '{p}' -cf - . | md5sum").stdout for p in (tree, view)]
        assert tars[0] == tars[1]
        if shutil.which("rsync"):
            assert run("rsync", "-aHn", "--delete", "--itemize-changes", f"{view}/", f"{tree}/").stdout == ""
        run("cp", "-a", view, tmp_path / "copy")
        assert_same_content(tree, tmp_path / "copy")
        assert run("df", view).returncode == 0
        run("ls", "-laR", view)
        run("du", "-s", view)


def assert_same_content(one: Path, two: Path) -> None:
    run("diff", "-r", "--no-dereference", one, two)


def test_python_runs_from_the_view_and_its_bytecode_is_valid(tmp_path: Path) -> None:
    root = tmp_path / "env"
    package = root / "pkg"
    package.mkdir(parents=True)
    for number in range(30):
        (package / f"m{number}.py").write_text(f"VALUE = {number}\n" * 50)
    (package / "__init__.py").write_text("from . import m1, m29\nTOTAL = m1.VALUE + m29.VALUE\n")
    run(sys.executable, "-m", "compileall", "-q", root)
    with mounts(tmp_path / "c", 2, root) as caches:
        for node in (0, 1):
            view = caches.view(node, root)
            code = f"import sys; sys.path.insert(0, {str(view)!r}); import pkg; print(pkg.TOTAL, pkg.__cached__)"
            done = run(sys.executable, "-B", "-c", code)
            assert done.stdout.startswith("30 ")
            assert str(view) in done.stdout
        quiet = run(sys.executable, "-m", "compileall", caches.view(1, root), check=False)
        assert "Compiling" not in quiet.stdout, "mtimes in the view must match the bytecode"


def test_links_stay_inside_the_view(tmp_path: Path, tree: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(tree)
    (tree / "by_alias").symlink_to(alias / "d0")
    with mounts(tmp_path / "c", 1, alias) as caches:
        view = caches.view(0, alias)
        mount = Path(caches.configs[0].mount)
        for name in ("absolute", "by_alias", "link"):
            inside = (view / name).resolve()
            assert inside.is_relative_to(mount.resolve()), name
            assert sorted(p.name for p in inside.iterdir()) == sorted(p.name for p in (tree / name).iterdir())
        assert (view / "outside").readlink() == Path("/etc/hostname")
        assert [p.name for p in mount.iterdir()] == [alias.parts[1]]
        with pytest.raises(FileNotFoundError):
            (mount / "etc").stat()


WRITES = {
    "create": lambda d: (d / "new").touch(),
    "write": lambda d: (d / "mode600").open("r+b"),
    "truncate": lambda d: os.truncate(d / "mode600", 0),
    "mkdir": lambda d: (d / "newdir").mkdir(),
    "rmdir": lambda d: (d / "empty_folder").rmdir(),
    "unlink": lambda d: (d / "mode600").unlink(),
    "rename": lambda d: (d / "mode600").rename(d / "other"),
    "link": lambda d: os.link(d / "mode600", d / "hard2"),
    "symlink": lambda d: (d / "sym").symlink_to("x"),
    "chmod": lambda d: (d / "mode600").chmod(0o777),
    "chown": lambda d: os.chown(d / "mode600", 1, 1),
    "utime": lambda d: os.utime(d / "mode600"),
    "mknod": lambda d: os.mkfifo(d / "pipe"),
    "setxattr": lambda d: os.setxattr(d / "mode600", "user.x", b"1"),
}


def test_writes_of_every_kind_are_refused_at_once(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree) as caches:
        for name, write in WRITES.items():
            with pytest.raises(OSError) as caught:
                write(caches.view(0, tree))
            assert caught.value.errno == errno.EROFS, name
        assert_same(tree, caches.view(0, tree))


def test_mappings_private_and_shared_show_the_bytes(tmp_path: Path, tree: Path) -> None:
    want = (tree / "sparse").read_bytes()
    with mounts(tmp_path / "c", 2, tree) as caches, (caches.view(1, tree) / "sparse").open("rb") as file:
        for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            with mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as mapped:
                assert mapped[1_000_000:1_000_006] == b"middle"
                assert bytes(mapped) == want


def test_extended_attributes_are_answered_so_that_tools_go_on(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree) as caches:
        file = caches.view(0, tree) / "sparse"
        for call in (lambda: os.listxattr(file), lambda: os.getxattr(file, "user.none")):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno in (errno.ENOTSUP, errno.ENODATA)
        run("tar", "--xattrs", "-cf", "/dev/null", "-C", file.parent, ".")
        status = os.statvfs(file)
        assert status.f_blocks > 0 and status.f_namemax == 255


def test_a_directory_of_100000_entries(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    for number in range(100_000):
        os.close(os.open(root / f"entry-{number:06d}", os.O_CREAT | os.O_WRONLY))
    with mounts(tmp_path / "c", 2, root) as caches:
        view = caches.view(1, root)
        assert len({entry.name for entry in os.scandir(view)}) == 100_000
        assert (view / "entry-099999").exists()
        assert not (view / "entry-100000").exists()
        assert caches.status(1)["source_calls"] == 0


def test_a_file_larger_than_the_budget_works(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    data = os.urandom(1 << 20) * 24
    (root / "large").write_bytes(data)
    with mounts(tmp_path / "c", 2, root, budget_bytes=4 << 20) as caches:
        for node in (1, 0):
            assert (caches.view(node, root) / "large").read_bytes() == data
            assert caches.status(node)["used_bytes"] <= 4 << 20


def test_a_full_store_place_costs_sharing_not_reads(tmp_path: Path, tree: Path) -> None:
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "none", tiny)
    try:
        with mounts(tmp_path / "c", 1, tree, store_dir=str(tiny)) as caches:
            assert_same(tree, caches.view(0, tree))
            assert caches.status(0)["refused"] > 0
        assert list(tiny.iterdir()) == [], "the store is gone"
    finally:
        run("umount", tiny)


def test_many_readers_at_once_see_the_same_bytes(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 2, tree) as caches:
        readers = [
            subprocess.Popen(["diff", "-r", "--no-dereference", "-x", "absolute", tree, caches.view(n % 2, tree)])
            for n in range(8)
        ]
        assert [reader.wait(60) for reader in readers] == [0] * 8


def test_a_reader_can_be_killed_while_it_waits(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree, peer_timeout_s=20.0) as caches:
        os.kill(caches.pids[0]["peer"], 19)
        try:
            reader = subprocess.Popen(["cat", str(caches.view(0, tree) / "sparse")], stdout=subprocess.DEVNULL)
            with pytest.raises(subprocess.TimeoutExpired):
                reader.wait(1.0)
            reader.kill()
            assert reader.wait(5.0) == -9
        finally:
            os.kill(caches.pids[0]["peer"], 18)
        assert_same(tree, caches.view(0, tree))


def test_the_second_look_costs_the_mount_process_nothing(tmp_path: Path, tree: Path) -> None:
    def asked(caches: Mounts) -> int:
        time.sleep(0.7)
        counts = caches.status(0)["mount"]["requests"]
        return sum(n for code, n in counts.items() if int(code) not in (17, 22, 23))

    with mounts(tmp_path / "c", 1, tree) as caches:
        view = caches.view(0, tree)
        counts = []
        for _ in range(5):  # the kernel may drop pages of the view at any time, so the cheapest look counts
            run("diff", "-r", "--no-dereference", "-x", "absolute", tree, view)
            (view / "nothing").exists()
            counts.append(asked(caches))
        assert min(later - earlier for earlier, later in itertools.pairwise(counts)) <= 2


def test_the_source_seen_by_other_users_stays_closed_to_them(tmp_path: Path, tree: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    for folder in (tmp_path, *tmp_path.parents):
        with contextlib.suppress(OSError):
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o011)
    with mounts(tmp_path / "c", 1, tree) as caches:
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat"]
        for path in (caches.view(0, tree) / "sparse", Path(caches.configs[0].state_dir) / "config.json"):
            done = run(*as_nobody, path, check=False)
            assert done.returncode != 0
            assert "denied" in done.stderr


@pytest.fixture
def _anyones_fuse() -> Iterator[None]:
    """/dev/fuse as it is on most machines: open to all."""
    before = os.stat("/dev/fuse").st_mode & 0o777  # noqa: PTH116
    os.chmod("/dev/fuse", 0o666)  # noqa: PTH101
    yield
    os.chmod("/dev/fuse", before)  # noqa: PTH101


@pytest.mark.usefixtures("_anyones_fuse")
def test_a_user_without_root_mounts_through_fusermount(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("fusermount3") or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root to become a user, fusermount3, and a python for all")
    with tempfile.TemporaryDirectory() as short:
        base = Path(short)
        root = make_tree(base / "shared", files=5)
        write_agents_file(base, ("localhost",), root)
        run("chown", "-R", "65534:65534", base)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        agent = CacheAgent(base, 0, python="/usr/bin/python3", before=user)  # a python that every user can reach
        try:
            config = agent.wait_up()
            run(*user, "diff", "-r", "--no-dereference", "-x", "absolute", root, config.mount + str(root))
            assert "fuse.windlass" in Path("/proc/self/mountinfo").read_text()
        finally:
            agent.stop()
        assert not Path(config.mount).exists()


@pytest.mark.parametrize("mask", [0xFFFFFFFF, OLDER], ids=["this-kernel", "older"])
def test_a_recorded_run_is_in_the_kernel_before_anyone_asks(tmp_path: Path, tree: Path, mask: int) -> None:
    trace = tmp_path / "traces" / "t.json"
    with mounts(tmp_path / "one", 1, tree, trace_out=str(trace)) as caches:
        assert_same(tree, caches.view(0, tree))
    with mounts(tmp_path / "two", 3, tree, trace_in=str(trace), fuse_flags_mask=mask) as caches:
        for node in range(3):
            wait_for(lambda node=node: caches.status(node)["mount"].get("warm", {}).get("ended", False), what="warm")
        for node in range(3):
            assert_same(tree, caches.view(node, tree))
        time.sleep(0.7)
        for node in range(3):
            status = caches.status(node)
            assert status["mount"]["misses"] == 0
            assert status["mount"]["requests"].get("15", 0) == 0, "no read reached the mount process"
        assert caches.total("source_bytes") == sum(p.stat().st_size for p in set_of_files(tree))


def set_of_files(tree: Path) -> list[Path]:
    """Files by name: a hard link is read under each of its names."""
    return [p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()]
