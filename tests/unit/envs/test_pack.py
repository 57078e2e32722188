"""Packed environments, unpacked somewhere else for real, with the old place gone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from looping import each
from requirements import missing_programs, require
from unit.cli.typed import argv, environment, in_process, windlass
from unit.envs.test_check import PACKAGES, bare, put
from windlass.build.envs.archive import hint_for, interpreter_of, portable_script
from windlass.build.envs.pack import Packed, pack_env
from windlass.errors import MachineError, UsageError


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """A venv with a package and its script, as pip leaves them."""
    env = bare(tmp_path / "env")
    put(env, "alpha")
    (env / PACKAGES / "alpha.py").write_text("import sys\ndef main():\n    print(sys.prefix, *sys.argv[1:])\n")
    script = f"#!{env}/bin/python\nimport sys\nfrom alpha import main\nsys.exit(main())\n"
    (env / "bin" / "alpha-tool").write_text(script)
    (env / "bin" / "alpha-tool").chmod(0o755)
    (env / "bin" / "inner").symlink_to(env / "bin" / "alpha-tool")
    return env


def pack(env: Path, name: str, with_python: bool = False) -> Packed:
    return pack_env(str(env), str(env.parent / name), with_python=with_python, environ=dict(os.environ))


def said(*words: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def untar(archive: Path, to: Path) -> Path:
    to.mkdir()
    said("tar", "-xf", archive, "-C", to)
    return to


@pytest.mark.apart
def test_a_staged_environment_works_where_the_nodes_have_it(env: Path, tmp_path: Path) -> None:
    packed = windlass("env", "pack", "env", "--json", cwd=tmp_path)
    assert packed.code == 0, packed.text
    data = json.loads(packed.stdout)
    assert data["file"] == str(tmp_path / "env.tar.gz") and data["left"] == []
    assert any("in the same place" in need for need in data["needs"])
    env.rename(tmp_path / "gone")
    to = tmp_path / "a node"
    staged = windlass("stage", "env.tar.gz", "--extract", "--to", str(to), cwd=tmp_path, timeout_s=120)
    assert staged.code == 0, staged.text
    new = to / "env"
    assert said(new / "bin" / "alpha-tool", "one two", "$x") == f"{new} one two $x"
    assert said(new / "bin" / "inner") == str(new)
    assert said(new / "bin" / "python", "-c", "import alpha; print(alpha.__file__)") == str(new / PACKAGES / "alpha.py")
    activated = said(
        "bash", "-uc", '. "a node/env/bin/activate"; alpha-tool; deactivate; echo "${VIRTUAL_ENV-none}"', cwd=tmp_path
    )
    assert activated.splitlines() == [str(new), "none"]
    checked = windlass("env", "check", str(new), cwd=tmp_path)
    assert checked.code == 0 and "moved" not in checked.stdout, checked.text


@pytest.mark.apart
def test_with_its_python_a_venv_becomes_a_python_of_its_own(env: Path, tmp_path: Path) -> None:
    packed = pack(env, "whole.tar", with_python=True)
    env.rename(tmp_path / "gone")
    new = untar(tmp_path / "whole.tar", tmp_path / "new")
    assert not (new / "pyvenv.cfg").exists()
    code = "import sys, os, json, alpha; print(sys.prefix == sys.base_prefix, os.__file__, alpha.__file__)"
    library = f"lib/python3.{sys.version_info.minor}"
    assert (
        said(new / "bin" / "python", "-I", "-c", code)
        == f"True {new / library / 'os.py'} {new / PACKAGES / 'alpha.py'}"
    )
    assert said(new / "bin" / "alpha-tool") == str(new)
    assert not any("in the same place" in need for need in packed.needs)
    assert windlass("env", "check", str(new), cwd=tmp_path).code == 0


def test_the_same_environment_gives_the_same_bytes(env: Path, tmp_path: Path) -> None:
    for name in ("one.tar.gz", "two.tar.gz"):
        pack(env, name)
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        members = {member.name: member for member in archive}
    assert {member.uid for member in members.values()} == {0} and members["bin/inner"].linkname == "alpha-tool"
    source = env / PACKAGES / "alpha.py"
    assert members[f"{PACKAGES}/alpha.py"].mtime == int(source.stat().st_mtime), "compiled modules stay valid"
    assert not any(name.endswith((".fish", ".csh", ".ps1")) for name in members)


def test_a_file_with_two_names_is_stored_once_and_unpacked_as_one(env: Path, tmp_path: Path) -> None:
    first, second = env / PACKAGES / "data.bin", env / PACKAGES / "same.bin"
    first.write_bytes(os.urandom(3 << 20))
    second.hardlink_to(first)
    for name in ("env.tar", "env.tar.gz", "env.tar.zst"):
        assert pack(env, name).size_bytes < first.stat().st_size * 3 // 2
        new = untar(tmp_path / name, tmp_path / f"new-{name}")
        one, two = new / PACKAGES / "data.bin", new / PACKAGES / "same.bin"
        assert one.samefile(two) and one.read_bytes() == first.read_bytes()


def test_the_bytes_of_a_gzip_do_not_depend_on_the_number_of_cores(env: Path, tmp_path: Path) -> None:
    (env / PACKAGES / "data.bin").write_bytes(os.urandom(1 << 20) * 3)
    pack(env, "some.tar.gz")
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        pack(env, "one.tar.gz")
    finally:
        os.sched_setaffinity(0, cores)
    assert (tmp_path / "some.tar.gz").read_bytes() == (tmp_path / "one.tar.gz").read_bytes()
    said("gzip", "-t", tmp_path / "one.tar.gz")


def test_a_folder_that_cannot_be_read_ends_the_packing(env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def broken(path: str) -> object:
        if str(path).endswith("site-packages"):
            raise OSError(errno.EIO, "Input/output error", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(MachineError, match="site-packages cannot be read: Input/output error"):
        pack(env, "env.tar.gz")
    assert not list(env.parent.glob("*env.tar.gz*"))


def test_a_link_to_the_root_stays_a_link(env: Path, tmp_path: Path) -> None:
    (env / "root").symlink_to("/")
    pack(env, "env.tar.gz")
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        assert archive.getmember("root").linkname == "/" and archive.getmember("bin").isdir()


def test_other_forms_hold_the_same(env: Path, tmp_path: Path) -> None:
    why = missing_programs("zstd", "mksquashfs", "unsquashfs")
    require("squashfs", not why, why)
    pack(env, "env.tar.zst")
    pack(env, "env.sqsh")
    first = (tmp_path / "env.sqsh").read_bytes()
    (tmp_path / "env.sqsh").unlink()
    time.sleep(1.1)  # the file must not contain the time
    pack(env, "env.sqsh")
    assert (tmp_path / "env.sqsh").read_bytes() == first
    zst = untar(tmp_path / "env.tar.zst", tmp_path / "zst")
    said("unsquashfs", "-d", tmp_path / "sqsh", "-no-progress", tmp_path / "env.sqsh")
    for new in (zst, tmp_path / "sqsh"):
        assert said(new / "bin" / "alpha-tool", "x") == f"{new} x"


def test_what_could_not_work_elsewhere_is_refused(env: Path, tmp_path: Path) -> None:
    for name, message in (
        ("env.zip", "has no known suffix"),
        ("env", "has no known suffix"),
        ("nowhere/env.tar", "no such folder"),
        ("env/env.tar", "inside the environment that it packs"),
    ):
        with pytest.raises(UsageError, match=message):
            pack(env, name)
    (tmp_path / "d.tar").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        pack(env, "d.tar")
    with pytest.raises(MachineError, match="no zstd"):
        pack_env(str(env), str(tmp_path / "x.tar.zst"), with_python=False, environ={"PATH": str(tmp_path)})
    editable = env / PACKAGES / "__editable__.mine-1.0.pth"
    editable.write_text(f"{tmp_path}\n")
    with pytest.raises(UsageError, match="pip install -e"):
        pack(env, "env.tar")
    editable.unlink()
    env.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="was moved or copied"):
        pack(tmp_path / "moved", "env.tar")


def test_an_archive_is_replaced_only_by_force(env: Path, tmp_path: Path) -> None:
    (tmp_path / "env.tar").write_text("mine")
    refused = in_process("env", "pack", "env", "-o", "env.tar", cwd=tmp_path)
    assert refused.code == 2 and "already exists" in refused.stderr and "--force" in refused.stderr
    assert (tmp_path / "env.tar").read_text() == "mine"
    assert in_process("env", "pack", "env", "-o", "env.tar", "--force", cwd=tmp_path).code == 0
    assert tarfile.is_tarfile(tmp_path / "env.tar")


@each(
    ("number", "told"),
    [
        (errno.ENOSPC, "GB left"),
        (errno.EDQUOT, "GB left"),
        (errno.EROFS, "may not write"),
        (errno.ENOENT, "no new files"),
    ],
)
def test_the_hint_fits_the_error(number: int, told: str, tmp_path: Path) -> None:
    assert told in hint_for(OSError(number, os.strerror(number)), tmp_path)


def test_a_folder_that_takes_no_files_is_not_told_to_make_room(env: Path, tmp_path: Path) -> None:
    for words in (("pack", str(env), "-o", "/proc/x.tar.gz"), ("create", "/proc/env")):
        refused = in_process("env", *words, cwd=tmp_path)
        assert refused.code in (2, 3) and "another place" in refused.stderr, refused.text
        assert "room" not in refused.stderr and "GB" not in refused.stderr


def test_a_full_disk_leaves_no_half_archive(env: Path, tmp_path: Path) -> None:
    (env / PACKAGES / "big.bin").write_bytes(os.urandom(300_000))
    words = argv("env", "pack", "env", "-o", "env.tar")
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *words]
    done = subprocess.run(limited, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "cannot write" in done.stderr, done.stderr
    assert not [path.name for path in tmp_path.iterdir() if "tar" in path.name]


def test_what_conda_wrote_its_place_into_is_named(tmp_path: Path) -> None:
    env = tmp_path / "conda"
    for folder in ("bin", "conda-meta", PACKAGES, "etc"):
        (env / folder).mkdir(parents=True)
    (env / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (env / "bin" / "tool").write_text(f"#!{env}/bin/python3.11\nprint(1)\n")
    (env / "etc" / "settings").write_text(f"root={env}\n")
    paths = [{"_path": name, "prefix_placeholder": "/opt/x"} for name in ("bin/tool", "etc/settings")]
    record = {"name": "python", "paths_data": {"paths": [*paths, {"_path": "bin/python"}]}}
    (env / "conda-meta" / "python-3.11.7-h1.json").write_text(json.dumps(record))
    (env / "conda-meta" / "broken.json").write_text("{")
    assert pack(env, "conda.tar").left == ("etc/settings",), "the script was changed, the rest is said"


@each(
    ("head", "python"),
    [
        (b"#!/old/env/bin/python3.11\n", "/old/env/bin/python3.11"),
        (b"#! /old/env/bin/python -E\n", "/old/env/bin/python"),
        (b"#!/bin/sh\n'''exec' /long/env/bin/python3 \"$0\" \"$@\"\n' '''\n", "/long/env/bin/python3"),
        (b"#!/usr/bin/env python3\n", None),
        (b"#!/bin/bash\n", None),
        (b"", None),
    ],
)
def test_first_lines_of_scripts_are_read_in_all_their_forms(head: bytes, python: str | None) -> None:
    assert interpreter_of(head + b"x\n") == python
    changed = portable_script(head + b"x\n")
    assert (b"/env/bin" in changed) is False and changed.endswith(b"x\n")
    assert portable_script(changed) == changed
