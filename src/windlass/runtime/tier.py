"""The fast tier: each node first writes its shards to a local disk, then copies (drains) them to the shared folder.

If a process dies between the two, no data is lost. The next start finds the local parts on the nodes, finishes the
drain, and resumes from there. If a node dies, its part is lost, and the last drained snapshot is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from pathlib import Path

from windlass.errors import MachineError, WindlassError
from windlass.node.sys.folders import UntrustedError, open_own, private_folder
from windlass.node.sys.reading import read_object
from windlass.runtime import store
from windlass.runtime.peers import Peers, on_main
from windlass.runtime.store import CorruptError, FileEntry, Manifest

_KEEP_LOCAL = 1
_CHUNK = 1 << 20
IDENTITY = "folder.json"


class FastTier:
    """This node's local part of the snapshots of one shared folder."""

    def __init__(self, root: Path, folder_id: str, peers: Peers) -> None:
        self.path = root / f"windlass-{folder_id}"
        problem: WindlassError | None = None
        try:
            private_folder(self.path)
        except UntrustedError as error:
            problem = MachineError(f"fast tier: {error}", hint="give Snapshot(fast=...) a folder that you own")
        except OSError as error:
            problem = store.disk_error(error, root, "write the fast tier in")
        places = peers.gather((socket.gethostname(), str(self.path), problem))
        for _, _, failed in places:
            if failed is not None:
                raise failed
        mine = places[peers.rank]
        self.leads = next(rank for rank, place in enumerate(places) if place[:2] == mine[:2]) == peers.rank
        """True on the one rank of this node that renames and removes for the others."""

    def snapshot_path(self, step: int) -> Path:
        """Return the path of this node's part of a snapshot."""
        return self.path / f"step-{step:09d}"

    def keep_local(self, saving: Path, manifest: Manifest, peers: Peers) -> None:
        """Commit this node's part after all ranks have written theirs. It then survives the death of the processes."""
        problem: WindlassError | None = None
        if self.leads:
            try:
                store.commit(self.path, saving, manifest)
                store.prune(self.path, _KEEP_LOCAL)
            except OSError as error:
                problem = store.disk_error(error, self.path, "write")
        for failed in peers.gather(problem):
            if failed is not None:
                raise failed

    def finish_drain(self, folder: Path, newest_shared: int, peers: Peers) -> int | None:
        """Copy the newest complete local snapshot to the shared folder if it is newer. Returns its step, or None.

        All ranks call it. Damaged parts, and snapshots of which a node is missing, are left out.
        """
        mine = self._local_parts(newest_shared) if self.leads else {}
        reports = peers.gather({step: (digest, names) for step, (digest, names, _) in mine.items()})
        step = _complete_step(reports, mine, peers)
        if step is None:
            return None
        token = peers.tell_all(store.new_token())
        saving = store.saving_path(folder, step, token)
        problem: str | None = None
        manifest = mine[step][2] if step in mine else None
        if manifest is not None:
            try:
                saving.mkdir(parents=True, exist_ok=True)
                for entry in manifest.files:
                    if entry.name in mine[step][1]:
                        copy_checked(self.snapshot_path(step) / entry.name, saving / entry.name, entry)
            except (OSError, WindlassError) as error:
                problem = str(error)
        done = not any(peers.gather(problem))

        def commit() -> None:
            if done and manifest is not None:
                store.commit(folder, saving, manifest)
            else:
                shutil.rmtree(saving, ignore_errors=True)

        on_main(peers, commit, saving, "commit")
        return step if done else None

    def _local_parts(self, newer_than: int) -> dict[int, tuple[str, frozenset[str], Manifest]]:
        """Return the local snapshots by step: digest of the manifest, the intact files on this node, the manifest."""
        try:
            store.sweep(self.path)
        except OSError:
            return {}  # an unreadable local disk has no snapshots
        parts: dict[int, tuple[str, frozenset[str], Manifest]] = {}
        for found in store.list_snapshots(self.path):
            if found.step <= newer_than:
                continue
            try:
                with os.fdopen(open_own(found.path / store.MANIFEST), encoding="utf-8") as file:
                    manifest = store.parse_manifest(file.read(), str(found.path))
            except (OSError, UnicodeDecodeError, WindlassError):
                continue
            if manifest.step != found.step:
                continue
            here = frozenset(e.name for e in manifest.files if store.check_file(found.path / e.name, e) is None)
            digest = hashlib.sha256(store.manifest_text(manifest).encode()).hexdigest()
            parts[found.step] = (digest, here, manifest)
        return parts


def _complete_step(
    reports: list[dict[int, tuple[str, frozenset[str]]]],
    mine: dict[int, tuple[str, frozenset[str], Manifest]],
    peers: Peers,
) -> int | None:
    """Return the newest step whose files all exist on some node. The main rank decides, which leads its own node."""
    chosen: int | None = None
    if peers.is_main:
        for step in sorted(mine, reverse=True):
            digest, _, manifest = mine[step]
            parts = [report[step] for report in reports if step in report]
            have = {name for seen, names in parts if seen == digest for name in names}
            if all(entry.name in have for entry in manifest.files):
                chosen = step
                break
    answer: int | None = peers.tell_all(chosen)
    return answer


def folder_identity(folder: Path) -> str:
    """Return a unique name of this folder. A folder that was removed and created again gets a new one.

    Old local parts are then ignored.
    """
    path = folder / IDENTITY
    try:
        found = read_object(path)["id"]
        if not re.fullmatch("[0-9a-f]{8,64}", found):  # it becomes part of a path
            raise ValueError(found)
        return str(found)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        identity = store.new_token() + store.new_token()
        store.write_durably(path, json.dumps({"id": identity}))
        return identity


def copy_checked(source: Path, target: Path, entry: FileEntry) -> None:
    """Copy a file and sync it to the disk. Raises `CorruptError` if the data read differs from the data saved.

    The copy belongs to this user, so only this user's files are copied. Raises `UntrustedError` for other files.
    """
    digest = hashlib.sha256()
    with os.fdopen(open_own(source), "rb") as src, open(target, "xb", opener=store.open_closed) as dst:
        while block := src.read(_CHUNK):
            digest.update(block)
            dst.write(block)
        dst.flush()
        os.fsync(dst.fileno())
    if digest.hexdigest() != entry.sha256:
        raise CorruptError(f"{source} changed on the local disk before it was copied")
