"""Loading the newest snapshot that is whole: check on all ranks, fall back, compare with the model, then load."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from windlass.runtime.store import CorruptError, Found, Manifest
from windlass.runtime.tier import FastTier

_MAX_FOREIGN_VALUES = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A snapshot that was loaded."""

    step: int
    restore_generators: Callable[[], None]


def load_newest(folder: Path, parts: Parts, peers: Peers, fast: FastTier | None) -> Loaded | None:
    """Load the newest good snapshot into `parts`; None where the folder has none. All ranks call it.

    Damaged ones that are newer are set aside, but only once a good one is found: with none, nothing is touched.
    """
    found = on_main(peers, lambda: store.list_snapshots(folder), folder, "read")
    if fast is not None:
        newest = found[0].step if found else -1
        drained = fast.finish_drain(folder, newest, peers)
        if drained is not None:
            if peers.is_main:
                say(f"step {drained} was only on the nodes' local disks; it is in {folder} now")
            found = on_main(peers, lambda: store.list_snapshots(folder), folder, "read")
    bad: list[tuple[Found, str]] = []
    for candidate in found:
        manifest, problem = _check(candidate, peers)
        if manifest is None:
            bad.append((candidate, problem))
            if peers.is_main:
                say(f"{candidate.path} is damaged and not used: {problem}")
            continue
        loaded = _load(candidate, manifest, parts, peers)
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
            f"none of the {len(bad)} snapshots in {folder} is whole; the newest: {bad[0][1]}",
            hint="repair one from a backup, or choose another folder to start from the beginning",
        )
    return None


def _check(candidate: Found, peers: Peers) -> tuple[Manifest | None, str]:
    """The manifest where every file is right, else None and what is wrong. Each rank reads its share of the files."""
    try:
        manifest = on_main(peers, lambda: store.read_manifest(candidate.path), candidate.path, "read")
    except CorruptError as error:
        return None, error.message
    problems: list[str] = []
    fault: WindlassError | None = None
    try:
        mine = manifest.files[peers.rank :: peers.world_size]
        with ThreadPoolExecutor(store.io_threads(), thread_name_prefix="windlass-check") as pool:
            found = pool.map(lambda entry: store.check_file(candidate.path / entry.name, entry), mine)
            problems = [problem for problem in found if problem is not None]
    except WindlassError as error:
        fault = error
    reports = peers.gather((problems, fault))
    for _, failed in reports:
        if failed is not None:
            raise failed
    everything = [problem for found, _ in reports for problem in found]
    return (None, "; ".join(everything[:3])) if everything else (manifest, "")


def _load(candidate: Found, manifest: Manifest, parts: Parts, peers: Peers) -> Loaded:
    """Load a checked snapshot. A difference in shape or name on any rank is raised on all, before a byte is loaded."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    if peers.world_size == 1:
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    reader = make_reader(candidate.path)
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
    wanted[own] = _empty_bytes(stored[own], candidate.path, own=reader.fs.all_own)
    try:
        dcp.load(
            wanted,
            storage_reader=reader,
            planner=make_load_planner(reader),
            process_group=peers.group,
            no_dist=peers.world_size == 1,
        )
    except CheckpointException as error:  # what one rank met, told to all by torch
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
    """Per-rank values. With another number of ranks all continue from rank 0's data position."""
    newcomer = peers.rank >= manifest.world_size
    if manifest.world_size != peers.world_size:
        main = peers.tell_all({k: values[k] for k in ("loader", "also", "param_groups")})
        values = {**values, **main}
    restore_values(parts, values)
    state = values["rng"]
    again = partial(seed_newcomer, state, peers.rank) if newcomer else partial(restore_rng, state)
    return Loaded(step=manifest.step, restore_generators=again)


def _metadata(reader: Any, where: Path) -> dict[str, Any]:
    """Names and shapes in the snapshot, as torch wrote them."""
    try:
        stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    except WindlassError:
        raise
    except Exception as error:  # whatever unpickling another torch's classes raises
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
