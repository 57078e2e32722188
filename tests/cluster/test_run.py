"""`windlass run` inside a Slurm allocation: every rank starts where the plan says, with what frameworks look for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cluster.command import SHOW, TRAIN, Allocation, Run, allocated, json_lines, only_run, rank_lines
from cluster.slurm import SlurmCluster
from requirements import require_torch
from waiting import wait_until
from windlass.base.notation.counts import format_cpulist

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def _rank(line: dict[str, Any]) -> int:
    return int(line["environ"]["RANK"])


def _cpus_in_plan(run: Run) -> list[list[int]]:
    return [rank.get("cpus", []) for rank in run.plan["binding"]["ranks"]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_of_every_node_know_their_place(slurm: SlurmCluster, hostile_dir: Path, ranks: int) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT"
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.run_python("--ranks-per-node", str(ranks), "--show", "all", str(SHOW), env={"SHOW": names})
        assert done.code == 0, done.text
        run = only_run(hostile_dir)
        shown = json_lines(done.stdout)
        kept = rank_lines(job, run.path)
    assert sorted(kept, key=_rank) == sorted(shown, key=_rank)
    seen = {(_rank(line), int(line["environ"]["LOCAL_RANK"]), line["host"]) for line in shown}
    assert seen == {(rank, rank % ranks, f"nid{1 + rank // ranks:04d}") for rank in range(4 * ranks)}
    for line in shown:
        assert line["environ"]["WORLD_SIZE"] == str(4 * ranks)
        assert line["environ"]["LOCAL_WORLD_SIZE"] == str(ranks)
    assert len({(line["environ"]["MASTER_ADDR"], line["environ"]["MASTER_PORT"]) for line in shown}) == 1
    assert run.result["outcome"] == "ok"
    assert len(list((run.path / "out").iterdir())) == 4, "one file per node, not one per rank"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_cpus_each_rank_really_got_are_those_of_the_plan(
    slurm_bound: SlurmCluster, hostile_dir: Path, ranks: int
) -> None:
    with allocated(slurm_bound, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("--ranks-per-node", str(ranks), "--show", "all", str(SHOW))
        assert done.code == 0, done.text
        where = job.windlass("logs", str(only_run(hostile_dir).path), "--where", "--json")
    planned = _cpus_in_plan(only_run(hostile_dir))
    assert all(planned), "a whole node of known cores has to be bound"
    got = {_rank(line): line["cpus"] for line in json_lines(done.stdout)}
    assert got == {rank: planned[rank % ranks] for rank in range(2 * ranks)}
    for cpus in planned:
        assert format_cpulist(cpus) in where.stdout


def test_a_binding_by_hand_is_obeyed(slurm_bound: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm_bound, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", "--cpu-bind", "1:0", "--show", "all", str(SHOW))
    assert done.code == 0, done.text
    got = {_rank(line): line["cpus"] for line in json_lines(done.stdout)}
    assert got == {0: [1], 1: [0], 2: [1], 3: [0]}


@pytest.mark.parametrize("words", [None, "verbose,map_cpu:1,0"])
def test_a_binding_by_a_variable_of_the_job_is_handed_to_srun(
    slurm_bound: SlurmCluster, hostile_dir: Path, words: str | None
) -> None:
    with allocated(slurm_bound, hostile_dir, "-N2", "--exclusive") as job:
        env = {} if words is None else {"MY_BIND": words}
        said = job.run_python("-r", "2", "--cpu-bind", "env:MY_BIND", "--show", "all", str(SHOW), env=env)
        if words is None:
            assert said.code == 3
            assert "MY_BIND is not set" in said.text
            return
        assert said.code == 0, said.text
        lines = rank_lines(job, only_run(hostile_dir).path)
    assert {int(line["environ"]["RANK"]) % 2: line["cpus"] for line in lines} == {0: [1], 1: [0]}


def test_more_ranks_than_cores_start_and_are_told_so(slurm_bound: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm_bound, hostile_dir, "-N2", "--exclusive", "--overcommit") as job:
        done = job.run_python("-r", "5", "--show", "all", str(SHOW))
    assert done.code == 0, done.text
    assert len(json_lines(done.stdout)) == 10


def test_part_of_the_allocation_can_be_used(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.run_python("--nodes", "2", "-r", "1", "--show", "all", str(SHOW))
        assert sorted(line["host"] for line in json_lines(done.stdout)) == ["nid0001", "nid0002"]
        done = job.run_python("--hosts", "nid[0002,0004]", "-r", "1", "--show", "all", str(SHOW))
        assert sorted(line["host"] for line in json_lines(done.stdout)) == ["nid0002", "nid0004"]


def test_only_rank_0_is_shown_by_default_and_all_are_kept(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", str(SHOW))
        assert [line["environ"]["RANK"] for line in json_lines(done.stdout)] == ["0"]
        lines = rank_lines(job, only_run(hostile_dir).path)
    assert sorted(line["environ"]["RANK"] for line in lines) == ["0", "1", "2", "3"]


def test_a_second_run_in_the_same_allocation_gets_a_folder_and_a_start_of_its_own(
    slurm: SlurmCluster, hostile_dir: Path
) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        first = job.run_python("-r", "1", str(SHOW))
        second = job.run_python("-r", "1", str(SHOW))
    assert (first.code, second.code) == (0, 0)
    assert len(list((hostile_dir / "runs").iterdir())) == 2


def test_the_plan_on_disk_is_closed_to_others_and_has_no_secret(slurm: SlurmCluster, hostile_dir: Path) -> None:
    token = "hf_" + "s3cr3t" * 6
    words = ("-r", "1", "--env", f"HF_TOKEN={token}", "--show", "all", str(SHOW), "--api-key", "open sesame")
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python(*words, env={"SHOW": "HF_TOKEN"})
    assert done.code == 0, done.text
    for line in json_lines(done.stdout):
        assert line["environ"]["HF_TOKEN"] == token
        assert line["argv"] == ["--api-key", "open sesame"]
    run = only_run(hostile_dir)
    assert (run.path / "plan.json").stat().st_mode & 0o777 == 0o600
    assert run.path.stat().st_mode & 0o077 == 0
    for path in run.path.rglob("*"):
        if path.is_file() and "out" not in path.relative_to(run.path).parts:
            text = path.read_text(errors="replace")
            assert token not in text, path
            assert "open sesame" not in text, path


def test_placeholders_are_filled_in_the_task(slurm: SlurmCluster, hostile_dir: Path) -> None:
    words = (
        "{rank}/{world_size}",
        "{local_rank}@{node_rank}",
        "{{rank}}",
        "{nodes}x{ranks_per_node}",
        "{job_id}",
        "{x}",
    )
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", "--show", "all", str(SHOW), *words)
        plain = job.run_python("-r", "1", "--no-placeholders", str(SHOW), *words)
    job_id = job.job_env["SLURM_JOB_ID"]
    argv = {_rank(line): line["argv"] for line in json_lines(done.stdout)}
    assert argv == {r: [f"{r}/4", f"{r % 2}@{r // 2}", "{rank}", "2x2", job_id, "{x}"] for r in range(4)}
    assert json_lines(plain.stdout)[0]["argv"] == list(words)


@pytest.mark.torch
def test_gloo_ranks_on_four_nodes_train_together(slurm: SlurmCluster, hostile_dir: Path) -> None:
    require_torch()
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        words = ("-r", "1", "--threads", "1", str(TRAIN), "--steps", "12", "--batch", "32")
        done = job.run_python(*words, timeout_s=150)
    assert done.code == 0, done.text
    loss = re.search(r"done: loss ([\d.]+) -> ([\d.]+) in 12 steps, \d+ samples/s, ranks: 4", done.stdout)
    assert loss, done.text
    assert float(loss[2]) < float(loss[1])


def _refused(job: Allocation, *words: str) -> str:
    done = job.run_python(*words)
    assert done.code in (2, 3), done.text
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_contradictions_with_the_allocation_are_found_before_anything_starts(
    slurm: SlurmCluster, hostile_dir: Path
) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--ntasks-per-node=2", "--exclusive") as job:
        assert "the allocation (slurm job" in _refused(job, "--nodes", "3", str(SHOW))
        assert "made for 2 tasks per node" in _refused(job, "--ranks-per-node", "3", str(SHOW))
        assert "nid0009 is not in this job" in _refused(job, "--hosts", "nid0009", str(SHOW))
        assert "no-such.py does not exist" in _refused(job, "no-such.py")
        assert "did you mean 'srun'" in _refused(job, "--launcher", "sron", str(SHOW))
        assert "torchrun" in _refused(job, "--", "torchrun", str(TRAIN))
        assert not (hostile_dir / "runs").exists()


def test_a_run_folder_that_cannot_be_made_is_refused(slurm: SlurmCluster, hostile_dir: Path) -> None:
    (hostile_dir / "runs").write_text("a file where the folder should be")
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        assert "cannot make the run folder" in _refused(job, str(SHOW))
        assert "cannot make the run folder" in _refused(job, "--run-dir", "/proc/nowhere", str(SHOW))


def test_a_part_of_one_node_is_enough(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-n1") as job:
        done = job.run_python("--show", "all", str(SHOW))
    assert done.code == 0, done.text
    assert len(json_lines(done.stdout)) == 1


def test_an_error_of_srun_itself_comes_with_what_helps(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-n1") as job:
        done = job.run_python("--arg", "--cpus-per-task=64", str(SHOW))
    assert done.code == 1, done.text
    assert "windlass: hint: the job has fewer CPUs, nodes or devices than is asked for" in done.stderr


def test_tasks_that_nodes_cannot_share_evenly_are_refused_with_what_to_say(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "-n3") as job:
        told = _refused(job, str(SHOW))
        done = job.run_python("-r", "1", "--show", "all", str(SHOW))
    assert "made for 3 tasks, not the same number on each node: 2, 1" in told and "--ranks-per-node 1" in told
    assert done.code == 0, done.text


_LINES = """
import sys
for size in (1000, 1023, 1024, 1025, 2048, 70_000):
    sys.stdout.write("<" + "é" * size + ">\\n")
    sys.stdout.write("y" * size + "\\n")
sys.stdout.write("no end" * 1000)
"""


def test_long_lines_stay_whole_on_the_terminal_and_in_the_logs(slurm: SlurmCluster, hostile_dir: Path) -> None:
    """srun's daemons cut labelled lines after 1024 bytes, characters too."""
    script = hostile_dir / "lines.py"
    script.write_text(_LINES)
    expected = [text for size in (1000, 1023, 1024, 1025, 2048, 70_000) for text in (f"<{'é' * size}>", "y" * size)]
    expected.append("no end" * 1000)
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", "--show", "0", str(script))
        assert done.code == 0, done.text
        kept = job.windlass("logs", str(only_run(hostile_dir).path), "--rank", "3")
    assert [line.removeprefix("[0] ") for line in done.stdout.splitlines()] == expected
    assert [line.removeprefix("[3] ") for line in kept.stdout.splitlines()] == expected


def test_folders_for_caches_are_gone_from_every_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Also where nothing was written into those of the first node."""
    site = tmp_path / "site.toml"
    local = f"{tmp_path}/local-${{SLURMD_NODENAME}}"
    site.write_text(f'name = "here"\nextends = "generic-slurm"\n[storage]\nlocal = "{local}"\n')
    nodes = [tmp_path / f"local-nid000{number}" for number in (1, 2)]
    for node in nodes:
        node.mkdir()
    made = '[ "$RANK" = 0 ] || touch "$TRITON_CACHE_DIR/kernel"; echo "$WINDLASS_CACHE_DIR"'
    kept = str(tmp_path / "kept")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = ("--site", str(site), "-r", "1", "--show", "all", "--keep-caches", kept, "--", "sh", "-c", made)
        done = job.windlass("run", *words)
    assert done.code == 0, done.text
    assert sorted(line.split("/")[-3] for line in done.stdout.splitlines()) == [node.name for node in nodes], done.text
    assert [list(node.iterdir()) for node in nodes] == [[], []]


def test_a_second_run_takes_the_node_that_is_free(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A step on the first node would wait behind the first run."""
    waits = "touch first; while [ ! -e second ]; do sleep 0.1; done"
    with (
        allocated(slurm, tmp_path, "-N2", "--exclusive") as job,
        job.popen("-N", "1", "--", "sh", "-c", waits) as first,
    ):
        wait_until((tmp_path / "first").exists, timeout_s=60, what="the first run is there")
        done = job.windlass("run", "-N", "1", "-r", "1", "--", "sh", "-c", "echo on $SLURMD_NODENAME; touch second")
        assert done.code == 0, done.text
        assert "on nid0002" in done.stdout, done.text
        said = first.communicate(timeout=60)
        assert first.returncode == 0, said
