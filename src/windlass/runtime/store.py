"""A folder of snapshots on disk: names, manifest, commit, check, prune. Standard library only, for one process.

    ckpt/
      step-000000120/        committed: MANIFEST.json lists every file with its size and SHA-256
      .saving-000000140-ab12/  being written. Not read. The next holder of the folder removes it
      bad-000000160-cd34/    failed its check and was set aside. The newest one is kept as evidence
      holder.json            the current writer (see `lease`)

A snapshot appears by one rename of a complete folder, so a reader sees a whole one or none. windlass changes only files
with names of these forms. Other files in the folder belong to the user.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, VersionError, WindlassError
from windlass.node.sys.folders import is_own
from windlass.node.sys.reading import UnreadableError, open_plain, read_text

FORMAT = 1
MANIFEST = "MANIFEST.json"
INDEX = ".metadata"
"""torch's index: the location of each value."""
_STEP = re.compile(r"step-(\d{9,})$")
_SAVING = re.compile(r"\.saving-\d{9,}-[0-9a-f]+$")
_BAD = re.compile(r"bad-(\d{9,})-[0-9a-f]+$")
_GOING = re.compile(r"\.going-\d{9,}-[0-9a-f]+$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MAX_THREADS = 12
_CHUNK = 1 << 20
_MAX_MANIFEST = 256 << 20
_SPARSE_BYTES = 1 << 30


class CorruptError(WindlassError):
    """A committed snapshot differs from its manifest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a snapshot."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The description and the files of a snapshot. Written last."""

    step: int
    world_size: int
    saved_at: float
    files: tuple[FileEntry, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A committed snapshot, not yet checked."""

    step: int
    path: Path


def new_token() -> str:
    """Return part of a name that no other process chooses."""
    return secrets.token_hex(4)


def saving_path(folder: Path, step: int, token: str) -> Path:
    """Return the path at which the snapshot of `step` is written before it is committed."""
    return folder / f".saving-{step:09d}-{token}"


def list_snapshots(folder: Path) -> tuple[Found, ...]:
    """Return the committed snapshots, newest step first. A folder that does not exist has none."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise disk_error(error, folder, "read") from error
    found = [Found(step=int(m[1]), path=folder / name) for name in names if (m := _STEP.match(name))]
    return tuple(sorted(found, key=lambda f: f.step, reverse=True))


def manifest_text(manifest: Manifest) -> str:
    """Return the manifest as JSON with its own digest, so that a flipped bit in it is detected too."""
    body = {
        "format": FORMAT,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "saved_at": manifest.saved_at,
        "notes": dict(manifest.notes),
        "files": [[f.name, f.size_bytes, f.sha256] for f in manifest.files],
    }
    return json.dumps({**body, "sha256": _digest_of(body)}, indent=1, sort_keys=True) + "\n"


def parse_manifest(text: str, where: str) -> Manifest:
    """Parse the manifest. Raises `CorruptError` if it is damaged, `VersionError` if it is too new."""
    try:
        body = json.loads(text)
        newer = int(body["format"]) > FORMAT
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"{where}: {MANIFEST} cannot be read: {error}") from None
    if newer:
        raise VersionError(
            f"{where} was written by a newer windlass (format {body['format']}, this one reads {FORMAT})",
            hint="use that windlass, or another snapshot folder",
        )
    digest = body.pop("sha256", None)
    if digest != _digest_of(body):
        raise CorruptError(f"{where}: {MANIFEST} does not match its own digest")
    try:
        return Manifest(
            step=_natural(body["step"]),
            world_size=_natural(body["world_size"]),
            saved_at=float(body["saved_at"]),
            notes=dict(body["notes"]),
            files=tuple(_entry(*entry) for entry in body["files"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise CorruptError(f"{where}: {MANIFEST} is not a windlass manifest: {error}") from None


def _entry(name: Any, size_bytes: Any, sha256: Any) -> FileEntry:
    """Return one file of a manifest."""
    if not is_plain_name(name):
        raise ValueError(f"{str(name)[:80]!r} is not a plain file name")
    return FileEntry(name=name, size_bytes=_natural(size_bytes), sha256=str(sha256))


def is_plain_name(name: Any) -> bool:
    """Return whether a file of a snapshot can have this name. A name that contains a path would lead out of it."""
    return isinstance(name, str) and bool(_PLAIN_NAME.fullmatch(name)) and name not in (".", "..", MANIFEST)


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{str(value)[:80]} is not a valid number")
    return value


def read_manifest(snapshot: Path) -> Manifest:
    """Return the manifest of a committed snapshot."""
    try:
        text = read_text(snapshot / MANIFEST, _MAX_MANIFEST)
    except (FileNotFoundError, UnreadableError) as error:
        raise CorruptError(f"{snapshot}: {MANIFEST} cannot be read: {error}") from None
    except OSError as error:
        raise disk_error(error, snapshot / MANIFEST, "read") from error
    return parse_manifest(text, str(snapshot))


def check_file(path: Path, entry: FileEntry, digest: Callable[[Path], str] | None = None) -> str | None:
    """Return the problem of one file, or None.

    Reads the whole file with `digest`, which returns its SHA-256 in hex.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):  # a link leads out of the snapshot, a pipe never ends
            return f"{entry.name} is not a plain file"
        size = status.st_size
        if not is_own(status) and size > _SPARSE_BYTES and status.st_blocks * 512 < size // 100:
            return f"{entry.name} is another user's file with {size} bytes of holes"
        if size != entry.size_bytes:
            return f"{entry.name} has {size} bytes, not {entry.size_bytes}"
        if (digest or file_digest)(path) != entry.sha256:
            return f"{entry.name} does not match its checksum"
    except FileNotFoundError:
        return f"{entry.name} is missing"
    except PermissionError as error:
        raise disk_error(error, path, "read") from error
    except OSError as error:
        return f"{entry.name} cannot be read: {error.strerror}"
    return None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def check_snapshot(snapshot: Path) -> Manifest:
    """Read every file of a snapshot and return its manifest.

    Raises `CorruptError` for a wrong file. For one process.
    """
    manifest = read_manifest(snapshot)
    problems = [p for entry in manifest.files if (p := check_file(snapshot / entry.name, entry))]
    if problems:
        raise CorruptError(f"{snapshot}: {'; '.join(problems[:3])}")
    return manifest


def commit(folder: Path, saving: Path, manifest: Manifest) -> Path:
    """Make the snapshot in `saving` visible under its final name. If it raises, nothing became visible."""
    target = folder / f"step-{manifest.step:09d}"
    write_durably(saving / MANIFEST, manifest_text(manifest))
    _sync_folder(saving)
    going = folder / f".going-{manifest.step:09d}-{new_token()}"
    if target.exists():
        # Only a snapshot of the same step can exist here: a run that had fallen back reached the step again. The
        # existing snapshot is renamed as a whole.
        target.rename(going)
    saving.rename(target)
    _sync_folder(folder)
    shutil.rmtree(going, ignore_errors=True)
    return target


def set_aside(found: Found) -> Path | None:
    """Rename a snapshot that will not be used, so that no later start considers it. Returns None if that fails."""
    aside = found.path.with_name(f"bad-{found.step:09d}-{new_token()}")
    try:
        found.path.rename(aside)
    except OSError:
        return None
    return aside


def prune(folder: Path, keep: int) -> None:
    """Remove committed snapshots beyond the `keep` newest, and all but the newest bad one."""
    for found in list_snapshots(folder)[keep:]:
        # Renamed first, so that a reader never finds a committed name with missing files.
        going = folder / f".going-{found.step:09d}-{new_token()}"
        found.path.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    bad = sorted((p for p in folder.iterdir() if _BAD.match(p.name)), key=lambda p: p.stat().st_mtime)
    for path in bad[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove files that a killed run left partly written or partly removed. The caller holds the folder."""
    for path in folder.iterdir():
        if _SAVING.match(path.name) or _GOING.match(path.name):
            shutil.rmtree(path, ignore_errors=True)


def write_durably(path: Path, text: str) -> None:
    """Write a small file and sync it to the disk."""
    with open(path, "w", encoding="utf-8", opener=open_closed) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def open_closed(path: str | Path, flags: int) -> int:
    """An opener for `open` that follows no link and never makes a file writable by a group, whatever the umask.

    Files that others can write are not trusted when they are read (see `reader`).
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def io_threads() -> int:
    """Return how many threads of a rank write, check or read files: one per available processor, up to a limit."""
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def disk_error(error: OSError, path: Path | str, verb: str) -> MachineError:
    """Convert an operating system error to a windlass error: what failed, where, and what to do."""
    hints = {
        "EACCES": "choose a writable folder, or ask its owner for access",
        "EPERM": "choose a writable folder, or ask its owner for access",
        "EROFS": "the file system is mounted read-only here; choose another folder",
        "ENOSPC": "free space or choose another folder; older snapshots are untouched",
        "EDQUOT": "your quota is used up; free space or choose another folder; older snapshots are untouched",
        "EFBIG": "the file system or a limit (ulimit -f) does not allow files of this size",
        "ENOTDIR": "part of the path is a file",
        "EEXIST": "part of the path is a file",
    }
    import errno

    code = errno.errorcode.get(error.errno or 0, "")
    return MachineError(f"cannot {verb} {path}: {error.strerror or error}", hint=hints.get(code))


def entries(files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
    """Return files in a stable order, so that two manifests of the same content are the same text."""
    return tuple(sorted(files, key=lambda f: f.name))


def _digest_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
