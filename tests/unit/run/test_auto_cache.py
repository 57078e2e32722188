"""`--cache auto`: what real interpreters say of themselves becomes the folders that the nodes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.model.request import AUTO, Request
from windlass.run.auto_cache import ImportFolders, ask_python, choose_roots, with_auto_cache
from windlass.sites.catalog import load_site

SYSTEM = ("/usr",)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An interpreter below a prefix of its own, as pyenv and conda make one: a copy of the program with its library."""
    prefix = tmp_path / "versions" / "base"
    (prefix / "bin").mkdir(parents=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (prefix / "lib" / version / "site-packages").mkdir(parents=True)
    for entry in Path(os.__file__).parent.iterdir():
        if entry.name != "site-packages":
            (prefix / "lib" / version / entry.name).symlink_to(entry)
    program = prefix / "bin" / "python3"
    # A program of its own, so that Python finds this prefix: a link would lead it to the real one.
    program.write_text(f'#!/bin/sh\nPYTHONHOME="{prefix}" exec "{os.path.realpath(sys.executable)}" "$@"\n')
    program.chmod(0o755)
    return prefix


def auto(tmp_path: Path, *command: str, environ: dict[str, str] | None = None, **fields: object) -> tuple[str, ...]:
    request = Request(command=command, kind="command", cache=(AUTO,), cwd=str(tmp_path / "work"), **fields)  # type: ignore[arg-type]
    (tmp_path / "work").mkdir(exist_ok=True)
    changed, note = with_auto_cache(
        request, "python3", load_site("generic-slurm"), {"PATH": os.defpath, **(environ or {})}
    )
    assert note is not None and all(root in note.evidence for root in changed.cache)
    return changed.cache


def test_a_base_interpreter_is_its_prefix(base: Path, tmp_path: Path) -> None:
    assert auto(tmp_path, str(base / "bin" / "python3"), "train.py") == (str(base),)


@pytest.mark.parametrize("options", [(), ("--system-site-packages",)])
def test_a_virtual_environment_brings_the_one_beneath(tmp_path: Path, options: tuple[str, ...]) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, env], check=True, timeout=60)
    roots = auto(tmp_path, str(env / "bin" / "python"), "-m", "training")
    beneath = sys.base_prefix
    assert roots == ((str(env),) if beneath.startswith("/usr") else (str(env), beneath))


def test_paths_of_pth_files_and_of_pythonpath_are_taken(tmp_path: Path) -> None:
    env, project, more = tmp_path / "env", tmp_path / "project" / "src", tmp_path / "more"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True, timeout=60)
    (site,) = (env / "lib").glob("python3*/site-packages")
    for folder in (project, more):
        folder.mkdir(parents=True)
    (site / "project.pth").write_text(f"{project}\n")
    environ = {"PYTHONPATH": f"{more}:{tmp_path / 'missing'}:{env}/lib"}
    roots = auto(tmp_path, str(env / "bin" / "python"), environ=environ)
    assert {str(env), str(project), str(more)} <= set(roots)
    assert not any("missing" in root or root == f"{env}/lib" for root in roots)
    prepended = auto(tmp_path, str(env / "bin" / "python"), env_prepend=(("PYTHONPATH", str(more)),))
    assert str(more) in prepended


def test_folders_of_the_users_own_files_and_of_the_machine_are_left_out(tmp_path: Path) -> None:
    names = ("env", "work", "packages", "env/lib")
    for name in names:
        (tmp_path / name).mkdir()
    env, work, packages, inner = (str(tmp_path / name) for name in names)
    folders = ImportFolders(prefixes=(env, "/usr"), paths=("/usr/lib", inner, work, packages, str(tmp_path)))
    roots, left_out = choose_roots(folders, (f"{work}/sub/train.py",), SYSTEM)
    assert roots == (env, packages) and left_out == (work, str(tmp_path))


def test_a_script_of_bin_names_its_interpreter(base: Path, tmp_path: Path) -> None:
    script = base / "bin" / "accelerate"
    script.write_text(f"#!{base}/bin/python3\n")
    script.chmod(0o755)
    assert auto(tmp_path, "accelerate", "launch", environ={"PATH": f"{base}/bin:{os.defpath}"}) == (str(base),)


def test_what_cannot_be_told_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    site, environ = load_site("generic-slurm"), {"PATH": os.defpath}
    boxed = Request(command=("x",), kind="command", cache=(AUTO,), container="image.sif")
    with pytest.raises(UsageError, match="inside the container"):
        with_auto_cache(boxed, "python3", site, environ)
    with pytest.raises(UsageError, match="only in the job"):
        with_auto_cache(Request(command=("python9",), kind="command", cache=(AUTO,)), "python3", site, environ)
    with pytest.raises(UsageError, match="cannot list its import folders"):
        ask_python("/bin/false", boxed, environ)
    named = Request(command=("x",), kind="command", cache=("/folder",))
    assert with_auto_cache(named, "python3", site, environ) == (named, None)


def through_copper(*cache: str, site: str = "aurora", **fields: object) -> Request:
    request = Request(command=("train.py",), kind="script", cache=("copper", *cache), **fields)  # type: ignore[arg-type]
    return with_auto_cache(request, "python3", load_site(site), {"USER": "me", "PATH": os.defpath})[0]


def test_packages_are_read_through_the_cache_of_the_site(tmp_path: Path) -> None:
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    request = through_copper(str(tmp_path / "env"), "/lus/flare/packages", env_prepend=(("PYTHONPATH", "/own"),))
    assert request.env_prepend == (
        ("PYTHONPATH", "/tmp/me/copper/lus/flare/packages"),
        ("PYTHONPATH", f"/tmp/me/copper{packages}"),
        ("PYTHONPATH", "/own"),
    )
    assert (request.cache, request.options) == ((), ("copper",))


def test_a_site_without_that_cache_and_a_job_without_packages_are_refused() -> None:
    with pytest.raises(UsageError, match="lumi has none"):
        through_copper("/x", site="lumi")
    with pytest.raises(UsageError, match="no folder of packages"):
        through_copper()
    with pytest.raises(UsageError, match="no folder of packages"):
        through_copper("/x", container="image.sif")
