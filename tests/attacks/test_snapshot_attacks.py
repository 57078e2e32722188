"""Attacks on snapshots: what strangers plant on a node's disk or in a project's folder is refused, and never run."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attacks.record import record
from attacks.stranger import UID, as_stranger, common_place, require_stranger
from requirements import require_torch
from windlass.errors import WindlassError
from windlass.node.sys.folders import UntrustedError, open_own, private_folder
from windlass.runtime import store
from windlass.runtime.loader import _empty_bytes
from windlass.runtime.peers import Peers
from windlass.runtime.reader import make_reader
from windlass.runtime.store import CorruptError, FileEntry, Manifest
from windlass.runtime.tier import FastTier, folder_identity
from windlass.runtime.unpickle import ForeignCodeError, load_plain

pytestmark = pytest.mark.torch
ALONE = Peers(rank=0, world_size=1)


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch '{self.mark}'",))


def plant(folder: Path, step: int, content: dict[str, bytes], **changes: Any) -> Path:
    """A snapshot as an attacker writes it: its digests are right, the rest is his."""
    path = folder / f"step-{step:09d}"
    path.mkdir(parents=True)
    entries = []
    for name, data in content.items():
        if "/" not in name:
            (path / name).write_bytes(data)
        entries.append(FileEntry(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    manifest = Manifest(step=step, world_size=1, saved_at=0.0, files=tuple(entries), notes={"optimizer": "none"})
    (path / store.MANIFEST).write_text(store.manifest_text(dataclasses.replace(manifest, **changes)))
    return path


def train(folder: Path, **options: Any) -> Any:
    """Three steps of a tiny model; its weight at the end."""
    require_torch()
    import torch

    import windlass

    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    snapshot = windlass.Snapshot(folder, model=model, optimizer=optimizer, every_steps=1, background=False, **options)
    for step in snapshot.resume(range(3)):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        snapshot.step(step)
    return model.weight.detach().clone()


def test_a_fast_tier_that_a_stranger_made_before_us_is_refused_with_its_uid(tmp_path: Path) -> None:
    require_stranger()
    with common_place() as local:
        tier = local / f"windlass-{folder_identity(tmp_path)}"
        as_stranger(lambda: plant(tier, 9, {"x": b"y"}))
        with pytest.raises(WindlassError, match=f"uid {UID}"):
            train(tmp_path, fast=local)
        assert not (tmp_path / "step-000000009").exists()
    record("a fast tier planted by a stranger", expected="refused with its uid", seen="refused with its uid")


def test_a_fast_tier_that_is_a_link_is_refused(tmp_path: Path) -> None:
    require_stranger()
    with common_place() as local:
        victim = tmp_path / "home"
        victim.mkdir(mode=0o755)
        tier = local / f"windlass-{folder_identity(tmp_path)}"
        as_stranger(lambda: tier.symlink_to(victim))
        with pytest.raises(WindlassError, match="is a link"):
            FastTier(local, folder_identity(tmp_path), ALONE)
        assert not any(victim.iterdir())


@pytest.mark.parametrize("part", ["manifest", "file", "link"])
def test_a_part_that_a_stranger_put_into_the_fast_tier_is_not_drained(tmp_path: Path, part: str) -> None:
    """Into a folder of ours that was open to all for a moment."""
    require_stranger()
    with common_place() as local:
        tier = FastTier(local, folder_identity(tmp_path), ALONE)
        path = plant(tier.path, 9, {"x": b"y"})
        if part == "link":
            (path / "x").rename(tmp_path / "elsewhere")
            (path / "x").symlink_to(tmp_path / "elsewhere")
            with pytest.raises(UntrustedError, match="is a link"):
                open_own(path / "x")
        else:
            os.chown(path / (store.MANIFEST if part == "manifest" else "x"), UID, UID)
        assert tier.finish_drain(tmp_path, -1, ALONE) is None
        assert store.list_snapshots(tmp_path) == ()


@pytest.mark.parametrize("name", ["../../train.py", "/etc/passwd", "a/b", "..", ".", "", "a\0b", store.MANIFEST, "x\n"])
def test_a_manifest_with_a_path_in_it_is_damaged(tmp_path: Path, name: str) -> None:
    shared, local = tmp_path / "project" / "ckpt", tmp_path / "local"
    shared.mkdir(parents=True)
    script = tmp_path / "train.py"
    script.write_text("mine")
    tier = FastTier(local, folder_identity(shared), ALONE)
    plant(
        tier.path, 9, {"x": b"y"}, files=(FileEntry(name=name, size_bytes=1, sha256=hashlib.sha256(b"y").hexdigest()),)
    )
    with pytest.raises(CorruptError, match="plain file name"):
        store.read_manifest(tier.snapshot_path(9))
    assert tier.finish_drain(shared, -1, ALONE) is None
    assert script.read_text() == "mine"
    record("a manifest that names " + ascii(name), expected="not drained", seen="not drained")


@pytest.mark.parametrize("identity", ["../../home", "x/y", "", "$(id)", 7, None, ["a"]])
def test_the_name_of_the_fast_tier_is_no_path(tmp_path: Path, identity: object) -> None:
    (tmp_path / "folder.json").write_text(json.dumps({"id": identity}))
    assert folder_identity(tmp_path).isalnum()


@pytest.mark.parametrize("where", ["index", "values", "rank"])
def test_a_snapshot_of_a_stranger_in_a_shared_folder_runs_nothing(tmp_path: Path, where: str) -> None:
    """In a project's folder any member can put a newer step. Its digests are right; its pickles are bombs."""
    require_stranger()
    import torch
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    mark = tmp_path / "ran"
    train(tmp_path)
    newest = store.list_snapshots(tmp_path)[0].path
    files = {p.name: p.read_bytes() for p in newest.iterdir() if p.name != store.MANIFEST}
    metadata = pickle.loads(files[".metadata"])
    if where == "index":
        files[".metadata"] = pickle.dumps(Bomb(mark))
    else:
        whole = io.BytesIO()
        if where == "values":
            torch.save(Bomb(mark), whole)
            key = next(k for k, v in metadata.state_dict_metadata.items() if isinstance(v, BytesStorageMetadata))
        else:
            size = metadata.state_dict_metadata["rank/000000"].size[0]
            torch.save(
                torch.frombuffer(bytearray(pickle.dumps(Bomb(mark)).ljust(size, b"\0")), dtype=torch.uint8), whole
            )
            key = "rank/000000"
        files["bomb"] = whole.getvalue()
        place = next(v for k, v in metadata.storage_data.items() if k.fqn == key)
        place.relative_path, place.offset, place.length = "bomb", 0, len(files["bomb"])
        files[".metadata"] = pickle.dumps(metadata)
    planted = plant(tmp_path, 99, files, notes={"optimizer": "tensors"})
    for path in (planted, *planted.iterdir()):
        os.chown(path, UID, UID)
    with pytest.raises(ForeignCodeError, match="another user") as caught:
        train(tmp_path)
    assert not mark.exists()
    record(f"a stranger's snapshot with code in its {where}", expected="refused, not run", seen="refused, not run")
    assert "chmod" in str(caught.value.hint)


def test_a_colleagues_snapshot_without_code_is_loaded(tmp_path: Path) -> None:
    require_stranger()
    import torch

    weights = train(tmp_path)
    for found in store.list_snapshots(tmp_path):
        for path in (found.path, *found.path.iterdir()):
            os.chown(path, UID, UID)
    assert torch.equal(train(tmp_path), weights)


def test_what_we_save_is_trusted_again_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        train(tmp_path / "ckpt", fast=tmp_path / "local")
    finally:
        os.umask(before)
    for path in (tmp_path / "ckpt").rglob("step-*/*"):
        os.close(open_own(path))


def test_an_index_that_leads_out_of_the_snapshot_is_not_followed(tmp_path: Path) -> None:
    train(tmp_path)
    found = store.list_snapshots(tmp_path)[0]
    files = {p.name: p.read_bytes() for p in found.path.iterdir() if p.name != store.MANIFEST}
    metadata = pickle.loads(files[".metadata"])
    for place in metadata.storage_data.values():
        place.relative_path = f"../{found.path.name}/{place.relative_path}"
    files[".metadata"] = pickle.dumps(metadata)
    plant(tmp_path, 99, files, notes={"optimizer": "tensors"})
    with pytest.raises(CorruptError, match="outside the snapshot"):
        train(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"cos\nsystem\n(S'true'\ntR.", id="system"),
        pytest.param(b"cbuiltins\neval\n(S'1'\ntR.", id="eval"),
        pytest.param(b"\x80\x04\x8c\x05torch\x8c\x0bhub.sys.pathq\x00\x93.", id="dotted name"),
        pytest.param(b"ctorch\nload\n(S'/x'\ntR.", id="torch.load"),
        pytest.param(b"cnumpy\nload\n(S'/x'\ntR.", id="numpy.load"),
    ],
)
def test_only_plain_values_come_out_of_a_foreign_pickle(value: bytes) -> None:
    require_torch()
    with pytest.raises((ForeignCodeError, pickle.UnpicklingError)):
        load_plain(value)


def test_a_folder_of_ours_is_closed_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    for bad in (tmp_path / "link", tmp_path / "file"):
        if not bad.is_symlink():
            bad.write_text("")
        with pytest.raises(UntrustedError, match="is a link or a file"):
            private_folder(bad)


def test_changed_manifests_end_in_a_sentence(tmp_path: Path) -> None:
    """A fuzzer with a seed: values of any type in any place, with a digest that is right."""
    path = plant(tmp_path, 7, {"part": b"weights"})
    body = json.loads((path / store.MANIFEST).read_text())
    body.pop("sha256")
    rng = random.Random(10)
    junk: list[Any] = [
        None,
        -1,
        1e400,
        10**400,
        "",
        "../x",
        [],
        {},
        [[]],
        True,
        "\0",
        "x" * 10_000,
        [1, 2, 3],
        {"a": 1},
    ]
    for _ in range(1000):
        changed = json.loads(json.dumps(body))
        for _ in range(rng.randint(1, 3)):
            key = rng.choice(sorted(changed))
            if key == "files" and rng.random() < 0.7 and isinstance(changed[key], list):
                changed[key] = [[rng.choice([*junk, "part"]) for _ in range(rng.randint(0, 5))]]
            else:
                changed[key] = rng.choice(junk)
        text = json.dumps(changed)
        digest = hashlib.sha256(
            json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
        (path / store.MANIFEST).write_text(json.dumps({**json.loads(text), "sha256": digest}))
        try:
            assert store.check_snapshot(path).files in ((), *[store.read_manifest(path).files])
        except WindlassError:
            continue


def forged(shape: Any, kind: Any, raw: Any, code: str = "f8") -> bytes:
    """A pickle of an array with a description of the attacker's choice."""

    class Array:
        def __reduce__(self) -> tuple[Any, ...]:
            import numpy

            return numpy.array(0).__reduce__()[0], (numpy.ndarray, (0,), b"b"), (1, shape, kind, False, raw)

    class Kind:
        def __reduce__(self) -> tuple[Any, ...]:
            import numpy

            return numpy.dtype, (code, False, True), (3, "<", None, None, None, -1, -1, 0)

    kind = Kind() if kind is None else kind
    return pickle.dumps(Array())


def test_forged_arrays_are_refused_before_numpy_sees_them() -> None:
    """numpy trusts the description of an array in a pickle: forged ones read and write memory at will."""
    require_torch()
    import numpy

    hostile = [
        forged((1 << 40,), None, b"\0" * 8),
        forged((-1,), None, b"\0" * 8),
        forged((1,), None, b"\0" * 8, code="O"),
        forged((1,), None, [1, 2, 3]),
        forged((1,), None, b"\0" * 8, code="V8"),
        forged((1,), None, b"\0" * 8, code="(2,)O"),
        forged([1], None, b"\0" * 8),
        forged((1,), numpy.dtype([("a", "O")]), b"\0" * 8),
        pickle.dumps({"x": numpy.array([object()], dtype=object)}),
        pickle.dumps(numpy.array(["2020-01-01"], dtype="M8[D]")),
        pickle.dumps(numpy.dtype("f8")),
        b"cnumpy\nndarray\n(I1000000000000\ntR.",
    ]
    for data in hostile:
        with pytest.raises((ForeignCodeError, pickle.UnpicklingError, TypeError)):
            load_plain(data)
    good = {
        "a": numpy.arange(6, dtype="f4").reshape(2, 3),
        "b": numpy.asfortranarray(numpy.ones((2, 2))),
        "c": numpy.array(["ab", "c"]),
        "d": numpy.float64(1.5),
        "e": numpy.array([1], dtype=">i4"),
        "f": numpy.random.RandomState(1).get_state(),
        "g": numpy.array([], dtype=bool),
    }
    for data in (pickle.dumps(good), pickle.dumps(load_plain(pickle.dumps(good)))):
        found = load_plain(data)
        for name, value in good.items():
            if name != "f":
                assert (
                    numpy.array_equal(found[name], value)
                    and found[name].dtype == pickle.loads(pickle.dumps(value)).dtype
                ), name
        numpy.random.RandomState(2).set_state(found["f"])
    record("forged arrays in a stranger's snapshot", expected="refused", seen="refused", arrays=len(hostile))


@pytest.mark.parametrize("name", ["set", "frozenset", "bytearray", "deque", "Counter", "Size"])
def test_a_small_pickle_cannot_ask_for_much_memory(name: str) -> None:
    require_torch()
    module = {"deque": "collections", "Counter": "collections", "Size": "torch"}.get(name, "builtins")
    head = f"c{module}\n{name}\n".encode()
    endless = head + b"(cbuiltins\nrange\n(I1000000000000\ntRtR."
    with pytest.raises(ForeignCodeError, match=r"range\(0, 1000000000000\)"):
        load_plain(endless)
    if name == "bytearray":
        with pytest.raises(ForeignCodeError, match="of 1000000000000"):
            load_plain(head + b"(I1000000000000\ntR.")
    kept = (
        b"B" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
        if name == "bytearray"
        else b"(" + b"K\x01" * (1 << 20) + b"l"
    )
    copies = (head + b"(h\x01tR") * 2000
    many = b"\x80\x02" + kept + b"q\x010(" + copies + b"t."
    with pytest.raises(ForeignCodeError, match="far more memory than the file"):
        load_plain(many)
    record(f"a pickle of many copies ({name})", expected="refused", seen="refused")


def test_plain_containers_still_come_out_of_a_foreign_pickle() -> None:
    require_torch()
    import collections

    import torch

    values = {
        "set": {1, 2},
        "frozen": frozenset({3}),
        "deque": collections.deque([1, 2], maxlen=5),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(set, {1: {2}}),
        "counter": collections.Counter("aab"),
        "bytes": bytearray(b"x"),
        "size": torch.Size((2, 3)),
        "range": range(10**15),
    }
    for protocol in (4, 5):
        found = load_plain(pickle.dumps(values, protocol))
        assert found == values and found["default"].default_factory is set


def test_files_of_terabytes_in_a_strangers_snapshot_are_refused(tmp_path: Path) -> None:
    """Sparse files cost nothing to make. Reading one as an index, a manifest or a value must not fill the memory."""
    require_stranger()
    train(tmp_path)
    newest = store.list_snapshots(tmp_path)[0].path
    files = {p.name: p.read_bytes() for p in newest.iterdir() if p.name != store.MANIFEST}
    huge = plant(tmp_path, 99, {**files, "hole": b""}, notes={"optimizer": "tensors"})
    manifest = store.read_manifest(huge)
    entry = next(entry for entry in manifest.files if entry.name == "hole")
    os.truncate(huge / "hole", 4 << 40)
    os.chown(huge / "hole", UID, UID)
    wrong = store.check_file(huge / "hole", dataclasses.replace(entry, size_bytes=4 << 40))
    assert wrong is not None and "bytes of holes" in wrong
    os.truncate(huge / ".metadata", 4 << 40)
    reader = make_reader(huge, (), lambda problems, fault: None)
    with pytest.raises(CorruptError, match="its index has"):
        reader.read_metadata()
    os.truncate(huge / store.MANIFEST, 4 << 40)
    with pytest.raises(CorruptError, match="larger than"):
        store.read_manifest(huge)
    with pytest.raises(CorruptError, match="one rank's values take"):
        _empty_bytes(SimpleNamespace(size=(4 << 40,)), huge, own=False)
    record("files of 4 TiB in a snapshot", expected="refused", seen="refused", files=4)
