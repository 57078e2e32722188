"""One rank of `bench io`: read its share of many small samples from files, a tar and a squashfs image.

The first rank writes the samples below the measured path and removes them at the end. Cold means that the node was
asked to drop their pages. The cache of a file server cannot be emptied from here. Standard library only.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from windlass.base.procs.command import run_command, which
from windlass.bench.barrier import RankBarrier
from windlass.bench.io.options import IoOptions
from windlass.bench.messages import ResultWriter
from windlass.bench.options import from_values
from windlass.bench.rank import World, guarded, read_world
from windlass.errors import MachineError, WindlassError

_PER_FOLDER = 500
_PACK_S = 1800.0


def main(values: dict[str, Any]) -> int:
    return guarded(lambda out: _work(from_values(IoOptions, values), Path(values["folder"]), out))


def _work(options: IoOptions, folder: Path, out: ResultWriter) -> None:
    world = read_world()
    signal.signal(signal.SIGTERM, _end_orderly)
    barrier = RankBarrier(world, folder.name)
    try:
        if world.first:
            out.send("about", device={}, software={}, environment={}, backend=None)
            make_samples(folder, options.samples, options.sample_bytes, out)
        barrier.wait()
        forms = options.formats.split(",")
        for number, form in enumerate(forms):
            if world.first:
                out.send("progress", text=f"reading {form}", done=number, total=len(forms))
            _measure(_Reader(options=options, folder=folder, form=form, world=world, barrier=barrier), out)
        barrier.wait()
    except OSError as error:
        raise MachineError(
            f"rank {world.rank} on {socket.gethostname()} cannot read the samples: {error}",
            hint="is PATH on a file system that all nodes share?",
        ) from error
    finally:
        barrier.close()
        if world.first:
            shutil.rmtree(folder, ignore_errors=True)
    if world.first:
        out.send("end")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """One rank that reads its share in one format."""

    options: IoOptions
    folder: Path
    form: str
    world: World
    barrier: RankBarrier


def _end_orderly(number: int, _: FrameType | None) -> None:
    """Exit on a stop request without leaving a mount or the samples behind."""
    raise SystemExit(128 + number)


def sample_path(number: int) -> Path:
    """Return the path of a sample in the tree. Directories hold at most 500 samples, as in real data sets."""
    return Path(f"{number // _PER_FOLDER:04d}") / f"{number:07d}.bin"


def make_samples(folder: Path, samples: int, size: int, out: ResultWriter) -> None:
    """Write the tree, the tar and the image. Every sample is different, so that no server can deduplicate them."""
    try:
        folder.mkdir(parents=True)
        block = os.urandom(size)
        for number in range(samples):
            if number % 200 == 0:
                out.send("progress", text="writing samples", done=number, total=samples)
            path = folder / "tree" / sample_path(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((number.to_bytes(8, "little") + block)[:size])
        with tarfile.open(folder / "samples.tar", "w") as archive:
            archive.add(folder / "tree", arcname=".")
        # Only written pages can be dropped. The fsyncs come at the end, because the first one makes the others cheap.
        for path in (folder / "samples.tar", *(folder / "tree" / sample_path(number) for number in range(samples))):
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())
    except OSError as error:
        raise MachineError(
            f"cannot write samples to {folder}: {error.strerror}", hint="is there space? take fewer with --samples"
        ) from error
    if which("mksquashfs"):
        image = str(folder / "samples.squashfs")
        argv = ("mksquashfs", str(folder / "tree"), image, "-noI", "-noD", "-noF", "-no-progress", "-quiet")
        with suppress(WindlassError):  # then there is no image, and the format is skipped
            run_command(argv, timeout_s=_PACK_S)


def _measure(reader: _Reader, out: ResultWriter) -> None:
    """Make two passes, cold and warm, over this rank's share in a random order."""
    options, world = reader.options, reader.world
    workers = options.workers or min(8, len(os.sched_getaffinity(0)))
    mine = list(range(world.rank, options.samples, world.size))
    random.Random(world.rank).shuffle(mine)
    for which_pass in ("cold", "warm"):
        with _opened(reader) as read:
            if read is None:
                if world.first and which_pass == "cold":
                    out.send("skipped", text=f"{reader.form}: {_why_not()}")
                return
            if which_pass == "cold":
                _forget(reader, mine)
            reader.barrier.wait()
            start = time.perf_counter()
            wrong, times = _read_all(read, mine, options.sample_bytes, workers)
            seconds = time.perf_counter() - start
            reader.barrier.wait()
        labels = {"format": reader.form, "pass": which_pass, "workers": workers, "rank": world.rank, "wrong": wrong}
        out.send("row", **labels, samples=len(mine), seconds=seconds, sample_s=_percentiles(times))


def _read_all(read: Callable[[int], bytes], mine: Sequence[int], size: int, workers: int) -> tuple[int, list[float]]:
    """Read every sample with some threads. Count the samples that differ from the written ones."""

    def one(number: int) -> tuple[bool, float]:
        start = time.perf_counter()
        data = read(number)
        right = len(data) == size and data[:8] == number.to_bytes(8, "little")[:size]
        return right, time.perf_counter() - start

    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(one, mine))
    return sum(not right for right, _ in done), [seconds for _, seconds in done]


def _percentiles(times: list[float]) -> list[float]:
    """Return up to a hundred percentiles. They carry the same information as a hundred thousand samples."""
    ordered = sorted(times)
    count = min(100, len(ordered))
    return [ordered[number * (len(ordered) - 1) // max(1, count - 1)] for number in range(count)]


@contextmanager
def _opened(reader: _Reader) -> Iterator[Callable[[int], bytes] | None]:
    """Yield a function that reads a sample of this format, or None if this machine cannot read it."""
    folder = reader.folder
    if reader.form == "files":
        yield lambda number: (folder / "tree" / sample_path(number)).read_bytes()
    elif reader.form == "tar":
        with (folder / "samples.tar").open("rb") as stream:
            offsets = _tar_offsets(folder / "samples.tar")
            yield lambda number: os.pread(stream.fileno(), *offsets[number])
    else:
        with _mounted(folder / "samples.squashfs", reader) as root:
            yield None if root is None else lambda number: (root / sample_path(number)).read_bytes()


def _tar_offsets(archive: Path) -> dict[int, tuple[int, int]]:
    """Return (size, offset) of every sample, like the index of a data loader."""
    with tarfile.open(archive) as tar:
        return {int(Path(m.name).stem): (m.size, m.offset_data) for m in tar if m.isfile()}


@contextmanager
def _mounted(image: Path, reader: _Reader) -> Iterator[Path | None]:
    """Mount the image on this node, by the node's first rank."""
    program = which("squashfuse_ll") or which("squashfuse")
    root = Path(tempfile.gettempdir()) / f"windlass-io-{os.getuid()}-{image.parent.name.rpartition('-')[2]}"
    usable = program is not None and Path("/dev/fuse").exists() and image.exists()
    try:
        if usable and reader.world.local_rank == 0:
            root.mkdir(mode=0o700, exist_ok=True)
            run_command((str(program), str(image), str(root)), timeout_s=60)
        reader.barrier.wait()
        yield root if usable else None
    finally:
        if usable and reader.world.local_rank == 0:
            unmount(root)


def unmount(root: Path) -> None:
    """Remove the mount, even if a process still uses it."""
    program = which("fusermount3") or which("fusermount") or "fusermount"
    with suppress(WindlassError):
        run_command((program, "-u", "-z", str(root)), timeout_s=30)
    with suppress(OSError):
        root.rmdir()


def _why_not() -> str:
    if not which("mksquashfs"):
        return "no mksquashfs on the first node"
    if not (which("squashfuse_ll") or which("squashfuse")):
        return "no squashfuse on the node"
    return "no /dev/fuse" if not Path("/dev/fuse").exists() else "no image could be made"


def _forget(reader: _Reader, mine: Sequence[int]) -> None:
    """Ask the kernel to drop the pages of the files that will be read."""
    folder = reader.folder
    names = {"files": [folder / "tree" / sample_path(n) for n in mine], "tar": [folder / "samples.tar"]}
    for path in names.get(reader.form, [folder / "samples.squashfs"]):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
