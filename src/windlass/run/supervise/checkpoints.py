"""Checkpoints of trainers: the newest complete one, and the arguments with which the next start loads it.

Only checkpoints of this user that changed after the run began count, because the folder may have those of other runs
and users. A checkpoint that was being written when its ranks died is renamed, so that no trainer chooses it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickletools
import re
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from windlass.model.plan import Plan, TrainerPlan
from windlass.node.sys.atomic import open_append
from windlass.node.sys.folders import is_foreign
from windlass.node.sys.reading import open_plain, read_text
from windlass.plan.trainers import TrainerSpec, trainer_spec
from windlass.run.failure.ends import LEDGER_FILE, newest_step, read_ledger
from windlass.run.failure.verdict import attempt_folders, read_verdict
from windlass.run.folder import RunFolder

INCOMPLETE = "incomplete-"
_ZIPPED = {".pt", ".pth", ".bin", ".pkl", ".ckpt"}
_MAX_HEADER, _MAX_PICKLE = 100_000_000, 64 << 20
_CLOCKS_S = 5.0
"""Clocks of file servers may differ from ours by this much."""


class Checkpoint(NamedTuple):
    """One complete checkpoint."""

    path: Path
    step: int
    changed: float


def after_attempt(plan: Plan, folder: RunFolder, began: float) -> tuple[str, ...]:
    """Record the newest complete checkpoint in the ledger, and rename incomplete ones. Returns lines for the user.

    `began`: when this attempt began. The ranks have ended.
    """
    if plan.trainer is None or plan.trainer.resume in {"possible", "never"}:
        return ()
    since = min((began, *_starts(folder)))
    newest, incomplete = find_checkpoints(plan.trainer, Path(plan.request.cwd or "."), plan.world_size, since)
    lines = []
    for path in incomplete:
        with contextlib.suppress(OSError):
            path.rename(path.with_name(INCOMPLETE + path.name))
            lines.append(f"windlass: {path} is incomplete: renamed to {INCOMPLETE}{path.name}")
    known = newest_step(read_ledger(folder.path))
    if newest is not None and (known is None or newest.step > known):
        line = f"{max(newest.changed, began):.3f}\tsaved\t{newest.step}\t{newest.path}\n"
        with contextlib.suppress(OSError), open_append(str(folder.part(LEDGER_FILE))) as file:
            file.write(line.encode("utf-8", "surrogateescape"))
    return tuple(lines)


def with_checkpoint(plan: Plan, folder: RunFolder) -> Plan:
    """Return the plan of the next start: its command loads the newest complete checkpoint of this run."""
    trainer = plan.trainer
    if trainer is None or trainer.resume != "argument":
        return plan
    command = plan.command[: len(plan.command) - len(trainer.passed)]
    spec, starts = trainer_spec(trainer.name), _starts(folder)
    newest = None
    if spec is not None and starts:
        newest, _ = find_checkpoints(trainer, Path(plan.request.cwd or "."), plan.world_size, min(starts))
    passed: tuple[str, ...] = ()
    if newest is not None and spec is not None:
        passed = (spec.resume_option, str(newest.path.parent if spec.resume_with == "folder" else newest.path))
    fresh = msgspec.structs.replace(trainer, passed=passed)
    return msgspec.structs.replace(plan, command=(*command, *passed), trainer=fresh)


def find_checkpoints(
    trainer: TrainerPlan, cwd: Path, world_size: int, since: float
) -> tuple[Checkpoint | None, tuple[Path, ...]]:
    """Return the newest complete checkpoint since then, and the newer ones that are incomplete."""
    spec = trainer_spec(trainer.name)
    if spec is None or not trainer.folder:
        return None, ()
    root = cwd / trainer.folder
    with contextlib.suppress(OSError, ValueError):
        paths = {path: _is_ours(path) for pattern in spec.checkpoints for path in root.glob(pattern)}
        for path in (path for path, ours in paths.items() if not ours and path.lstat().st_mtime >= since):
            text = "windlass: warning: %s is not used, because another user could have written it"
            logging.getLogger("windlass").warning(text, path)
        dated = sorted(((_changed(path), path) for path, ours in paths.items() if ours), reverse=True)
        incomplete: list[Path] = []
        for changed, path in dated:
            if changed < since - _CLOCKS_S:
                break
            if _is_complete(spec, path, world_size):
                return Checkpoint(path, _step(spec, path), changed), tuple(incomplete)
            incomplete.append(path)
        return None, tuple(incomplete)
    return None, ()


def _starts(folder: RunFolder) -> list[float]:
    """Return when the earlier attempts of this run began."""
    return [found.times.started for path in attempt_folders(folder.path) if (found := read_verdict(path))]


def _is_ours(path: Path) -> bool:
    """Return whether no file of a checkpoint belongs to another user. The trainer executes code from it."""
    inside = [Path(parent) / name for parent, folders, names in os.walk(path) for name in (*folders, *names)]
    with contextlib.suppress(OSError):
        return not any(is_foreign(file) or file.stat().st_mode & 0o002 for file in (path, *inside))
    return False


def _changed(path: Path) -> float:
    """Return when a checkpoint was last written. Its folder may be older than a file in it."""
    return max((file.stat().st_mtime for file in (path, *_files(path))), default=0.0)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [Path(parent) / name for parent, _, names in os.walk(path) for name in names]


def _is_complete(spec: TrainerSpec, path: Path, world_size: int) -> bool:
    needed = list(spec.markers)
    if spec.per_rank and (path / spec.per_rank.format(rank=0)).exists():
        needed += [spec.per_rank.format(rank=rank) for rank in range(world_size)]
    if not all((path / name).exists() for name in needed) or (spec.unfinished and (path / spec.unfinished).exists()):
        return False
    if spec.pointer and not _is_pointed(spec, path):
        return False
    return all(_is_whole(file) for file in _files(path))


def _is_pointed(spec: TrainerSpec, path: Path) -> bool:
    """Return whether the pointer names this checkpoint. Trainers write the pointer after all files."""
    try:
        named = read_text(path.parent / spec.pointer, 4096, follow=True).strip()
    except (OSError, ValueError):
        return False
    return spec.pointed.format(named) == path.name


def _is_whole(file: Path) -> bool:
    """Return False for a file that was cut off. torch writes zip archives, whose index is at the end."""
    size = file.stat().st_size
    if file.suffix in _ZIPPED:
        with open_plain(file) as opened:
            return (opened.read(2) != b"PK" and size > 0) or zipfile.is_zipfile(file)
    if file.suffix == ".safetensors":
        with open_plain(file) as opened:
            header = int.from_bytes(opened.read(8), "little")
            ends = re.findall(rb'"data_offsets":\[\d+,(\d+)\]', opened.read(min(header, _MAX_HEADER)))
        return size == 8 + header + max(map(int, ends), default=0)
    return True


def _step(spec: TrainerSpec, path: Path) -> int:
    found = re.search(spec.step, path.name) if spec.step else None
    return int(found[1]) if found else _stored_step(path, spec.stored_step)


def _stored_step(path: Path, key: str) -> int:
    """Return the number under this key in a file of `torch.save`, or 0. Reads the pickle without loading it."""
    bad = (OSError, EOFError, ValueError, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error)
    with contextlib.suppress(*bad), zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        at_key = False
        for operation, value, _ in pickletools.genops(archive.read(entry) if entry.file_size <= _MAX_PICKLE else b""):
            if at_key and isinstance(value, int) and operation.name.startswith(("BININT", "LONG")):
                return value if 0 <= value < 1 << 63 else 0
            at_key = value == key or (at_key and operation.name in {"BINPUT", "LONG_BINPUT", "MEMOIZE"})
    return 0
