"""The PBS stand-in behaves as the captured OpenPBS did: refusals, node files, variables, attributes, ends."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

import captured
import leftovers
from standins.sites import Site, pbs_site
from waiting import wait_until

REFUSALS = captured.captures("openpbs/refusals.json")
NODEFILES = json.loads(captured.text("openpbs/nodefiles.json"))
# Other servers, and names that were not in the environment, are not pretended; `nodes=` is an older way to ask.
NOT_PRETENDED = {"err_server_down", "err_unknown_server", "qsub_v_unset"}
OLDER_OR_VNODES = {name for name in NODEFILES if "vnode" in name or "_nodes" in name}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with pbs_site(tmp_path / "site") as found:
        (found.home / "env.pbs").write_text("env | sort\n")
        (found.home / "nf.pbs").write_text("cat $PBS_NODEFILE\n")
        yield found
    left = leftovers.look_until_clean(os.environ[leftovers.MARK_VARIABLE], tmp_path, patience_s=20)
    assert not left, left.text()


def run(site: Site, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], env=site.env, cwd=site.home, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def job(site: Site, job_id: str) -> dict[str, object]:
    answer = json.loads(run(site, f"qstat -x -f -F json {job_id}").stdout)
    found: dict[str, object] = answer["Jobs"][job_id]
    return found


def finished(site: Site, job_id: str) -> dict[str, object]:
    wait_until(lambda: job(site, job_id)["job_state"] == "F", timeout_s=30, what=f"{job_id} has ended", every_s=0.1)
    return job(site, job_id)


def submit(site: Site, script: str, options: str = "") -> str:
    (site.home / "job.pbs").write_text(script)
    done = run(site, f"qsub {options} job.pbs")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", sorted(set(REFUSALS) - NOT_PRETENDED))
def test_it_refuses_in_the_same_words_with_the_same_code(site: Site, name: str) -> None:
    capture = REFUSALS[name]
    for number in ("0", "35") if "finished" in name else ():  # jobs that had ended when the real one was asked
        (site.folder / "next").write_text(number)
        finished(site, submit(site, "true\n"))
    done = run(site, capture.command.replace("/home/user", str(site.home)))
    assert done.returncode == capture.code
    assert done.stderr.strip() == capture.stderr.strip()


@pytest.mark.parametrize("name", sorted(set(NODEFILES) - OLDER_OR_VNODES))
def test_node_files_have_the_same_lines_per_host(site: Site, name: str) -> None:
    """Which of the equal hosts is taken is the scheduler's choice; how often each stands there is not."""
    real = NODEFILES[name]
    job_id = submit(site, "cat $PBS_NODEFILE\n", f"-j oe -l select={real['select']} -l place={real['place']}")
    finished(site, job_id)
    log = site.home / f"job.pbs.o{job_id.split('.', 1)[0]}"
    wait_until(log.exists, timeout_s=30, what="the job's output is delivered")
    got = log.read_text().split()
    assert [len(list(group)) for _, group in groupby(got)] == [len(list(group)) for _, group in groupby(real["lines"])]
    assert all(host.endswith(".cluster.test") for host in got)


def test_a_job_finds_the_variables_shell_and_folder_that_it_found_in_the_real_one(site: Site) -> None:
    real = captured.text("openpbs/job_file_output.out").split("--- env\n")[1].split("--- nodefile")[0]
    expected = {line.split("=", 1)[0] for line in real.splitlines()} - {"MANPATH"}
    script = '#!/bin/bash\necho "$(pwd) $(umask) $(hostname) $-"; ps -o args= -p $PPID; env\n'
    job_id = submit(site, script, "-j oe -N envjob -l select=2:ncpus=2:mpiprocs=2 -l place=scatter")
    finished(site, job_id)
    lines = (site.home / "envjob.o0").read_text().splitlines()
    assert lines[0] == f"{site.home} 0077 node1 hB"
    assert lines[1] == "-bash"
    found = {line.split("=", 1)[0] for line in lines[2:] if "=" in line}
    assert expected - found == set()
    assert {name for name in found if name.startswith("PBS_")} == {name for name in expected if name.startswith("PBS_")}


@pytest.mark.parametrize(
    ("capture", "script", "options"),
    [
        ("qstat_f_json_running", "sleep 30\n", "-l select=2:ncpus=2:mpiprocs=2 -l place=scatter -j oe"),
        ("qstat_x_f_json_finished", "exit 0\n", "-l select=2:ncpus=2:mpiprocs=2 -l place=scatter -j oe"),
        ("qstat_x_f_json_fail3", "exit 3\n", "-l select=1:ncpus=1"),
        ("qstat_f_json_hold", "true\n", "-h -l select=1:ncpus=1"),
        ("qstat_f_json_too_many", "true\n", "-l select=9:ncpus=1 -l place=scatter"),
    ],
)
def test_a_job_has_the_attributes_that_it_has_in_the_real_one(
    site: Site, capture: str, script: str, options: str
) -> None:
    ((_, real),) = json.loads(captured.text(f"openpbs/{capture}.out"))["Jobs"].items()
    job_id = submit(site, script, options)

    def settled() -> bool:
        now = job(site, job_id)
        return now["job_state"] == real["job_state"] and ("comment" in now) == ("comment" in real)

    wait_until(
        settled,
        timeout_s=20,
        what=f"state {real['job_state']}",
        every_s=0.1,
    )  # fmt: skip
    made = job(site, job_id)
    assert set(real) - set(made) <= {"session_id", "depend"}
    assert set(made) - set(real) <= {"Account_Name"}
    for key in ("job_state", "Exit_status", "Hold_Types", "Join_Path"):
        assert made.get(key) == real.get(key)
    real["Resource_List"].pop("walltime")
    assert real["Resource_List"].items() <= made["Resource_List"].items()  # type: ignore[attr-defined]
    run(site, f"qdel {job_id}")


@pytest.mark.parametrize(
    ("script", "options", "act", "status", "substate"),
    [
        ("sleep 40\n", "", "qdel", 271, 91),
        ("sleep 40\n", "-l walltime=1", "", -29, 93),
        ("kill -9 $PPID\nsleep 5\n", "", "", 265, 93),
        ("no_such_command\n", "", "", 127, 93),
    ],
)
def test_jobs_end_with_the_status_that_the_real_one_gives(
    site: Site, script: str, options: str, act: str, status: int, substate: int
) -> None:
    job_id = submit(site, script, options)
    if act:
        wait_until(lambda: job(site, job_id)["job_state"] == "R", timeout_s=30, what="it runs", every_s=0.1)
        assert run(site, f"{act} {job_id}").returncode == 0
    ended = finished(site, job_id)
    assert (ended["Exit_status"], ended["substate"]) == (status, substate)


def test_with_k_doe_the_log_is_written_while_the_job_runs(site: Site) -> None:
    log = site.home / "direct.txt"
    job_id = submit(site, "echo early\nsleep 30\n", f"-j oe -k doe -o {log}")
    wait_until(lambda: log.exists() and log.read_text() == "early\n", timeout_s=30, what="the first line is there")
    run(site, f"qdel {job_id}")
    finished(site, job_id)


def test_without_history_a_finished_job_is_forgotten(site: Site) -> None:
    job_id = submit(site, "exit 3\n")
    finished(site, job_id)
    site.env["STANDIN_HISTORY"] = "off"
    asked = run(site, f"qstat -x -f -F json {job_id}")
    assert asked.returncode == 0
    assert "Jobs" not in json.loads(asked.stdout)
    assert run(site, f"qstat {job_id}").returncode == 153


def test_without_history_even_a_job_that_runs_is_not_listed_by_x(site: Site) -> None:
    site.env["STANDIN_HISTORY"] = "off"
    job_id = submit(site, "while [ ! -e go ]; do sleep 0.1; done\n")
    asked = run(site, f"qstat -x -f -F json {job_id}")
    assert (asked.returncode, "Jobs" in json.loads(asked.stdout)) == (0, False)
    assert "PBS is not configured to maintain job history" in asked.stderr
    assert job_id in json.loads(run(site, f"qstat -f -F json {job_id}").stdout)["Jobs"]
    (site.home / "go").touch()
    wait_until(lambda: run(site, f"qstat {job_id}").returncode == 153, timeout_s=30, what="it is forgotten")


def test_a_job_waits_for_its_nodes(site: Site) -> None:
    first = submit(site, "sleep 1\n", "-l select=3:ncpus=4 -l place=scatter")
    second = submit(site, "true\n", "-l select=1:ncpus=1")
    wait_until(
        lambda: "Not Running" in str(job(site, second).get("comment")), timeout_s=30, what="it says why it waits"
    )
    start = time.monotonic()
    finished(site, first)
    finished(site, second)
    assert time.monotonic() - start < 20
