"""`windlass run --cache` and `windlass cache` under the real Slurm: one reading for all nodes, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.command import Allocation, Run, allocated, only_run
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require_fuse, require_mpi, require_torch
from startup.machine import Clients
from startup.shared import Limits
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.fuse, pytest.mark.timeout(120)]
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture(autouse=True)
def _nothing_left(slurm: SlurmCluster) -> Iterator[None]:
    """Mounts live in the nodes' own name space, so the usual look for leftovers does not see them."""
    require_fuse()
    yield
    wait_until(
        lambda: not node_mounts(slurm), timeout_s=15, what="no mount is left", state=lambda: str(node_mounts(slurm))
    )


def node_mounts(slurm: SlurmCluster) -> list[str]:
    """Mounts of caches that only the nodes see: what others mount on this machine meanwhile is seen by all."""
    assert slurm._keeper
    theirs, ours = (Path(f"/proc/{pid}/mountinfo").read_text(errors="replace") for pid in (slurm._keeper.pid, "self"))
    common = {line.split()[4] for line in ours.splitlines()}
    places = [line.split()[4] for line in theirs.splitlines() if " fuse.windlass " in line]
    return [place for place in places if place not in common]


def agent_processes(slurm: SlurmCluster) -> dict[int, str]:
    return {pid: words for pid, words in slurm.step_processes().items() if "daemon import main" in words}


def ranks(slurm: SlurmCluster, words: str) -> list[int]:
    """Ranks that run this, in the step of ranks: all agents are up then."""
    return [pid for pid, said in slurm.step_processes().items() if words in said and "slurmstepd" not in said]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A small virtual environment whose folder has a name that a first line of a script can hardly hold."""
    prefix = tmp_path / "my env's ünï"
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    (site,) = (prefix / "lib").glob("python3*/site-packages")
    (site / "greeting").mkdir()
    (site / "greeting" / "__init__.py").write_text("from greeting.words import WORD\n")
    (site / "greeting" / "words.py").write_text("WORD = 'ahoy'\n")
    script = prefix / "bin" / "greet"
    first = f"#!/bin/sh\n'''exec' \"{prefix}/bin/python\" \"$0\" \"$@\"\n' '''\n"  # as installers write it
    script.write_text(first + "import greeting, sys\nprint('script', greeting.__file__, sys.prefix)\n")
    script.chmod(0o755)
    return prefix


def cached(job: Allocation, *words: str, env: dict[str, str] | None = None) -> Any:
    traces = {"WINDLASS_TRACES": str(job.folder / "traces")}
    return job.windlass("run", "--show", "all", *words, env={**traces, **(env or {})})


def shared_reading(run: Run) -> dict[str, int]:
    return dict(json.loads((run.path / "cache.json").read_text())["total"])


@pytest.mark.torch
def test_torch_comes_through_the_cache_on_four_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_torch()
    code = "import torch, sys; print('GOT', torch.__file__, sys.prefix)"
    with allocated(slurm, tmp_path, "-N4", "--exclusive") as job:
        path = f"{sys.prefix}/bin:{os.environ['PATH']}"
        done = cached(job, "--cache", sys.prefix, "-r", "2", "--", "python", "-c", code, env={"PATH": path})
    assert done.code == 0, done.text
    lines = [line.split() for line in done.stdout.splitlines() if "GOT" in line]
    assert len(lines) == 8
    for line in lines:
        assert "/view" + sys.prefix in line[-1] and line[-2].startswith(line[-1])
    run = only_run(tmp_path)
    nodes = json.loads((run.path / "cache.json").read_text())["nodes"]
    assert len(nodes) == 4
    assert sum(node["source_bytes"] for node in nodes[1:]) == 0, "one node reads for all"
    assert shared_reading(run)["errors"] == 0
    assert not (run.path / "agent.pyz").exists(), "it holds the key"


def test_scripts_modules_and_prefix_come_from_the_view(
    slurm: SlurmCluster, environment: Path, hostile_dir: Path
) -> None:
    path = f"{environment}/bin:{os.environ['PATH']}"
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        by_name = cached(job, "--cache", str(environment), "-r", "1", "--", "greet", env={"PATH": path})
        by_path = cached(job, "--cache", str(environment), "-r", "1", "--", str(environment / "bin" / "greet"))
        (hostile_dir / "train.py").write_text("import greeting, sys; print('module', greeting.__file__, sys.prefix)\n")
        script = cached(job, "--cache", str(environment), "-r", "1", "train.py")
    for done in (by_name, by_path, script):
        assert done.code == 0, done.text
        said = [line for line in done.stdout.splitlines() if "script" in line or "module" in line]
        assert len(said) == 2, done.text
        for line in said:
            assert line.count(f"/view{environment}") == 2, line


def test_plain_pythonpath_is_redirected(slurm: SlurmCluster, hostile_dir: Path) -> None:
    packages = hostile_dir / "packages"
    packages.mkdir()
    (packages / "plain.py").write_text("")
    code = "import plain, sys; print('GOT', plain.__file__)"
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        env = {"PYTHONPATH": f"{job.env['PYTHONPATH']}:{packages}"}
        done = cached(job, "--cache", str(packages), "-r", "1", "--", SYSTEM_PYTHON, "-c", code, env=env)
    assert done.code == 0, done.text
    assert done.stdout.count(f"/view{packages}/plain.py") == 2


def test_second_run_pushes_what_the_first_recorded(slurm: SlurmCluster, environment: Path, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        words = (
            "--cache",
            str(environment),
            "-r",
            "1",
            "--",
            str(environment / "bin" / "python"),
            "-c",
            "import greeting",
        )
        for _ in range(2):
            done = cached(job, *words)
            assert done.code == 0, done.text
        listed = job.windlass("cache", "trace", "list", "--json", env={"WINDLASS_TRACES": str(hostile_dir / "traces")})
    (trace,) = json.loads(listed.stdout)
    assert trace["roots"] == [str(environment)] and trace["files"] > 0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cache_goes_away_however_windlass_ends(slurm: SlurmCluster, tmp_path: Path, sig: signal.Signals) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_text("x")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("--cache", str(root), "--cache-set", "trace=off", "-r", "1", "--", "sleep", "60")
        try:
            wait_until(
                lambda: len(node_mounts(slurm)) == 2, timeout_s=30, what="both nodes have mounted", state=slurm.state
            )
            wait_until(
                lambda: any("sleep 60" in w for w in slurm.step_processes().values()), timeout_s=20, what="ranks run"
            )
            child.send_signal(sig)
            child.communicate(timeout=40)
        finally:
            child.kill()
            child.communicate(timeout=30)
        wait_until(
            lambda: not node_mounts(slurm) and not agent_processes(slurm), timeout_s=20, what="gone", state=slurm.state
        )


def test_failing_rank_ends_the_cache_too(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = cached(job, "--cache", str(root), "-r", "1", "--", "sh", "-c", "exit $((RANK * 7))")
    assert done.code == 7, done.text
    assert not node_mounts(slurm)


def test_killed_peer_costs_a_warning_and_no_bytes(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(3_000_000))
    go = tmp_path / "go"
    wait = f'while [ ! -e "{go}" ]; do sleep 0.1; done; cmp "$WINDLASS_VIEW{root}/big" "{root}/big" && echo SAME'
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("--cache", str(root), "--show", "all", "-r", "1", "--", "sh", "-c", wait)
        try:
            wait_until(lambda: len(node_mounts(slurm)) == 2, timeout_s=30, what="mounted", state=slurm.state)
            wait_until(lambda: len(ranks(slurm, str(go))) == 2, timeout_s=30, what="ranks run", state=slurm.state)
            for pid, words in agent_processes(slurm).items():
                if " peer " in words:
                    os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: len([1 for w in agent_processes(slurm).values() if " peer " in w]) == 0,
                timeout_s=30,
                what="dead",
            )
            go.touch()
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.communicate(timeout=30)
    assert child.returncode == 0, out + err
    assert out.count("SAME") == 2
    assert "the peer process of the cache is gone" in err


def keeper_and_agent(slurm: SlurmCluster) -> list[int]:
    """Keeper and agent of the only node, in the order of their start."""
    found = [pid for pid, words in slurm.step_processes().items() if "memfd_create" in words and "srun" not in words]
    assert len(found) == 2, slurm.step_processes()
    return sorted(found)


def test_killed_agent_costs_a_warning_and_its_keeper_holds_the_view(slurm: SlurmCluster, tmp_path: Path) -> None:
    root, go = tmp_path / "data", tmp_path / "go"
    root.mkdir()
    (root / "x").write_text("x")
    (root / "y").write_text("WHOLE")
    read = f'until [ -e "{go}" ]; do cat "$WINDLASS_VIEW{root}/x" >/dev/null || exit 9; sleep 0.1; done'
    with allocated(slurm, tmp_path, "-N1", "--exclusive") as job:
        words = ("sh", "-c", f'{read}; cat "$WINDLASS_VIEW{root}/y"; echo')
        child = job.popen("--cache", str(root), "--show", "all", "-r", "1", "--", *words)
        try:
            wait_until(lambda: list(tmp_path.glob("runs/*/where/0")), timeout_s=60, what="the rank runs")
            os.kill(keeper_and_agent(slurm)[1], signal.SIGKILL)
            time.sleep(2.5)  # longer than those who follow the agent need to notice
            go.touch()
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.communicate(timeout=30)
    assert child.returncode == 0 and "WHOLE" in out, out + err
    assert "was killed by signal 9; its keeper continues" in out + err
    assert not node_mounts(slurm)


def test_agent_killed_with_its_keeper_takes_its_cache_along(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Readers get an error at once instead of hanging; the next start finds nothing in its way."""
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_text("x")
    read = f'while cat "$WINDLASS_VIEW{root}/x" >/dev/null 2>&1; do sleep 0.1; done; echo GONE'
    with allocated(slurm, tmp_path, "-N1", "--exclusive") as job:
        child = job.popen("--cache", str(root), "--show", "all", "-r", "1", "--", "sh", "-c", read)
        try:
            wait_until(lambda: len(node_mounts(slurm)) == 1, timeout_s=30, what="mounted", state=slurm.state)
            wait_until(lambda: list(tmp_path.glob("runs/*/where/0")), timeout_s=60, what="the rank runs")
            for pid in keeper_and_agent(slurm):
                os.kill(pid, signal.SIGKILL)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.communicate(timeout=30)
        assert "GONE" in out, out + err
        again = cached(job, "--cache", str(root), "-r", "1", "--", "sh", "-c", f'cat "$WINDLASS_VIEW{root}/x"')
    assert again.code == 0, again.text


def test_node_without_a_place_for_the_agent_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    site = tmp_path / "site.toml"
    site.write_text('name = "here"\nextends = "generic-slurm"\n[storage]\nlocal = "/proc/nowhere"\n')
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = cached(job, "--site", str(site), "--cache", str(root), "-r", "1", "--", "true")
    assert done.code == 3, done.text
    assert "did not start" in done.stderr and "nid000" in done.stderr


def test_cache_by_hand_is_started_asked_and_stopped(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_bytes(b"x" * 200_000)
    with allocated(slurm, tmp_path, "-N4", "--exclusive") as job:
        started = job.windlass("cache", "start", "--root", str(root), "--cache-set", "trace=off", "--json")
        assert started.code == 0, started.text
        view = json.loads(started.stdout)["view"]
        assert len(node_mounts(slurm)) == 4
        read = slurm.run(
            [
                "srun",
                "--overlap",
                "-N4",
                "--ntasks-per-node=1",
                "sh",
                "-c",
                f'cmp "{view}{root}/x" "{root}/x" && echo SAME',
            ],
            env=job.env,
            timeout_s=60,
        )
        assert read.stdout.count("SAME") == 4, read.text
        said = job.windlass("cache", "status", "--json")
        assert said.code == 0, said.text
        nodes, total = (json.loads(said.stdout)[name] for name in ("nodes", "total"))
        assert [node["node"] for node in nodes] == [0, 1, 2, 3]
        assert total["shared_bytes"] == 200_000 and total["ready"] == 4
        table = job.windlass("cache", "status")
        assert "4 of 4" in table.stdout and "nid0003" in table.stdout
        stopped = job.windlass("cache", "stop")
        assert stopped.code == 0, stopped.text
        assert not node_mounts(slurm) and not agent_processes(slurm)
        assert "no cache is running" in job.windlass("cache", "status").stderr


def test_cache_by_hand_ends_with_the_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        started = job.windlass("cache", "start", "--root", str(root), "--json")
        assert started.code == 0, started.text
    wait_until(lambda: not agent_processes(slurm), timeout_s=20, what="the agents are gone", state=slurm.state)


def test_tree_and_archive_are_staged_to_every_node(slurm: SlurmCluster, hostile_dir: Path) -> None:
    tree = hostile_dir / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "big").write_bytes(os.urandom(2_000_000))
    archive = hostile_dir / "packed.tar.gz"
    subprocess.run(["tar", "-c", "-z", "-f", archive, "-C", hostile_dir, "tree"], check=True, timeout=30)
    to = hostile_dir / "local.${SLURM_NODEID}"
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.windlass("stage", str(tree), str(archive), "--extract", "--to", str(to), "--json")
        assert done.code == 0, done.text
        refused = job.windlass("stage", str(tree), "--to", "relative")
    said = json.loads(done.stdout)
    assert [(node["node"], node["files"]) for node in said["staged"]] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    for node in range(4):
        for copy in ("tree", "packed/tree"):
            same = ["diff", "-r", tree, hostile_dir / f"local.{node}" / copy]
            assert subprocess.run(same, timeout=30).returncode == 0
    assert refused.code == 2 and "not an absolute path" in refused.stderr


@pytest.mark.mpi
def test_agents_start_under_hydra_too(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Hydra hands standard input to one rank only, so its agents are ended by a signal."""
    require_mpi()
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_text("x")
    path = f"{hydra_mpiexec().parent}:{os.environ['PATH']}"
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = (
            "--launcher",
            "hydra",
            "--cache",
            str(root),
            "-r",
            "1",
            "--",
            "sh",
            "-c",
            f'cat "$WINDLASS_VIEW{root}/x"',
        )
        done = cached(job, *words, env={"PATH": path})
    assert done.code == 0, done.text
    assert done.stdout.count("] x") == 2, done.text


def test_what_a_kill_of_everything_left_is_swept_by_the_next_start(slurm: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_text("x")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("--cache", str(root), "--cache-set", "trace=off", "-r", "1", "--", "sleep", "60")
        try:
            wait_until(lambda: len(ranks(slurm, "sleep 60")) >= 2, timeout_s=30, what="ranks run", state=slurm.state)
            for pid in [*agent_processes(slurm), *ranks(slurm, "memfd_create")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not agent_processes(slurm), timeout_s=30, what="all are dead")
            assert len(node_mounts(slurm)) == 2, "nobody was left to unmount"
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=40)
        finally:
            child.kill()
            child.communicate(timeout=30)
        again = cached(job, "--cache", str(root), "-r", "1", "--", "sh", "-c", f'cat "$WINDLASS_VIEW{root}/x"')
        assert again.code == 0, again.text
    assert not node_mounts(slurm)


@pytest.fixture
def editable(tmp_path: Path, environment: Path) -> Path:
    """Two projects installed as `pip install -e` leaves them: a path in a .pth file, and a finder with a map."""
    (site,) = (environment / "lib").glob("python3*/site-packages")
    source = tmp_path / "projects"
    (source / "one" / "src").mkdir(parents=True)
    (source / "one" / "src" / "plainly.py").write_text("")
    (site / "__editable__.plainly-1.pth").write_text(f"{source}/one/src\n")
    (source / "two" / "mapped").mkdir(parents=True)
    (source / "two" / "mapped" / "__init__.py").write_text("")
    finder = f"""import importlib.machinery, sys
MAPPING = {{"mapped": {str(source / "two" / "mapped")!r}}}
NAMESPACES = {{}}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.machinery.PathFinder.find_spec(name, [MAPPING[name].rpartition("/")[0]])
def install():
    sys.meta_path.append(Finder)
"""
    (site / "__editable___mapped_1_finder.py").write_text(finder)
    (site / "__editable__.mapped-1.pth").write_text(
        "import __editable___mapped_1_finder; __editable___mapped_1_finder.install()\n"
    )
    return source


def test_auto_takes_the_environment_in_use_and_traces_need_no_flag(
    slurm: SlurmCluster, environment: Path, editable: Path, tmp_path: Path
) -> None:
    """With editable installs and PYTHONPATH: the first run records, the second pushes ahead, and both say so."""
    packages = tmp_path / "more packages"
    packages.mkdir()
    (packages / "plain.py").write_text("")
    work = tmp_path / "work"
    work.mkdir()
    names = "greeting, plain, plainly, mapped"
    (work / "train.py").write_text(f"import {names}\nprint('GOT', *(m.__file__ for m in ({names})), sep='\\nGOT ')\n")
    with allocated(slurm, work, "-N2", "--exclusive") as job:
        env = {"PYTHONPATH": f"{packages}:{work}:{job.env['PYTHONPATH']}", "VIRTUAL_ENV": str(environment)}
        first = cached(job, "--cache", "auto", "-r", "1", "train.py", env=env)
        second = cached(job, "--cache", "auto", "-r", "1", "train.py", env=env)
    for done in (first, second):
        assert done.code == 0, done.text
        for path in (environment, packages, editable / "one" / "src" / "plainly.py", editable / "two" / "mapped"):
            assert done.stdout.count(f"/view{path}") == 2, done.text
    assert "are recorded" in first.stderr and "from the record of an earlier run" not in first.stderr, first.text
    assert "from the record of an earlier run" in second.stderr, second.text


def test_without_a_cache_a_slow_environment_is_named_with_its_cost(
    slurm: SlurmCluster, environment: Path, tmp_path: Path
) -> None:
    """On a shared file system that takes its time for every call; on a quick disk nothing is said."""
    (tmp_path / "train.py").write_text("import greeting\n")
    with (
        Clients(tmp_path / "c", 1, {"env": str(environment)}, Limits(latency_s=0.002)) as clients,
        allocated(slurm, tmp_path, "-N2", "--exclusive") as job,
    ):
        slow = str(clients.path(0) / "env" / "bin" / "python")
        said = job.windlass("plan", "--python", slow, "-r", "1", "train.py")
        quick = job.windlass("plan", "--python", f"{environment}/bin/python", "-r", "1", "train.py")
    assert said.code == 0 and quick.code == 0, said.text + quick.text
    assert "the environment is on fuse" in said.text, said.text
    assert "an import of torch's size" in said.text or "did not answer at once" in said.text, (
        "by a busy machine's leave"
    )
    assert "--cache auto reads it once for all nodes" in said.text
    assert "the environment is on" not in quick.text
