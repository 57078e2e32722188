"""Fronts of environments: scripts and virtual environments whose own words would lead around the view."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from windlass.model.plan import CachePlan, CacheRoot
from windlass.node.agent.cache import reachable_hosts, write_front
from windlass.run.sidecars.cache_service import environment_front


def plan(*roots: Path) -> CachePlan:
    return CachePlan(roots=tuple(CacheRoot(path=str(root), real=os.path.realpath(root)) for root in roots))


def front_of(folder: Path, mount: Path, front: dict[str, Any]) -> Path:
    """As it arrives on the node: through JSON."""
    write_front(str(folder), str(mount), json.loads(json.dumps(front)))
    return folder


def view_of(mount: Path, root: Path) -> Path:
    """The view of a root, played by a link: paths in it lead to the same files."""
    place = Path(f"{mount}{root}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(root)
    return place


def make_environment(prefix: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    return prefix


def test_scripts_start_with_the_views_interpreter(tmp_path: Path) -> None:
    env = make_environment(tmp_path / "my env")
    mount = tmp_path / "mount"
    view = view_of(mount, env)
    show = "import sys; print(sys.executable, sys.argv[1:], sys.prefix)\n"
    scripts = {
        "plain": f"#!{env}/bin/python\n",
        "long": f"#!/bin/sh\n'''exec' \"{env}/bin/python\" \"$0\" \"$@\"\n' '''\n",
        "shell": "#!/bin/sh\n",
    }
    for name, first in scripts.items():
        (env / "bin" / name).write_text(first + show)
        (env / "bin" / name).chmod(0o755)
    (env / "bin" / "data").write_text(f"#!{env}/bin/python\n")
    front = environment_front(str(env), plan(env))
    assert set(front["scripts"]) == {"long"}, "only what names an interpreter below a root, and can be run at all"
    folder = front_of(tmp_path / "front", mount, front)
    done = subprocess.run(
        [folder / "bin" / "long", "a b", "$x"], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split()[0:2] == str(view / "bin" / "python").split()
    assert "['a b', '$x']" in done.stdout and done.stdout.strip().endswith(str(view))


def test_options_of_the_first_line_are_kept(tmp_path: Path) -> None:
    env = make_environment(tmp_path / "env")
    (env / "bin" / "quiet").write_text(f"#!{env}/bin/python -sE\nimport sys; print(sys.flags.ignore_environment)\n")
    (env / "bin" / "quiet").chmod(0o755)
    mount = tmp_path / "mount"
    view_of(mount, env)
    folder = front_of(tmp_path / "front", mount, environment_front(str(env), plan(env)))
    done = subprocess.run([folder / "bin" / "quiet"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "1\n"


def test_environment_whose_base_is_cached_too_gets_a_front_of_its_own(tmp_path: Path) -> None:
    """`pyvenv.cfg` names the base by its own path: the standard library would be read around the cache."""
    base = tmp_path / "base" / "bin"
    base.mkdir(parents=True)
    (base / "python3").symlink_to(os.path.realpath(sys.executable))
    env = make_environment(tmp_path / "env")
    text = (env / "pyvenv.cfg").read_text()
    home = next(line for line in text.splitlines() if line.startswith("home"))
    (env / "pyvenv.cfg").write_text(text.replace(home, f"home = {base}"))
    mount = tmp_path / "mount"
    view_of(mount, env)
    view_of(mount, tmp_path / "base")
    front = environment_front(str(env), plan(env, tmp_path / "base"))
    folder = front_of(tmp_path / "front", mount, front)
    assert f"home = {mount}{base}" in (folder / "pyvenv.cfg").read_text()
    assert str((folder / "bin" / "python").readlink()) == f"{mount}{base}/python3"
    code = "import sys, json; print(json.dumps([sys.prefix, [p for p in sys.path if 'site-packages' in p]]))"
    done = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=30)
    prefix, packages = json.loads(done.stdout)
    assert prefix == str(folder) and packages[0].startswith(str(folder))
    assert (folder / "lib").is_dir()


def test_environment_with_a_base_of_the_system_needs_none(tmp_path: Path) -> None:
    env = make_environment(tmp_path / "env")
    assert "config" not in environment_front(str(env), plan(env))


def test_scripts_of_a_linked_root_are_found_under_its_real_name(tmp_path: Path) -> None:
    env = make_environment(tmp_path / "real")
    (tmp_path / "link").symlink_to(env)
    (env / "bin" / "tool").write_text(f"#!{env}/bin/python\n")
    (env / "bin" / "tool").chmod(0o755)
    front = environment_front(str(env), plan(tmp_path / "link"))
    assert front["prefix"] == str(tmp_path / "link")
    assert front["scripts"]["tool"][0] == f"{tmp_path}/link/bin/python"  # type: ignore[index]


def test_single_node_needs_no_name_and_loopback_names_stay_where_all_have_them() -> None:
    assert reachable_hosts(("whatever",), 0) == ("127.0.0.1",)
    assert reachable_hosts(("127.0.0.11", "127.0.0.12"), 1) == ("127.0.0.11", "127.0.0.12")
    assert reachable_hosts(("127.0.1.1", "192.0.2.7"), 0) == ("0.0.0.0", "192.0.2.7")
