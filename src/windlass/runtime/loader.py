"""Load the newest intact snapshot: compare it with the model, then check and load it in one pass.

A damaged snapshot may have filled some tensors before the damage is found. The next older one fills all of them again.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from windlass.errors import MachineError, UsageError, VersionError, WindlassError
from windlass.runtime import store
from windlass.runtime.peers import Peers, on_main
from windlass.runtime.reader import make_load_planner, make_reader
from windlass.runtime.run import first_line, say
from windlass.runtime.state import (
    Parts,
    compare,
    load_tensors,
    loadable,
    rank_key,
    restore_rng,
    restore_values,
    seed_newcomer,
    tensors_of,
)
from windlass.runtime.store import INDEX, CorruptError, FileEntry, Found, Manifest
from windlass.runtime.tier import FastTier

_MAX_FOREIGN_VALUES = 4 << 30
_WRITER = re.compile(r"__(\d{1,9})_\d+\.distcp$")


class DamagedError(CorruptError):
    """A snapshot is incomplete or damaged. An older one may be intact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A snapshot that was loaded."""

    step: int
    restore_generators: Callable[[], None]


def load_newest(folder: Path, parts: Parts, peers: Peers, fast: FastTier | None) -> Loaded | None:
    """Load the newest good snapshot into `parts`. Returns None if the folder has none. All ranks call it.

    Newer damaged snapshots are set aside, but only after a good one is found. Without a good one, the folder does not
    change.
    """
    found = on_main(peers, lambda: store.list_snapshots(folder), folder, "read")
    if fast is not None:
        newest = found[0].step if found else -1
        on_nodes = fast.find_on_nodes(newest, peers)
        drained = None if on_nodes else fast.finish_drain(folder, newest, peers)
        found = (on_nodes, *found) if on_nodes else found
        if drained is not None:
            if peers.is_main:
                say(f"step {drained} was only on the nodes' local disks; windlass copied it to {folder}")
            found = on_main(peers, lambda: store.list_snapshots(folder), folder, "read")
    bad: list[tuple[Found, str]] = []
    for candidate in found:
        try:
            manifest = on_main(peers, partial(_read_manifest, candidate.path), candidate.path, "read")
            loaded = _load(candidate, manifest, parts, peers, fast)
        except DamagedError as error:
            bad.append((candidate, error.message))
            if peers.is_main:
                say(f"{candidate.path} is damaged and is not used: {error.message}")
            continue
        if peers.is_main:
            for damaged, _ in bad:
                aside = store.set_aside(damaged)
                if aside is not None:
                    say(f"{damaged.path.name} was set aside as {aside.name}")
            ranks = "" if manifest.world_size == peers.world_size else f", saved by {manifest.world_size} rank(s)"
            say(f"resuming after step {manifest.step} from {candidate.path}{ranks}")
        return loaded
    if bad:
        raise MachineError(
            f"none of the {len(bad)} snapshots in {folder} is complete; the newest: {bad[0][1]}",
            hint="repair one from a backup, or choose another folder to start from the beginning",
        )
    return None


def _read_manifest(snapshot: Path) -> Manifest:
    """Return the manifest after a check of torch's index. All other files are found through these two."""
    try:
        manifest = store.read_manifest(snapshot)
    except CorruptError as error:
        raise DamagedError(error.message) from None
    for entry in manifest.files:
        problem = store.check_file(snapshot / entry.name, entry) if entry.name == INDEX else None
        if problem is not None:
            raise DamagedError(problem)
    return manifest


def _agree(peers: Peers, problems: list[str], fault: WindlassError | None) -> None:
    """Raise an error on every rank if any rank failed or found a damaged file."""
    reports = peers.gather((problems, fault))
    faults = [failed for _, failed in reports if failed is not None]
    everything = [problem for found, _ in reports for problem in found]
    for failed in faults:
        # A damaged file can be the reason why another rank could not parse its data.
        if not (everything and isinstance(failed, CorruptError)):
            raise failed
    if everything:
        raise DamagedError("; ".join(everything[:3]))


def files_to_check(files: Sequence[FileEntry], rank: int, world_size: int) -> list[FileEntry]:
    """Return the files that a rank checks: those that the rank of the same number wrote, because it reads most of them.

    The index is not included, because it was checked before it was read.
    """
    rest = [entry for entry in files if entry.name != INDEX]
    writers = [_WRITER.match(entry.name) for entry in rest]
    owners = [int(writer[1]) if writer else number for number, writer in enumerate(writers)]
    return [entry for entry, owner in zip(rest, owners, strict=True) if owner % world_size == rank]


def _load(candidate: Found, manifest: Manifest, parts: Parts, peers: Peers, fast: FastTier | None) -> Loaded:
    """Check and load a snapshot.

    A different shape or name on any rank raises on all ranks before any byte is loaded.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    if peers.world_size == 1:
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    mine = files_to_check(manifest.files, peers.rank, peers.world_size)

    def fetch(names: set[str]) -> None:
        if fast is not None:
            fast.fetch(candidate.path, [entry for entry in manifest.files if entry.name in names])

    reader = make_reader(candidate.path, mine, partial(_agree, peers), fetch)
    problem: WindlassError | None = None
    target: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    try:
        stored = _metadata(reader, candidate.path)
        with_optimizer = manifest.notes.get("optimizer") == "tensors"
        target = tensors_of(parts, with_optimizer=with_optimizer)
        compare(target, {n: v for n, v in stored.items() if not n.startswith("rank/")}, candidate.path)
    except WindlassError as error:
        problem = error
    for failed in peers.gather(problem):
        if failed is not None:
            raise failed
    wanted = loadable(target, stored)
    own = rank_key(peers.rank) if rank_key(peers.rank) in stored else rank_key(0)
    wanted[own] = _empty_bytes(stored[own], candidate.path, own=reader.files.all_own)
    try:
        dcp.load(
            wanted,
            storage_reader=reader,
            planner=make_load_planner(reader),
            process_group=peers.group,
            no_dist=peers.world_size == 1,
        )
    except CheckpointException as error:  # an error of one rank, which torch sends to all
        ours = [failed for failed, _ in error.failures.values() if isinstance(failed, WindlassError)]
        if ours:
            raise ours[0] from None
        raise
    blob = wanted.pop(own)
    load_tensors(parts, {**target, **wanted}, stored)
    if not with_optimizer:
        for optimizer in parts.optimizers:
            optimizer.state.clear()
    values = reader.unpickle(blob.numpy().tobytes())
    return _restore(values, manifest, parts, peers)


def _restore(values: dict[str, Any], manifest: Manifest, parts: Parts, peers: Peers) -> Loaded:
    """Restore the per-rank values. If the number of ranks differs, all ranks continue from rank 0's data position."""
    newcomer = peers.rank >= manifest.world_size
    if manifest.world_size != peers.world_size:
        main = peers.tell_all({k: values[k] for k in ("loader", "also", "param_groups")})
        values = {**values, **main}
    restore_values(parts, values)
    state = values["rng"]
    again = partial(seed_newcomer, state, peers.rank) if newcomer else partial(restore_rng, state)
    return Loaded(step=manifest.step, restore_generators=again)


def _metadata(reader: Any, where: Path) -> dict[str, Any]:
    """Return the names and shapes in the snapshot, as torch wrote them."""
    try:
        stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    except WindlassError:
        raise
    except Exception as error:  # any exception from unpickling another torch's classes
        raise VersionError(
            f"{where}: this torch cannot read the snapshot: {type(error).__name__}: {first_line(error)}",
            hint="use the torch that wrote it (see MANIFEST.json) or a newer one",
        ) from error
    if rank_key(0) not in stored:
        raise UsageError(f"{where} was not written by windlass", hint="choose another folder")
    return stored


def _empty_bytes(meta: Any, where: Path, *, own: bool) -> Any:
    import torch

    size = math.prod(meta.size)
    if size < 0 or (size > _MAX_FOREIGN_VALUES and not own):
        raise CorruptError(f"{where} could have been written by another user: one rank's values take {size} bytes")
    return torch.empty(tuple(meta.size), dtype=torch.uint8)
