"""Staging on nodes of this machine, as agents do it: the same bytes in their place, or nothing."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from requirements import missing_programs, require, require_fuse
from startup.machine import Clients, hosted
from startup.shared import Limits
from windlass.errors import MachineError
from windlass.model.plan import CacheRoot
from windlass.node.agent.host import AgentError
from windlass.node.stage.places import Workplace, sweep_partial
from windlass.node.stage.unpacking import Archive, archive_of, unpack
from windlass.run.stage.push import StageProgress, stage_service

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "shared" / "tree"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    for number in range(20):
        (top / "sub" / f"f{number}").write_bytes(os.urandom(number * 7919))
    (top / "sub" / "deep" / "run").write_text("#!/bin/sh\n")
    (top / "sub" / "deep" / "run").chmod(0o755)
    (top / "link").symlink_to("sub/f3")
    Path(os.fsdecode(os.fsencode(top) + b"/bad\xff")).write_text("x")
    os.utime(top / "sub" / "f3", ns=(1, 1_234_567_890_000_000_001))
    return top


def push(
    tmp_path: Path,
    nodes: int,
    *sources: Path,
    extract: bool = False,
    shard: bool = False,
    one_reader: bool = False,
) -> tuple[list[Path], int]:
    """Stage to `nodes` nodes; returns their folders and what the shared file system had to read."""
    require_fuse()
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    shared = {source.parent.name: str(source.parent) for source in sources}
    with Clients(tmp_path / "c", nodes, {**shared, "run": str(run)}, Limits()) as clients:
        roots = tuple(
            CacheRoot(path=str(s), real=str(clients.path("{node}") / s.parent.name / s.name)) for s in sources
        )
        to = str(tmp_path / "node-{node}")
        service = stage_service(roots, to, extract=extract, shard=shard, one_reader=one_reader, per_node=True)
        before = clients.seen().bytes
        with hosted(clients, nodes, run, tmp_path, service):
            pass
        read = clients.seen().bytes - before
    folders = [tmp_path / f"node-{node}" for node in range(nodes)]
    for folder in folders:
        assert not [path for path in folder.iterdir() if path.name.startswith(".windlass")], "nothing half-done"
    return folders, read


def files_below(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def same(left: Path, right: Path) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", left, right], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tree_arrives_on_every_node_and_is_read_once(tree: Path, tmp_path: Path) -> None:
    folders, read = push(tmp_path, 3, tree)
    for folder in folders:
        same(tree, folder / "tree")
        assert os.access(folder / "tree" / "sub" / "deep" / "run", os.X_OK)
        assert (folder / "tree" / "sub" / "f3").stat().st_mtime_ns == 1_234_567_890_000_000_001
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    assert read <= 1.05 * size + 3 * 300_000


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_archive_is_unpacked_as_it_arrives(tree: Path, tmp_path: Path, ending: str) -> None:
    if ending.endswith("zst"):
        why = missing_programs("zstd")
        require("zstd", not why, why)
    archive = tree.parent / f"packed{ending}"
    how = {".tar": (), ".tar.gz": ("-z",), ".tar.zst": ("--zstd",)}[ending]
    subprocess.run(["tar", "-c", *how, "-f", archive, "-C", tree.parent, "tree"], check=True, timeout=60)
    folders, _ = push(tmp_path, 2, archive, extract=True)
    for folder in folders:
        same(tree, folder / "packed" / "tree")


def test_image_is_mounted_on_every_node_as_long_as_the_agents_live(tree: Path, tmp_path: Path) -> None:
    require_fuse()
    why = missing_programs("mksquashfs") or (missing_programs("squashfuse") and missing_programs("squashfuse_ll"))
    require("squashfs", not why, why)
    image = tree.parent / "env.squashfs"
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True, timeout=60, capture_output=True)
    run = tmp_path / "run"
    run.mkdir()
    with Clients(tmp_path / "c", 2, {"shared": str(image.parent), "run": str(run)}, Limits()) as clients:
        root = CacheRoot(path=str(image), real=str(clients.path("{node}") / "shared" / image.name))
        service = stage_service((root,), str(tmp_path / "node-{node}"), extract=True, shard=False, per_node=True)
        with hosted(clients, 2, run, tmp_path, service):
            for node in range(2):
                same(tree, tmp_path / f"node-{node}" / "env")
    for node in range(2):
        assert [path.name for path in (tmp_path / f"node-{node}").iterdir()] == ["env.squashfs"]


def test_archive_that_is_none_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    archive = tree.parent / "broken.tar.gz"
    archive.write_bytes(os.urandom(300_000))
    with pytest.raises(MachineError, match=r"cannot unpack broken\.tar\.gz"):
        push(tmp_path, 1, archive, extract=True)
    assert not list((tmp_path / "node-0").iterdir())


def test_large_file_crosses_many_blocks_and_readers(tmp_path: Path) -> None:
    large = tmp_path / "shared" / "large"
    large.parent.mkdir()
    large.write_bytes(os.urandom(21_000_001))
    folders, read = push(tmp_path, 5, large)
    assert all((folder / "large").read_bytes() == large.read_bytes() for folder in folders)
    assert read <= 1.05 * 21_000_001 + 5 * 300_000


def test_one_reader_reads_for_all(tree: Path, tmp_path: Path) -> None:
    folders, _ = push(tmp_path, 3, tree, one_reader=True)
    for folder in folders:
        same(tree, folder / "tree")


def test_archive_and_tree_together_keep_their_order(tree: Path, tmp_path: Path) -> None:
    large = tree / "large"
    large.write_bytes(os.urandom(9_000_000))
    archive = tree.parent / "packed.tar"
    subprocess.run(["tar", "-c", "-f", archive, "-C", tree.parent, "tree"], check=True, timeout=60)
    folders, _ = push(tmp_path, 4, archive, tree, extract=True)
    for folder in folders:
        same(tree, folder / "packed" / "tree")
        same(tree, folder / "tree")


def test_what_will_not_fit_is_refused_before_a_byte_travels(tmp_path: Path) -> None:
    huge = tmp_path / "shared" / "huge"
    huge.parent.mkdir()
    with huge.open("wb") as file:
        file.truncate(14 << 40)
    with pytest.raises(MachineError, match="has room for"):
        push(tmp_path, 2, huge)
    assert not list((tmp_path / "node-0").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
@pytest.mark.parametrize(("ending", "said"), [(".tar.gz", "No space left"), (".tar", "has room for")])
def test_node_that_runs_full_says_so_and_leaves_nothing(tree: Path, tmp_path: Path, ending: str, said: str) -> None:
    """What is compressed may fit; what is not is known before."""
    (tree / "large").write_bytes(os.urandom(6_000_000))
    archive = tree.parent / f"packed{ending}"
    subprocess.run(["tar", "-c", "-a", "-f", archive, "-C", tree.parent, "tree"], check=True, timeout=60)
    small = tmp_path / "node-0"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "small", small], check=True, timeout=20)
    try:
        with pytest.raises(MachineError, match=said):
            push(tmp_path, 1, archive, extract=True)
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True, timeout=20)


def test_old_copy_is_replaced_in_one_step(tree: Path, tmp_path: Path) -> None:
    push(tmp_path, 1, tree)
    (tree / "new").write_text("new")
    (tmp_path / "c").rename(tmp_path / "c-before")
    (folder,), _ = push(tmp_path, 1, tree)
    same(tree, folder / "tree")


def test_shards_together_are_the_whole(tree: Path, tmp_path: Path) -> None:
    folders, _ = push(tmp_path, 3, tree, shard=True)
    parts = [
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
        for folder in folders
    ]
    whole = {
        Path("tree") / path.relative_to(tree) for path in tree.rglob("*") if path.is_file() and not path.is_symlink()
    }
    assert set.union(*parts) == whole
    assert sum(len(part) for part in parts) == len(whole) and max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_a_killed_agent_left_half_done_is_swept(tmp_path: Path) -> None:
    partial = tmp_path / ".windlass-stage.0123"
    (partial / "0" / "sub").mkdir(parents=True)
    (partial / "0" / "sub" / "x").write_text("x")
    (partial / "0" / "sub").chmod(0o500)
    (partial / "lock").touch()
    (tmp_path / "mine").touch()
    with Workplace(str(tmp_path)) as work:
        os.mkdir("0", dir_fd=work.fd)
        sweep_partial(str(tmp_path))
        assert len(list(tmp_path.iterdir())) == 2, "what is locked stays"
        work.put_in_place("0", "final")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final", "mine"]


def test_a_copy_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for name, made in (("folder", "folder"), ("file", "file"), ("folder", "file"), ("link", "folder")):
        before = tmp_path / "final"
        if name == "folder":
            (before / "full").mkdir(parents=True)
        elif name == "file":
            before.write_text("old")
        else:
            before.unlink()
            before.symlink_to("/nowhere")
        with Workplace(str(tmp_path)) as work:
            if made == "folder":
                os.mkdir("0", dir_fd=work.fd)
            else:
                os.close(os.open("0", os.O_CREAT, dir_fd=work.fd))
            work.put_in_place("0", "final")
        assert before.is_dir() == (made == "folder") and not before.is_symlink()
        assert [path.name for path in tmp_path.iterdir()] == ["final"]
        if made == "folder" and name != "link":
            before.rmdir()
        elif made == "file" and name == "file":
            before.unlink()


def test_names_of_archives() -> None:
    assert archive_of("a.tar.zst") == Archive("a", "zstd") and archive_of("a.zip") is None
    assert archive_of("env.v1.tar.gz") == Archive("env.v1", "gzip") and archive_of("b.tar") == Archive("b", None)


def test_an_archive_whose_program_is_missing_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(AgentError, match=r"no zstd on this node to unpack env\.tar\.zst"):
            unpack(iter(()), folder, "env.tar.zst")
    finally:
        os.close(folder)


def test_a_tar_that_has_a_word_for_every_member_is_not_waited_for(tmp_path: Path) -> None:
    """As archives of other systems make it say: more than a pipe holds, while nobody reads."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(1500):
            member = tarfile.TarInfo(f"file{number}")
            member.pax_headers = {"LIBARCHIVE.xattr.com.example.quarantine": "x"}
            tar.addfile(member)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpack(iter([memoryview(packed.getvalue())]), folder, "env.tar")
    finally:
        os.close(folder)
    assert len(list(tmp_path.iterdir())) == 1500


def test_without_tar_the_error_names_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gzip").symlink_to(shutil.which("gzip") or "")
    (tmp_path / "out").mkdir()
    folder = os.open(tmp_path / "out", os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(AgentError, match="tar cannot be started on this node: No such file"):
            unpack(iter(()), folder, "a.tar.gz")
    os.close(folder)


def test_a_failing_decompressor_is_named_and_not_tar(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(AgentError, match=r"(pigz|gzip) cannot unpack env\.tgz: .*gzip"):
            unpack(iter([memoryview(b"no archive" * 1000)]), folder, "env.tgz")
    finally:
        os.close(folder)


def test_progress_is_that_of_the_slowest_node() -> None:
    said: list[str] = []
    progress = StageProgress(2, said.append, 0.0)
    progress.look([{"node": 0, "staged": 500_000_000, "of": 1_000_000_000}, {"node": 1, "up": 1.0}])
    assert said[-1].startswith("500 of 1,000 MB on the slowest node") and "1 of 2 nodes complete" in said[-1]
