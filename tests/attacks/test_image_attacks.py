"""Images that cost far more than their size: bytes written, members, names and lookups have bounds."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from attacks.record import record
from windlass.build.images import oci, unpack
from windlass.build.images.facts import image_root, read_image
from windlass.build.images.oci import sif_partition
from windlass.build.images.unpack import inspect_image, open_image
from windlass.errors import UsageError
from windlass.node.libs import closure
from windlass.node.libs.closure import CostlyRootError, SystemRoot


def archive(path: Path, layers: Iterable[bytes]) -> Path:
    """A Docker archive of these layers."""
    files = {f"{number}.tar": gzip.compress(layer) for number, layer in enumerate(layers)}
    manifest = json.dumps([{"Config": "config.json", "Layers": list(files)}]).encode()
    with tarfile.open(path, "w") as out:
        for name, data in {**files, "config.json": b"{}", "manifest.json": manifest}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def layer(members: Iterable[tarfile.TarInfo], content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as out:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            out.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def links(count: int) -> Iterable[tarfile.TarInfo]:
    yield tarfile.TarInfo("usr/lib64/libfabric.so.1")
    for number in range(count):
        link = tarfile.TarInfo(f"usr/lib64/libfabric{number}.so.1")
        link.type, link.linkname = tarfile.LNKTYPE, "usr/lib64/libfabric.so.1"
        yield link


def test_hard_links_take_no_bytes(tmp_path: Path) -> None:
    size = 4 << 20
    path = archive(tmp_path / "image.tar", [layer(links(50), bytes(size))])
    with open_image(str(path), {}) as opened:
        files = list(Path(opened.folder, "usr/lib64").iterdir())
        used = sum({about.st_ino: about.st_blocks * 512 for about in map(os.stat, files)}.values())
    assert len(files) == 51 and used <= 2 * size
    record("an image of hard links", expected="no copies", seen="no copies", links=50)


def test_members_bytes_layers_and_parts_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 100)
    many = (tarfile.TarInfo(f"usr/share/{number}") for number in range(101))
    with (
        pytest.raises(UsageError, match="more than 100 files"),
        open_image(str(archive(tmp_path / "a", [layer(many)])), {}),
    ):
        pass
    monkeypatch.setattr(unpack, "MAX_READ", 1 << 20)
    large = layer([tarfile.TarInfo("usr/share/large")], bytes(2 << 20))
    with pytest.raises(UsageError, match="bytes in its layers"), open_image(str(archive(tmp_path / "b", [large])), {}):
        pass
    monkeypatch.setattr(oci, "_MAX_LAYERS", 3)
    with pytest.raises(UsageError, match="4 layers"), open_image(str(archive(tmp_path / "c", [layer(())] * 4)), {}):
        pass
    monkeypatch.setattr(oci, "_MAX_BLOBS", 3)
    with (
        pytest.raises(UsageError, match="more than 3 parts"),
        open_image(str(archive(tmp_path / "d", [layer(())] * 2)), {}),
    ):
        pass
    record("images with too many members, bytes, layers or parts", expected="refused", seen="refused", images=4)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_member_name_of_gigabytes_is_refused_before_it_is_read(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = kind, 4 << 30
    header = member.tobuf(tarfile.GNU_FORMAT)
    plain = tmp_path / "plain.tar"
    with plain.open("wb") as file:
        file.write(header)
        file.truncate((4 << 30) + 10240)
    for path in (archive(tmp_path / "image.tar", [header + bytes(1 << 16)]), plain):
        with pytest.raises(UsageError, match="an attribute of 4294967296 bytes"), open_image(str(path), {}):
            pass
    record("a member name of 4 GiB", expected="refused", seen="refused")


def test_network_libraries_of_a_squashfs_count_as_all_others() -> None:
    size = unpack.MAX_NETWORK_LIBRARY
    entries = [("-", size, f"usr/lib64/{number}/libfabric.so.1") for number in range(100)]
    chosen, left_out = unpack._chosen([*entries, ("-", 10, "usr/lib64/liba.so")])
    assert 0 < len(chosen) * size <= unpack.MAX_TOTAL and len(left_out) == 101 - len(chosen)
    record("a squashfs full of network libraries", expected="at most 1 GiB", seen="at most 1 GiB", libraries=100)


def test_a_sparse_library_of_terabytes_is_read_in_part(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libfabric.so.1").write_bytes(b"\x7fELF" + b"\0cxi\0")
    os.truncate(folder / "libfabric.so.1", 4 << 40)
    report, _ = read_image(image_root(str(tmp_path)), str(tmp_path), "directory", {})
    assert report.providers == ("cxi",)
    record("a sparse library of 4 TiB", expected="read in part", seen="read in part")


def test_many_needed_names_and_folders_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8,000 names times 850 folders took a minute. The bound is on the lookups, for all names together."""
    monkeypatch.setattr(closure, "_MAX_LOOKUPS", 2000)
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("".join(f"/folder{number}\n" for number in range(850)))
    with pytest.raises(UsageError, match="more than 2000 lookups"):
        inspect_image(str(tmp_path), {})
    with pytest.raises(CostlyRootError):
        closure.closure(SystemRoot(str(tmp_path)), [f"lib{number}.so" for number in range(8000)])
    record("8,000 needed names in 850 folders", expected="refused", seen="refused")


@pytest.mark.parametrize("start", [2**63 - 1, -(2**63), 2**40])
@pytest.mark.parametrize("total", [1, 2**62])
def test_a_sif_with_absurd_numbers_ends_in_a_sentence(start: int, total: int, tmp_path: Path) -> None:
    names = (b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"")
    (tmp_path / "a.sif").write_bytes(
        struct.pack("<32s10s3s3s16s8q", *names, 0, 0, 0, total, start, 585, 1, 1) + bytes(99)
    )
    with pytest.raises(UsageError, match="without a root file system"):
        sif_partition(str(tmp_path / "a.sif"))


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a plain file"):
        inspect_image(str(tmp_path / "pipe"), {})
    name = hashlib.sha256(b"").hexdigest()
    (tmp_path / "layout/blobs/sha256").mkdir(parents=True)
    (tmp_path / "layout/oci-layout").write_text("{}")
    (tmp_path / "layout/index.json").write_text(json.dumps({"layers": [], "config": {"digest": f"sha256:{name}"}}))
    os.mkfifo(tmp_path / "layout/blobs/sha256" / name)
    with pytest.raises(UsageError):
        inspect_image(str(tmp_path / "layout"), {})
