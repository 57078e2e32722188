"""Images as files: squashfs, SIF, OCI and Docker archives, sound and damaged, and what is no image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from random import Random

import pytest

from containers.toys import libfabric, library, require_compiler
from looping import each
from requirements import missing_programs, require
from windlass.build.images.facts import directory_environment
from windlass.build.images.unpack import inspect_image, open_image
from windlass.errors import UsageError
from windlass.node.libs.closure import SystemRoot


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    folder = tmp_path_factory.mktemp("image") / "root"
    libfabric(folder / "usr/lib64", 1, ("tcp", "cxi"))
    library(folder / "usr/lib64/libnccl-net-ofi.so")
    (folder / "usr/lib64/libnccl-net.so").symlink_to("libnccl-net-ofi.so")
    (folder / "lib64").symlink_to("usr/lib64")
    debian = folder / "usr/lib/x86_64-linux-gnu"
    library(debian / "openmpi/lib/libmpi.so.40.30.4")
    (debian / "libmpi.so.40").symlink_to("/etc/alternatives/libmpi.so.40-x86_64-linux-gnu")
    (folder / "etc/alternatives").mkdir(parents=True)
    target = "/usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40.30.4"
    (folder / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n")
    (folder / "etc/alternatives/libmpi.so.40-x86_64-linux-gnu").symlink_to(target)
    (folder / "etc/os-release").write_text('PRETTY_NAME="Toy 1"\n')
    (folder / "usr/share/doc").mkdir(parents=True)
    (folder / "usr/share/doc/large").write_bytes(Random(1).randbytes(300_000))
    return folder


@pytest.fixture(scope="module")
def squashfs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("squashfs", not missing_programs("mksquashfs"), missing_programs("mksquashfs"))
    path = tmp_path_factory.mktemp("squashfs") / "image.sqfs"
    argv = ["mksquashfs", str(root), str(path), "-quiet", "-noappend", "-no-progress", "-comp", "gzip"]
    subprocess.run(argv, check=True, timeout=60)
    return path


def _sif(path: Path, squashfs: Path, *, claims: int | None = None, file_system: int = 1) -> Path:
    data = squashfs.read_bytes()
    start = 128 + 585
    extra = struct.pack("<ii3s", file_system, 2, b"02\0")
    size = claims or len(data)
    numbers = (0x4004, True, 1, 1, 0, start, size, size, 0, 0, 0, 0)
    descriptor = struct.pack("<i?IIIqqqqqqq128s384s", *numbers, b"fs", extra)
    names = (b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"")
    header = struct.pack("<32s10s3s3s16s8q", *names, 0, 0, 0, 1, 128, 585, start, len(data))
    path.write_bytes(header + descriptor + data)
    return path


def _layer(add: dict[str, bytes | str]) -> bytes:
    """A layer: bytes are files, text is a link, a name that starts with .wh. removes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, what in add.items():
            info = tarfile.TarInfo(name)
            if isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
                archive.addfile(info)
            else:
                info.size = len(what)
                archive.addfile(info, io.BytesIO(what))
    return stream.getvalue()


def _oci(path: Path, layers: list[bytes], env: list[str]) -> Path:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return f"sha256:{digest}"

    config = blob(json.dumps({"config": {"Env": env}}).encode())
    parts = [{"digest": blob(gzip.compress(layer))} for layer in layers]
    manifest = blob(json.dumps({"config": {"digest": config}, "layers": parts}).encode())
    blobs["index.json"] = json.dumps({"manifests": [{"digest": manifest}]}).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in blobs.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _whole(root: Path) -> bytes:
    """The tree as one layer."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(root, ".")
    return stream.getvalue()


def test_every_form_of_an_image_says_the_same(root: Path, squashfs: Path, tmp_path: Path) -> None:
    """With libraries behind links, as Debian's alternatives are."""
    archive = _oci(tmp_path / "image.tar", [_whole(root)], [])
    layout = tmp_path / "layout"
    with tarfile.open(archive) as packed:
        packed.extractall(layout, filter="data")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    seen = {}
    for image in (root, squashfs, _sif(tmp_path / "image.sif", squashfs), archive, layout):
        report, facts = inspect_image(str(image), os.environ)
        seen[report.kind] = (report.libfabric, report.providers, report.plugins, report.system, facts.libraries)
    assert set(seen) == {"directory", "squashfs", "sif", "oci-archive", "oci-layout"}
    for kind, said in seen.items():
        assert said == seen["directory"], kind
    assert seen["sif"][4]["libmpi.so.40"].versions is not None, "it was found behind the links and read"
    assert seen["sif"][1] == ("cxi", "tcp")
    assert len(seen["sif"][2]) == 1, "a link is no second plugin"


def test_the_root_of_another_process_is_not_taken_for_this_machine(root: Path) -> None:
    """As for a container that runs: its root is a link that seems to lead to `/`."""
    script = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    require("root", os.geteuid() == 0, "only root can change the root")
    argv = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        report, _ = inspect_image(f"/proc/{process.pid}/root", os.environ)
        process.communicate(timeout=30)
    assert report.system == "Toy 1"


def test_only_what_matters_is_unpacked_and_nothing_is_left(squashfs: Path) -> None:
    with open_image(str(squashfs), os.environ) as opened:
        folder = Path(opened.folder)
        assert not (folder / "usr/share/doc/large").exists()
        assert (folder / "usr/lib64/libfabric.so.1").exists()
    assert not folder.parent.exists()


def test_large_libraries_are_known_by_name_alone(
    root: Path, squashfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.build.images.unpack.MAX_LIBRARY", 100)
    other = (root / "usr/lib64/libnccl-net-ofi.so").read_bytes()
    fabric = (root / "usr/lib64/libfabric.so.1").read_bytes()
    names = {"usr/lib64/libother.so.1.2": other, "usr/lib64/libother.so.1": "libother.so.1.2", "srv/libfar.so.1": other}
    layer = _layer({"usr/lib64/libfabric.so.1": fabric, **names})
    _, facts = inspect_image(str(_oci(tmp_path / "image.tar", [layer], [])), os.environ)
    for name in ("libother.so.1", "libother.so.1.2"):
        assert facts.libraries[name] == (f"/usr/lib64/{name}", None)
    assert facts.libraries["libfabric.so.1"].versions is not None, "the network's are read whatever their size"
    assert "libfar.so.1" not in facts.libraries
    monkeypatch.setattr("windlass.build.images.unpack.MAX_TOTAL", 0)
    assert "libfabric.so.1" in inspect_image(str(squashfs), os.environ)[1].libraries


def test_layers_of_an_archive_lie_on_each_other(root: Path, tmp_path: Path) -> None:
    fabric = (root / "usr/lib64/libfabric.so.1").read_bytes()
    plugin = (root / "usr/lib64/libnccl-net-ofi.so").read_bytes()
    first = _layer({"lib64": "usr/lib64", "usr/lib64/libfabric.so.1": fabric, "usr/lib64/libnccl-net.so": plugin})
    second = _layer({"usr/lib64/.wh.libnccl-net.so": b"", "usr/lib64/libnccl-net-ofi.so": plugin})
    image = _oci(tmp_path / "image.tar", [first, second], ["NCCL_NET_PLUGIN=other", "PATH=/bin", "SECRET=x"])
    report, _ = inspect_image(str(image), os.environ)
    assert report.kind == "oci-archive"
    assert report.plugins == ("/lib64/libnccl-net-ofi.so",)
    assert report.environment == {"NCCL_NET_PLUGIN": "other"}


def test_a_layer_cannot_write_outside_of_the_folder(root: Path, tmp_path: Path) -> None:
    fabric = (root / "usr/lib64/libfabric.so.1").read_bytes()
    goal = tmp_path / "goal"
    goal.mkdir()
    evil = _layer(
        {"lib": str(goal), "lib/liba.so": fabric, "../lib/libb.so": fabric, "usr/lib64/libfabric.so.1": fabric}
    )
    inspect_image(str(_oci(tmp_path / "image.tar", [evil], [])), os.environ)
    assert not list(goal.iterdir())
    assert not (tmp_path / "lib").exists()


@each("keep", [0.2, 0.6, 0.95])
def test_truncated_images_are_refused_with_a_sentence(keep: float, squashfs: Path, root: Path, tmp_path: Path) -> None:
    large = (root / "usr/share/doc/large").read_bytes()
    layer = _layer({"usr/lib64/libfabric.so.1": (root / "usr/lib64/libfabric.so.1").read_bytes(), "large": large})
    whole = (squashfs, _sif(tmp_path / "a.sif", squashfs), _oci(tmp_path / "a.tar", [layer], []))
    for image in whole:
        cut = tmp_path / f"cut{image.suffix}"
        data = image.read_bytes()
        cut.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(UsageError) as caught:
            inspect_image(str(cut), os.environ)
        assert caught.value.hint, caught.value


def test_damaged_sif_headers_are_refused(squashfs: Path, tmp_path: Path) -> None:
    for image, said in (
        (_sif(tmp_path / "long.sif", squashfs, claims=1 << 40), "truncated"),
        (_sif(tmp_path / "ext3.sif", squashfs, file_system=2), "not squashfs"),
    ):
        with pytest.raises(UsageError, match=said):
            inspect_image(str(image), os.environ)


def test_what_is_no_image_is_refused_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))
    for name in ("text", "empty", "folder", "plain.tar", "not-there"):
        with pytest.raises(UsageError) as caught:
            inspect_image(str(tmp_path / name), os.environ)
        assert caught.value.hint, name


def test_variables_of_an_unpacked_image_are_read_where_its_runtime_keeps_them(tmp_path: Path) -> None:
    scripts = tmp_path / ".singularity.d/env"
    scripts.mkdir(parents=True)
    (scripts / "10-docker2singularity.sh").write_text(
        'export NCCL_NET="${NCCL_NET:-"Socket"}"\nexport LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-"/a:/b"}"\n'
    )
    (scripts / "90-environment.sh").write_text(
        "#!/bin/sh\n    export NCCL_NET_PLUGIN=spcx 'FI_PROVIDER_PATH=/x y'\nexport PATH=/own:$PATH X='unclosed\n"
    )
    (tmp_path / "ch").mkdir()
    (tmp_path / "ch/environment").write_text("CUDA_HOME=/usr/local/cuda\nno variable\n")
    assert directory_environment(SystemRoot(str(tmp_path))) == {
        "CUDA_HOME": "/usr/local/cuda",
        "NCCL_NET": "Socket",
        "LD_LIBRARY_PATH": "/a:/b",
        "NCCL_NET_PLUGIN": "spcx",
        "FI_PROVIDER_PATH": "/x y",
    }


def _docker(path: Path, layers: list[bytes], env: list[str]) -> Path:
    """As `docker save` wrote archives before it wrote OCI's form too."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    parts = dict(zip(names, layers, strict=True))
    parts["config.json"] = json.dumps({"config": {"Env": env}}).encode()
    parts["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    path.write_bytes(_layer(dict(parts)))
    return path


def test_an_oci_layout_and_an_archive_of_docker_say_the_same_as_an_oci_archive(root: Path, tmp_path: Path) -> None:
    layer = _layer({"usr/lib64/libfabric.so.1": (root / "usr/lib64/libfabric.so.1").read_bytes()})
    archive = _oci(tmp_path / "oci.tar", [layer], ["FI_PROVIDER_PATH=/x"])
    layout = tmp_path / "layout"
    with tarfile.open(archive) as packed:
        packed.extractall(layout, filter="data")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    docker = _docker(tmp_path / "docker.tar", [layer], ["FI_PROVIDER_PATH=/x"])
    seen = {}
    for image in (archive, layout, docker):
        report, facts = inspect_image(str(image), os.environ)
        seen[image.name] = (report.libfabric, report.providers, facts.environment)
        assert report.kind == ("oci-layout" if image == layout else "oci-archive")
    assert seen["oci.tar"] == seen["layout"] == seen["docker.tar"]
    assert seen["layout"][1] == ("cxi", "tcp")
    next((layout / "blobs/sha256").iterdir()).unlink()
    with pytest.raises(UsageError, match="damaged or truncated"):
        inspect_image(str(layout), os.environ)


def test_of_images_for_several_machines_the_one_for_this_is_read(root: Path, tmp_path: Path) -> None:
    fabric = (root / "usr/lib64/libfabric.so.1").read_bytes()
    folders = []
    for number, content in enumerate(({"usr/lib64/libfabric.so.1": fabric}, {"usr/lib64/libother.so": fabric})):
        folders.append(tmp_path / str(number))
        with tarfile.open(_oci(tmp_path / f"{number}.tar", [_layer(dict(content))], [])) as packed:
            packed.extractall(folders[-1], filter="data")
    mine, other = (json.loads((folder / "index.json").read_text())["manifests"][0] for folder in folders)
    shutil.copytree(folders[1], folders[0], dirs_exist_ok=True)
    here = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    entries = [
        {**other, "platform": {"architecture": "riscv64"}},
        {**other, "platform": {"architecture": "unknown"}},
        {**mine, "platform": {"architecture": here}},
    ]
    (folders[0] / "index.json").write_text(json.dumps({"manifests": entries}))
    (folders[0] / "oci-layout").touch()
    assert inspect_image(str(folders[0]), os.environ)[0].libfabric


def _damaged(data: bytes, random: Random) -> bytes:
    """Bytes changed, a piece cut out, repeated or cut off."""
    spoiled = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(spoiled) or 1)
        kind = random.randrange(5)
        if kind == 0 and spoiled:
            spoiled[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            spoiled[at : at + 8] = random.randbytes(8)
        elif kind == 2:
            del spoiled[at : at + random.randint(1, 600)]
        elif kind == 3:
            spoiled[at:at] = spoiled[at : at + 100]
        elif len(spoiled) > 2:
            del spoiled[max(1, at) :]
    return bytes(spoiled)


@each("form", ["oci", "docker", "sif", "squashfs"])
def test_damaged_images_end_in_a_sentence_and_never_in_a_crash(
    form: str, root: Path, squashfs: Path, tmp_path: Path
) -> None:
    layer = _layer(
        {
            "lib64": "usr/lib64",
            "usr/lib64/.wh.x": b"",
            "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*\n",
            "usr/lib64/libfabric.so.1": (root / "usr/lib64/libfabric.so.1").read_bytes(),
        }
    )
    sound = {
        "oci": lambda: _oci(tmp_path / "sound", [layer], ["A=1"]),
        "docker": lambda: _docker(tmp_path / "sound", [layer], ["A=1"]),
        "sif": lambda: _sif(tmp_path / "sound", squashfs),
        "squashfs": lambda: squashfs,
    }[form]()
    data = sound.read_bytes()
    refused = 0
    for seed in range(20 if form in {"sif", "squashfs"} else 120):
        image = tmp_path / "damaged"
        # Half of them in the first bytes, where the headers are.
        start = data[:2048] if seed % 2 else data
        image.write_bytes(_damaged(start, Random(f"{form}{seed}")) + (data[2048:] if seed % 2 else b""))
        try:
            inspect_image(str(image), os.environ)
        except UsageError as error:
            refused += 1
            assert error.hint, (seed, error)
    assert refused > 5, "the damage is felt"


@each(
    "text",
    [
        "",
        "[]",
        "null",
        "3",
        '"x"',
        "{}",
        '{"manifests": []}',
        '{"manifests": [{}]}',
        '{"manifests": {"a": 1}}',
        "[" * 99999,
    ]
    + [json.dumps({"manifests": [{"digest": digest}]}) for digest in ("sha256:00", "../../x", 7, None)]
    + [
        json.dumps(manifest)
        for manifest in ({"layers": [], "config": 1}, {"layers": [1]}, {"layers": None, "config": {}})
    ],
)
def test_an_index_that_says_something_else_is_refused(text: str, tmp_path: Path) -> None:
    for name in ("index.json", "manifest.json"):
        image = tmp_path / name
        image.write_bytes(_layer({name: text.encode()}))
        with pytest.raises(UsageError) as caught:
            inspect_image(str(image), os.environ)
        assert caught.value.hint


def test_damage_within_a_layer_is_felt(root: Path, tmp_path: Path) -> None:
    layer = gzip.compress(_layer({"usr/lib64/libfabric.so.1": (root / "usr/lib64/libfabric.so.1").read_bytes()}))
    refused = 0
    for seed in range(60):
        spoiled = layer[:20] + _damaged(layer[20:], Random(seed))
        image = _docker(tmp_path / "image.tar", [spoiled], [])
        try:
            inspect_image(str(image), os.environ)
        except UsageError:
            refused += 1
    assert refused > 40


def test_a_folder_that_the_images_loader_is_told_of_counts_and_another_does_not(tmp_path: Path) -> None:
    require_compiler()
    libfabric(tmp_path / "container/hpc/lib", 2, ("tcp", "cxi"))
    (tmp_path / "usr").mkdir()
    assert inspect_image(str(tmp_path), os.environ)[0].providers == ()
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (tmp_path / "etc/ld.so.conf.d/000-windlass.conf").write_text("/container/hpc/lib\n")
    assert inspect_image(str(tmp_path), os.environ)[0].providers == ("cxi", "tcp")
