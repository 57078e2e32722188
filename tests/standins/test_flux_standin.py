"""The Flux stand-in behaves as the captured flux-core did: messages, codes, variables, records, signals."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import captured
import leftovers
from standins.sites import Site, flux_site
from waiting import wait_until

MESSAGES = captured.captures("flux/messages.json")
SAME = (
    "run-n8-N8-oversubscribe-fail", "run-gpu-none", "run-gpus-per-node-none", "run-too-many-nodes",
    "run-too-many-nodes-large", "run-too-many-cores", "run-bad-option", "run-n-less-than-N", "run-bad-time",
    "run-unknown-queue-no-queues-configured", "run-bad-requires", "run-no-command", "run-exit3-one-rank",
    "run-exit3-and-5", "run-exit3-one-rank-others-sleep-exit-on-error", "run-task-sigkill", "run-task-sigsegv",
    "run-task-abort", "run-task-exit-255", "run-task-exit-143", "run-time-limit-expiry-plain", "jobs-unknown-id",
    "cancel-unknown", "batch-missing-script", "gq-batch-unknown-queue",
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with flux_site(tmp_path / "site", ("host1", "host2", "host3", "host4")) as found:
        yield found
    left = leftovers.look_until_clean(os.environ[leftovers.MARK_VARIABLE], tmp_path, patience_s=20)
    assert not left, left.text()


def run(site: Site, command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], env=site.env | extra, cwd=site.home, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def plain(text: str) -> str:
    """Without times, job ids and which of the equal hosts it was."""
    text = re.sub(r"^\d+\.\d+s: ", "T: ", text, flags=re.MULTILINE)
    text = re.sub(r"ƒ\w+", "ID", re.sub(r"host\d", "host", text))
    return "\n".join(sorted(line.rstrip() for line in text.splitlines()))


@pytest.mark.parametrize("name", SAME)
def test_it_says_the_same_with_the_same_code(site: Site, name: str) -> None:
    capture = MESSAGES[name]
    done = run(site, capture.command)
    assert done.returncode == capture.code
    assert plain(done.stderr) == plain(capture.stderr)


@pytest.mark.parametrize("name", ["batch-no-shebang", "batch-no-size", "batch-directives-bad-option"])
def test_it_refuses_batch_scripts_in_the_same_words(site: Site, name: str) -> None:
    capture = MESSAGES[name]
    scripts = {
        "b_noshebang.sh": "# flux: -N1\nhostname\n",
        "b_env.sh": "#!/bin/sh\nenv\n",
        "b_badopt.sh": "#!/bin/bash\n# flux: -N2 --bogus\nhostname\n",
    }
    for path, text in scripts.items():
        (site.home / path).write_text(text)
    done = run(site, capture.command)
    assert done.returncode == capture.code
    assert done.stderr.splitlines()[-1] == capture.stderr.splitlines()[-1]


def test_labels_and_places_are_those_of_the_real_one(site: Site) -> None:
    real = captured.text("flux/run-N4-n8-label.stdout").splitlines()
    script = "echo rank=$FLUX_TASK_RANK local=$FLUX_TASK_LOCAL_ID"
    done = run(site, f"flux run -N4 -n8 --label-io sh -c '{script}'")
    assert sorted(done.stdout.splitlines()) == sorted(line.split(" host=")[0] for line in real)


def test_a_task_finds_the_variables_that_it_found_in_the_real_one(site: Site) -> None:
    real = captured.text("flux/task-env-N2n4-rank3.stdout")
    expected = {
        line.split("=", 1)[0] for line in real.splitlines() if line.startswith(("FLUX_", "PMI", "CUDA", "OMPI"))
    }
    # Set by whoever captured it, not by Flux.
    expected -= {"FLUX_IPADDR_INTERFACE"}
    lines = run(site, "flux run -N2 -n4 --label-io env").stdout.splitlines()
    mine = {
        line.split(": ", 1)[1].split("=", 1)[0]: line.split("=", 1)[1]
        for line in lines
        if line.startswith("3: ") and "=" in line
    }
    assert expected - set(mine) == set()
    assert not {name for name in mine if name.startswith("FLUX_")} - expected
    assert (mine["FLUX_TASK_RANK"], mine["FLUX_TASK_LOCAL_ID"], mine["FLUX_JOB_SIZE"], mine["PMI_RANK"]) == (
        "3",
        "1",
        "4",
        "3",
    )
    assert mine["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_batch_script_finds_the_variables_that_it_found_in_the_real_one(site: Site) -> None:
    real = captured.text("flux/batch-env.stdout")
    expected = {line.split("=", 1)[0] for line in real.splitlines() if line.startswith("FLUX_")} - {
        "FLUX_IPADDR_INTERFACE"
    }
    (site.home / "b.sh").write_text("#!/bin/sh\n# flux: -N2\n# flux: --output=b.log\nenv; pwd; flux hostlist local\n")
    job_id = run(site, "flux batch b.sh").stdout.strip()
    assert re.match(r"ƒ\w+\Z", job_id)
    ended(site, job_id)
    lines = (site.home / "b.log").read_text().splitlines()
    assert {line.split("=", 1)[0] for line in lines if line.startswith("FLUX_")} == expected
    assert lines[-2:] == [str(site.home), "host[1-2]"]


def ended(site: Site, job_id: str) -> dict[str, object]:
    def record() -> dict[str, object]:
        found: dict[str, object] = json.loads(run(site, f"flux jobs --json {job_id}").stdout)
        return found

    wait_until(lambda: record()["state"] == "INACTIVE", timeout_s=30, what=f"{job_id} has ended", every_s=0.1)
    return record()


@pytest.mark.parametrize(
    ("capture", "command", "act"),
    [
        ("jobs-one-json-completed", "flux batch -N1 --wrap true", ""),
        ("jobs-one-json-failed3", "flux batch -N1 --wrap exit 3", ""),
        ("jobs-one-json-timedout", "flux batch -N1 -t 1s --wrap sleep 30", ""),
        ("jobs-one-json-canceled-running", "flux batch -N1 --wrap sleep 30", "flux cancel"),
    ],
)
def test_records_have_the_fields_and_results_of_the_real_one(site: Site, capture: str, command: str, act: str) -> None:
    real = json.loads(captured.text(f"flux/{capture}.stdout"))
    job_id = run(site, command).stdout.strip()
    if act:
        wait_until(
            lambda: json.loads(run(site, f"flux jobs --json {job_id}").stdout)["state"] == "RUN",
            timeout_s=30,
            what="runs",
        )
        run(site, f"{act} {job_id}")
    made = ended(site, job_id)
    assert set(real) - set(made) <= {"expiration"}
    assert set(made) - set(real) == set()
    for key in ("state", "status", "result", "returncode", "success"):
        assert made[key] == real[key]
    assert {k: v for k, v in made["exception"].items() if k != "note"} == {  # type: ignore[attr-defined]
        k: v for k, v in real["exception"].items() if k != "note"
    }


def test_one_id_gives_an_object_and_several_a_list(site: Site) -> None:
    ids = [run(site, "flux batch -N1 --wrap true").stdout.strip() for _ in range(2)]
    for job_id in ids:
        ended(site, job_id)
    one = json.loads(run(site, f"flux jobs --json {ids[0]}").stdout)
    two = json.loads(run(site, f"flux jobs --json {ids[0]} {ids[1]}").stdout)
    assert one["jobid"] == ids[0]
    assert [job["jobid"] for job in two["jobs"]] == ids


def test_job_ids_are_ascii_in_a_plain_locale(site: Site) -> None:
    shown = run(site, "flux batch -N1 --wrap true", LC_ALL="C").stdout.strip()
    assert re.match(r"f\w+\Z", shown)
    ended(site, shown)


def test_gpus_are_seen_as_in_the_real_one(tmp_path: Path) -> None:
    with flux_site(tmp_path / "gpus", gpus=2) as site:
        show = "-l sh -c 'echo $CUDA_VISIBLE_DEVICES'"
        assert run(site, f"flux run -N1 -n2 -g1 {show}").stdout.splitlines() == ["0: 0,1", "1: 0,1"]
        assert run(site, f"flux run -N1 -n2 -g1 -o gpu-affinity=per-task {show}").stdout.splitlines() == [
            "0: 0",
            "1: 1",
        ]
        assert run(site, f"flux run -N1 -n2 -g1 -o gpu-affinity=off {show}").stdout.splitlines() == ["0: ", "1: "]
        assert run(site, f"flux run -N1 -n1 --exclusive {show}").stdout.splitlines() == ["0: 0,1"]
