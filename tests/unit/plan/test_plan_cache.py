"""What `--cache` adds to a plan and to the rank script, run through real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from looping import each
from planning import plan_for
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.plan import CacheRoot, Plan, plan_from_json, plan_to_json
from windlass.model.request import Request
from windlass.plan.cache import declared_roots
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.plan.show import plan_text
from windlass.sites.catalog import load_site

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def local_plan(tmp_path: Path, root: Path, command: tuple[str, ...], **options: object) -> Plan:
    """A plan for this machine whose agents' folder is below `tmp_path`."""
    site = load_site("workstation")
    storage = msgspec.structs.replace(site.file.storage, local=str(tmp_path / "local"))
    site = msgspec.structs.replace(site, file=msgspec.structs.replace(site.file, storage=storage))
    request = Request(command=command, cwd=str(tmp_path), cache=(str(root),), **options)  # type: ignore[arg-type]
    plain, _ = plan_for("workstation", "true")
    context = PlanningContext(
        site=site,
        topology=plain.topology,
        cache_roots=((str(root), os.path.realpath(root)),),
        cache_environments=(str(root),),
    )
    return make_plan(request, context)[0]


def run_rank(shell: str, plan: Plan, tmp_path: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    run = tmp_path / "run"
    for part in ("out", "where", "ends"):
        (run / part).mkdir(parents=True, exist_ok=True)
    facts = JobFacts(run_dir=str(run), run_id="id", uid=7, master_addr="h", master_port=1, job_id="1")
    script = run / "rank.sh"
    script.write_text(rank_script(plan, facts))
    words = [shell, "sh", str(script)] if shell == "busybox" else [shell, str(script)]
    place = {"WINDLASS_RANK": "0", "WINDLASS_LOCAL_RANK": "0", "WINDLASS_NODE_RANK": "0", "WINDLASS_WORLD_SIZE": "1"}
    full = {"PATH": os.environ["PATH"], **place, **env}
    return subprocess.run(words, capture_output=True, text=True, timeout=30, env=full)


def make_view(tmp_path: Path, root: Path) -> Path:
    """A folder in the place of the mount: the script only looks at paths."""
    view = tmp_path / "local" / "windlass-7-id.agents" / "c" / "id.0" / "view"
    (view / str(root)[1:]).mkdir(parents=True)
    return view


@each("shell", SHELLS)
def test_paths_below_the_roots_come_from_the_view_and_no_others(shell: str, tmp_path: Path, hostile_dir: Path) -> None:
    root = hostile_dir / "env"
    root.mkdir()
    view = make_view(tmp_path, root)
    command = (
        "sh",
        "-c",
        'printf "%s\\n" "$PATH" "$PYTHONPATH" "$VIRTUAL_ENV" "${CONDA_PREFIX-unset}" "$1"',
        "sh",
        str(root),
    )
    plan = local_plan(tmp_path, root, command)
    env = {
        "PATH": f"{root}/bin:{os.environ['PATH']}:{root}elsewhere/bin",
        "PYTHONPATH": f"/a:{root}:/b:{root}/lib",
        "VIRTUAL_ENV": str(root),
    }
    done = run_rank(shell, plan, tmp_path, env)
    assert done.returncode == 0, done.stderr
    path, pythonpath, virtual_env, conda, argument = done.stdout.splitlines()
    front = f"{view.parent}/front/0/bin"
    assert path.split(":")[:2] == [front, f"{view}{root}/bin"]
    assert path.endswith(f"{root}elsewhere/bin"), "a longer name that begins alike is another folder"
    assert pythonpath == f"/a:{view}{root}:/b:{view}{root}/lib"
    assert virtual_env == f"{view}{root}" and conda == "unset"
    assert argument == str(root), "the user's arguments stay as they are"


@each("shell", SHELLS)
def test_program_and_script_come_from_the_view(shell: str, tmp_path: Path, hostile_dir: Path) -> None:
    root = hostile_dir / "env"
    root.mkdir()
    view = make_view(tmp_path, root)
    (view / f"{root}/bin"[1:]).mkdir()
    tool = Path(f"{view}{root}/bin/tool")
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    tool.chmod(0o755)
    plan = local_plan(tmp_path, root, (str(root / "bin" / "tool"), "two words"))
    assert run_rank(shell, plan, tmp_path, {}).stdout.splitlines() == [str(tool), "two words"]
    front = view.parent / "front" / "0" / "bin"
    front.mkdir(parents=True)
    shutil.copy(tool, front / "tool")
    assert run_rank(shell, plan, tmp_path, {}).stdout.splitlines()[0] == str(front / "tool")
    script = local_plan(tmp_path, root, (str(root / "train.py"), "x"), kind="script", python=str(root / "bin" / "tool"))
    script = msgspec.structs.replace(script, command=(str(root / "bin" / "tool"), *script.command[1:]))
    assert run_rank(shell, script, tmp_path, {}).stdout.splitlines()[1:] == [f"{view}{root}/train.py", "x"]


def test_real_name_of_a_linked_root_leads_into_the_view_too(tmp_path: Path) -> None:
    real, link = tmp_path / "real env", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    view = make_view(tmp_path, link)
    plan = local_plan(tmp_path, link, ("sh", "-c", 'echo "$PYTHONPATH"'))
    done = run_rank("sh", plan, tmp_path, {"PYTHONPATH": f"{link}/a:{real}/b:{real}"})
    assert done.stdout.strip() == f"{view}{link}/a:{view}{link}/b:{view}{link}"


def test_view_in_an_argument_is_the_folder_of_the_view_and_nothing_without_one(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    view = make_view(tmp_path, root)
    command = ("sh", "-c", 'echo "$1 $DATA"', "sh", "{view}/x")
    plan = local_plan(tmp_path, root, command, env=(("DATA", "{view}" + str(root)),))
    assert run_rank("sh", plan, tmp_path, {}).stdout.strip() == f"{view}/x {view}{root}"
    plain, _ = plan_for("workstation", *command, env=(("DATA", "{view}/y"),))
    plain = msgspec.structs.replace(plain, request=msgspec.structs.replace(plain.request, cwd=str(tmp_path)))
    assert run_rank("sh", plain, tmp_path, {}).stdout.strip() == "/x /y"
    inside, _ = plan_for("lumi", "python", "x.py", cache=("/scratch/data",), container="/images/x.sif")
    facts = JobFacts(run_dir="/r", run_id="id", uid=7, master_addr="h", master_port=1, job_id="1")
    assert "\nw_view=\n" in rank_script(inside, facts)


def test_rank_without_a_view_fails_with_a_word(tmp_path: Path) -> None:
    root = tmp_path / "env"
    root.mkdir()
    (tmp_path / "local").mkdir()
    done = run_rank("sh", local_plan(tmp_path, root, ("true",)), tmp_path, {})
    assert done.returncode == 70 and "view of the cache is not there" in done.stderr


def test_plan_shows_the_cache_its_agents_and_their_cores() -> None:
    plan, _ = plan_for("aurora", "python", "train.py", nodes=4, cache=("/lus/flare/env",), account="A")
    assert plan.cache is not None and plan.cache.roots == (CacheRoot(path="/lus/flare/env", real="/lus/flare/env"),)
    assert plan.binding.agent_cpus, "the site sets cores aside"
    taken = {cpu for rank in plan.binding.ranks for cpu in rank.cpus}
    assert not taken & set(plan.binding.agent_cpus)
    assert plan.agents is not None and plan.agents.services == ("cache",)
    assert plan.agents.cpus == plan.binding.agent_cpus
    assert argv_of(plan.agents.launch)[:3] == ("mpiexec", "-n", "4")
    text = plan_text(plan, explain=True)
    assert "cooperative cache" in text and "/lus/flare/env" in text and "PYTHONPATH" in text
    assert plan_from_json(plan_to_json(plan)) == plan


def test_plan_says_how_many_nodes_read_where_the_cache_lies_and_who_may_enter() -> None:
    how = {"cache_readers": 3, "cache_store": "${LOCAL}/cache", "cache_allow_other": True}
    plan, _ = plan_for("frontier", "python", "train.py", nodes=4, cache=("/lustre/env",), account="A", **how)
    text = plan_text(plan, explain=False)
    assert (
        "3 nodes read the shared file system" in text and "stored in ${LOCAL}/cache" in text and "allow_other" in text
    )


def test_plan_without_cache_has_none_of_it() -> None:
    plan, _ = plan_for("aurora", "python", "train.py", nodes=4, account="A")
    assert plan.cache is None and plan.agents is None and not plan.binding.agent_cpus
    assert b'"cache"' not in plan_to_json(plan)


def test_one_agent_per_node_beside_the_ranks_that_fails_alone() -> None:
    plan, _ = plan_for("frontier", "x", nodes=8, cache=("/lustre/env",), account="A")
    assert plan.agents is not None
    words = argv_of(plan.agents.launch)
    assert {"--ntasks=8", "--ntasks-per-node=1", "--overlap", "--gres=none", "--kill-on-bad-exit=0"} <= set(words)
    assert "--label" not in words and plan.parent is False


def test_container_sees_the_view_in_the_place_of_the_root() -> None:
    plan, _ = plan_for("lumi", "python", "x.py", nodes=2, cache=("/scratch/env",), container="/images/x.sif")
    assert plan.container is not None and plan.cache is not None
    mount = plan.container.mounts[-1]
    assert (mount.source, mount.target) == ("${WINDLASS_VIEW}/scratch/env", "/scratch/env")
    assert plan.cache.variables == (), "inside, paths are what they were"


def test_roots_inside_roots_are_one_and_the_whole_file_system_is_none() -> None:
    assert [r.path for r in declared_roots([("/a/b", "/a/b"), ("/a", "/a"), ("/ab", "/ab")])] == ["/a", "/ab"]
    with pytest.raises(UsageError, match="whole file system"):
        declared_roots([("/", "/")])
    with pytest.raises(UsageError, match="colon"):
        declared_roots([("/a:b", "/a:b")])
