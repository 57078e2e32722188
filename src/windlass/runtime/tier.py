"""The fast tier: each node first writes its shards to a local disk, then copies (drains) them to the shared folder.

If a process dies between the two, no data is lost. The next start finds the local parts on the nodes, finishes the
drain, and resumes from there. If a node dies, its part is lost, and the last drained snapshot is used.

With partners (see `partner`), each node also keeps the part of another node. The next start then loads from the nodes,
also after the loss of one node of each pair, and the node without a part fetches what its ranks read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

from windlass.errors import MachineError, WindlassError
from windlass.node.sys.folders import UntrustedError, open_own, private_folder
from windlass.node.sys.reading import read_object
from windlass.runtime import store
from windlass.runtime.partner import Partners
from windlass.runtime.peers import Peers, on_main
from windlass.runtime.run import say
from windlass.runtime.store import INDEX, CorruptError, FileEntry, Found, Manifest

_KEEP_LOCAL = 1
_CHUNK = 1 << 20
MEMORY = Path("/dev/shm")
"""Where partners keep copies if the user gave no folder."""
IDENTITY = "folder.json"


class FastTier:
    """This node's local part of the snapshots of one shared folder."""

    def __init__(self, root: Path, folder_id: str, peers: Peers, *, near: str | None = None) -> None:
        """`near`: the address of rank 0 for partners. None: without partners."""
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
        self.partners: Partners | None = None
        self._holders: dict[str, list[int]] = {}
        self._own: frozenset[str] = frozenset()
        self.ranks = sum(place[:2] == mine[:2] for place in places)
        nodes = list(dict.fromkeys(place[:2] for place in places))
        if near is not None and len(nodes) > 1:
            key = peers.tell_all(secrets.token_bytes(32))
            node = nodes.index(mine[:2])
            self.partners = Partners(self.path, folder_id, key, node, serve=self.leads, near=near)
            self.partners.meet(place for place in peers.gather(self.partners.place) if place is not None)

    def snapshot_path(self, step: int) -> Path:
        """Return the path of this node's part of a snapshot."""
        return self.path / f"step-{step:09d}"

    def keep_local(self, saving: Path, manifest: Manifest, peers: Peers) -> None:
        """Commit this node's part after all ranks have written theirs. It then survives the death of the processes."""
        problem: WindlassError | None = None
        if self.leads:
            try:
                self._own = frozenset(path.name for path in saving.iterdir())
                store.commit(self.path, saving, manifest)
                store.prune(self.path, _KEEP_LOCAL + (self.partners is not None))
            except OSError as error:
                problem = store.disk_error(error, self.path, "write")
        for failed in peers.gather(problem):
            if failed is not None:
                raise failed

    def copy_to_partner(self, manifest: Manifest, cancelled: threading.Event) -> WindlassError | None:
        """Send this node's part to its partner, on the rank that leads. Returns the reason if the partner has no copy.

        The copies of the snapshot before are then removed. They were kept until now.
        """
        if self.partners is None or not self.leads:
            return None
        entries = [entry for entry in manifest.files if entry.name in self._own]
        try:
            self.partners.send(self.snapshot_path(manifest.step), entries, cancelled)
        except MachineError as error:
            return error
        return None

    def forget_older(self) -> None:
        """Remove all local snapshots but the newest, after every partner has its copy."""
        if self.partners is not None and self.leads:
            store.prune(self.path, _KEEP_LOCAL)

    def find_on_nodes(self, newest_shared: int, peers: Peers) -> Found | None:
        """Return the newest snapshot of which some node has each file, if it is newer. All ranks call it.

        On return this node has its manifest and its index. `fetch` gets the other files. Digests are checked on arrival
        and when the files are read, because a check of all files here would take as long as the load.
        """
        if self.partners is None:
            return None
        mine = self._local_parts(newest_shared, check=False) if self.leads else {}
        known = {step: (digest, names) for step, (digest, names, _) in mine.items()}
        reports = peers.gather(known if self.leads else None)
        parts = [report for report in reports if report is not None]
        for step in sorted({step for report in parts for step in report}, reverse=True):
            first = next(rank for rank, report in enumerate(reports) if report and step in report)
            digest = (reports[first] or {})[step][0]
            manifest = next(one for one in peers.gather(mine[step][2] if peers.rank == first else None) if one)
            self._holders = {}
            for node, report in enumerate(parts):
                if step in report and report[step][0] == digest:
                    for name in report[step][1]:
                        self._holders.setdefault(name, []).append(node)
            missing = [entry.name for entry in manifest.files if entry.name not in self._holders]
            if missing and peers.is_main:
                say(
                    f"step {step} is not complete on the nodes: {len(missing)} of {len(manifest.files)} files are gone "
                    "(both nodes of a pair were lost, or their memory): an older snapshot is used"
                )
            if not missing and not any(peers.gather(self._adopt(step, manifest) if self.leads else None)):
                return Found(step=step, path=self.snapshot_path(step))
        return None

    def _adopt(self, step: int, manifest: Manifest) -> str | None:
        """Create this node's part of a snapshot if it has none, and fetch the index. Returns the problem, if any."""
        path = self.snapshot_path(step)
        try:
            if not (path / store.MANIFEST).exists():
                saving = store.saving_path(self.path, step, store.new_token())
                saving.mkdir()
                store.commit(self.path, saving, manifest)
            self.fetch(path, [entry for entry in manifest.files if entry.name == INDEX])
        except (OSError, WindlassError) as error:
            return str(error)
        return None

    def fetch(self, snapshot: Path, entries: Iterable[FileEntry]) -> None:
        """Get the files that this node does not have intact from nodes that have them."""
        if self.partners is None or snapshot.parent != self.path:
            return
        for entry in entries:
            holders = self._holders.get(entry.name, [])
            if self.partners.node not in holders:
                self.partners.fetch(snapshot, entry, holders)

    def without_partners(self) -> FastTier | None:
        """Turn partners off. Returns this tier, or None if it was only there for them."""
        self.close()
        self.partners = None
        return None if self.path.parent == MEMORY else self

    def close(self, *, finished: bool = False) -> None:
        """Stop serving other nodes. After the end of the work, remove this node's part from its memory."""
        if self.partners is not None:
            self.partners.close()
        if finished and self.leads and self.path.parent == MEMORY:
            shutil.rmtree(self.path, ignore_errors=True)

    def finish_drain(self, folder: Path, newest_shared: int, peers: Peers) -> int | None:
        """Copy the newest complete local snapshot to the shared folder if it is newer. Returns its step, or None.

        All ranks call it. Damaged parts, and snapshots of which a node is missing, are left out.
        """
        mine = self._local_parts(newest_shared, check=True) if self.leads else {}
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

    def _local_parts(self, newer_than: int, *, check: bool) -> dict[int, tuple[str, frozenset[str], Manifest]]:
        """Return the local snapshots by step: digest of the manifest, the files on this node, the manifest.

        Without `check`, only the sizes of the files are compared.
        """
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
            here = frozenset(e.name for e in manifest.files if _is_here(found.path / e.name, e, check=check))
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


def _is_here(path: Path, entry: FileEntry, *, check: bool) -> bool:
    if check:
        return store.check_file(path, entry) is None
    try:
        return path.lstat().st_size == entry.size_bytes
    except OSError:
        return False


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
