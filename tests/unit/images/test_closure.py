"""The loader's search, on small trees of real libraries."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from containers.toys import library, require_compiler
from windlass.node.libs.closure import SystemRoot, closure
from windlass.node.libs.place import HostSearch, host_closure


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require_compiler()


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    library(tmp_path / "usr/lib/liba.so.1.2")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr/lib/liba.so.1").symlink_to("/lib/liba.so.1.2")
    (tmp_path / "usr/lib/out.so").symlink_to("../../../../../../../../usr/lib/liba.so.1.2")
    (tmp_path / "usr/lib/loop.so").symlink_to("loop.so")
    root = SystemRoot(str(tmp_path), platform.machine())
    assert root.place("/lib/liba.so.1") == f"{tmp_path}/usr/lib/liba.so.1.2"
    assert root.place("/usr/lib/out.so") == f"{tmp_path}/usr/lib/liba.so.1.2", ".. stops at the root"
    assert root.place("/usr/lib/loop.so") is None
    assert root.place("/etc/passwd") is None
    assert root.find("liba.so.1") is not None


def test_the_loaders_configuration_and_its_includes_are_searched(tmp_path: Path) -> None:
    library(tmp_path / "opt/net/libn.so.1")
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\ninclude ld.so.conf\n# /no\n")
    (tmp_path / "etc/ld.so.conf.d/net.conf").write_text("/opt/net  # here\n")
    root = SystemRoot(str(tmp_path), platform.machine())
    assert "/opt/net" in root.folders()
    assert closure(root, ["libn.so.1"]).libraries["libn.so.1"].path == f"{tmp_path}/opt/net/libn.so.1"


def test_a_closure_names_what_is_missing_and_who_needs_it(tmp_path: Path) -> None:
    gone = library(tmp_path / "gone/libgone.so.3")
    middle = library(tmp_path / "usr/lib/libmiddle.so.2", needs=(gone,))
    library(tmp_path / "opt/libtop.so.1", needs=(middle,))
    found = closure(SystemRoot(str(tmp_path), platform.machine()), ["libtop.so.1"], ["/opt"])
    assert set(found.libraries) == {"libtop.so.1", "libmiddle.so.2"}
    assert found.missing["libgone.so.3"] == "libmiddle.so.2"
    assert closure(SystemRoot(str(tmp_path)), ["libtop.so.1"]).missing == {"libtop.so.1": ""}


def test_files_that_are_no_libraries_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/libx.so.1").write_text("INPUT(libx.so.2)")
    (tmp_path / "b/libx.so.1").mkdir(parents=True)
    (tmp_path / "p").mkdir()
    os.mkfifo(tmp_path / "p/libx.so.1")
    library(tmp_path / "c/libx.so.1")
    found = closure(SystemRoot(str(tmp_path), platform.machine()), ["libx.so.1"], ["/p", "/a", "/b", "/c"])
    assert found.libraries["libx.so.1"].path == f"{tmp_path}/c/libx.so.1"


def test_of_several_versions_of_a_folder_the_newest_comes_first(tmp_path: Path) -> None:
    for version in ("1.9.0", "1.22.0", "1.15.2"):
        library(tmp_path / f"opt/cray/libfabric/{version}/lib64/libfabric.so.1")
    root = SystemRoot(str(tmp_path), platform.machine())
    search = HostSearch(root, ("/opt/cray/libfabric/*/lib64",), ("libfabric.so.1",))
    assert "/1.22.0/" in host_closure(search).libraries["libfabric.so.1"].path
    loaded = ("/conda/lib", "/opt/cray/libfabric/1.15.2/lib64")
    search = HostSearch(root, ("/opt/cray/libfabric/*/lib64",), ("libfabric.so.1",), loaded)
    assert "/1.15.2/" in host_closure(search).libraries["libfabric.so.1"].path, "a loaded module wins"
    assert "/conda/lib" not in search.folders, "and nothing else of the search path does"
