"""The Flux stand-in behaves as the captured flux-core did: messages, codes, variables, records, signals."""

from __future__ import annotations

import json
import os
import re
import select
import signal
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
        assert sorted(run(site, f"flux run -N1 -n2 -g1 {show}").stdout.splitlines()) == ["0: 0,1", "1: 0,1"]
        assert run(site, f"flux run -N1 -n2 -g1 -o gpu-affinity=per-task {show}").stdout.splitlines() == [
            "0: 0",
            "1: 1",
        ]
        assert run(site, f"flux run -N1 -n2 -g1 -o gpu-affinity=off {show}").stdout.splitlines() == ["0: ", "1: "]
        assert run(site, f"flux run -N1 -n1 --exclusive {show}").stdout.splitlines() == ["0: 0,1"]


def start(site: Site, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-c", command], env=site.env, cwd=site.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def running(site: Site, *names: str) -> None:
    """Each of these files is there: what writes them runs."""
    wait_until(lambda: all((site.home / name).exists() for name in names), timeout_s=30, what=f"{names} are there")


@pytest.mark.parametrize("second", ["flux run -N1 -n1 echo second", "flux run -N4 --exclusive echo second"])
def test_a_step_waits_for_the_end_of_an_exclusive_one(site: Site, second: str) -> None:
    first = start(site, "flux run -N4 -n4 --exclusive sh -c 'touch up; while [ ! -e go ]; do sleep 0.1; done'")
    running(site, "up")
    other = start(site, second)
    wait_until(lambda: "SCHED" in run(site, "flux jobs -n -o '{status}'").stdout, timeout_s=30, what="it waits")
    assert other.poll() is None
    (site.home / "go").touch()
    assert "second" in other.communicate(timeout=60)[0]
    assert first.communicate(timeout=60) == ("", "")


def test_steps_that_share_nodes_by_cores_run_together_as_far_as_there_are_cores(site: Site) -> None:
    one = start(site, "flux run -N1 -n1 sh -c 'touch one; while [ ! -e two ]; do sleep 0.1; done'")
    two = start(site, "flux run -N1 -n1 sh -c 'touch two; while [ ! -e one ]; do sleep 0.1; done'")
    assert [child.communicate(timeout=60)[1] for child in (one, two)] == ["", ""]


def test_exec_runs_beside_an_exclusive_step_on_the_ranks_that_are_named(site: Site) -> None:
    first = start(site, "flux run -N4 -n4 --exclusive sh -c 'touch up; while [ ! -e go ]; do sleep 0.1; done'")
    running(site, "up")
    show = "sh -c 'echo $(uname -n) $(flux getattr rank) $(flux getattr hostlist)'"
    done = run(site, f"flux exec --rank=1-2 {show}")
    assert sorted(done.stdout.splitlines()) == ["host2 1 host[1-4]", "host3 2 host[1-4]"]
    assert first.poll() is None
    (site.home / "go").touch()
    assert first.communicate(timeout=60) == ("", "")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("flux exec -r 3,1 hostname", 1, "flux-exec: failed to decode idset '3,1': Invalid argument"),
        ("flux exec -r 7 hostname", 1, "flux-exec: One or more invalid --ranks specified: 7"),
        ("flux exec -r 0-1 sh -c 'exit $(flux getattr rank)'", 1, "1: Exit 1"),
        ("flux exec -r 0-1 sh -c 'kill -9 $$'", 137, "[0-1]: Killed"),
        ("flux exec -r 1 /n", 127, "flux-exec: Error: rank 1: /n: error launching process: No such file or directory"),
    ],
)  # fmt: skip
def test_exec_says_what_the_real_one_said(site: Site, command: str, code: int, said: str) -> None:
    done = run(site, command)
    assert (done.returncode, done.stderr.strip()) == (code, said)


def test_exec_holds_its_output_back_unless_told_to_write_lines(site: Site) -> None:
    script = "sh -c 'echo early; touch up; while [ ! -e go ]; do sleep 0.1; done'"
    held = start(site, f"flux exec -n -r 0 {script}")
    running(site, "up")
    assert held.stdout is not None
    assert not select.select([held.stdout], [], [], 0.5)[0]
    (site.home / "go").touch()
    assert held.wait(timeout=60) == 0
    assert held.stdout.read() == "early\n"
    (site.home / "go").unlink()
    live = start(site, f"stdbuf -oL flux exec -n -r 0 {script}")
    assert live.stdout is not None and live.stdout.readline() == "early\n"
    (site.home / "go").touch()
    assert live.wait(timeout=60) == 0
    for child in (held, live):
        child.communicate(timeout=30)


@pytest.mark.parametrize(("sig", "code"), [("TERM", 7), ("INT", 7), ("HUP", -1), ("USR1", -10), ("USR2", -12)])
def test_exec_passes_on_two_signals_and_takes_its_processes_with_it_on_others(site: Site, sig: str, code: int) -> None:
    script = "trap 'exit 7' TERM INT HUP USR1 USR2; touch up.$(flux getattr rank); while :; do sleep 0.1; done"
    (site.home / "script").write_text(script)
    child = start(site, "exec flux exec -n -r 0-1 sh ./script")
    running(site, "up.0", "up.1")
    child.send_signal(getattr(signal, f"SIG{sig}"))
    assert child.wait(timeout=60) == code
    child.communicate(timeout=30)


def test_the_input_of_a_task_has_ended_before_it_began(site: Site) -> None:
    code = "import select; p = select.poll(); p.register(0); print(p.poll(0)[0][1] & select.POLLHUP)"
    for launch in ("flux run -N1 -n1", "flux exec -n -r 0"):
        assert int(run(site, f'{launch} python3 -c "{code}"').stdout) > 0


def test_a_run_is_ended_after_its_first_task_left_unless_told_otherwise(site: Site) -> None:
    script = "sh -c 'test $FLUX_TASK_RANK = 0 || sleep 4'"
    done = run(site, f"flux run -N2 -n2 -o exit-timeout=1s {script}")
    assert done.returncode == 1
    assert "task rank 0 on host host1 exited (Exit 0) and exit-timeout=1s has expired" in done.stderr
    assert run(site, f"flux run -N2 -n2 -o exit-timeout=none {script}").returncode == 0


def test_exit_on_error_judges_only_the_first_exit(site: Site) -> None:
    script = "case $FLUX_TASK_RANK in 0) exit 0;; 1) sleep 0.5; exit 3;; *) sleep 2; echo late;; esac"
    done = run(site, f"flux run -N2 -n4 -o exit-on-error -o exit-timeout=none -l sh -c '{script}'")
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (3, ["", "2: late", "3: late"])


def test_last_words_are_lost_with_exit_on_error_and_kept_in_files(site: Site) -> None:
    script = "if [ $FLUX_TASK_RANK = 1 ]; then echo early; sleep 1; echo last words; exit 3; fi; sleep 20"
    command = f"-N2 -n2 -o exit-on-error -l sh -c '{script}'"
    done = run(site, f"flux run {command}")
    assert (done.returncode, done.stdout) == (3, "1: early\n")
    done = run(site, f"flux run --output=all.log {command}")
    assert done.stdout == ""
    assert done.stderr.splitlines()[:2] == [f"[0-1]: {name} redirected to all.log" for name in ("stdout", "stderr")]
    fatal = "sh: task rank 1 on host host2 failed (Exit 3) and exit-on-error is set"
    lines = (site.home / "all.log").read_text().splitlines()
    assert sorted(lines) == ["1: early", "1: last words", f"flux-shell[0]: FATAL: task-exit: {fatal}"]


def test_a_last_line_without_its_end_is_glued_to_the_next(site: Site) -> None:
    done = run(site, "flux run -N2 -n2 -l sh -c 'printf part'")
    assert done.stdout in {"0: part1: part", "1: part0: part"}


def test_a_piece_on_standard_error_is_labelled_unless_lines_are_asked_for(site: Site) -> None:
    script = 'python3 -u -c \'import os, time; os.write(2, b"a"); time.sleep(0.5); os.write(2, b"b\\n")\''
    assert run(site, f"flux run -N1 -n1 -l {script}").stderr == "0: a0: b\n"
    assert run(site, f"flux run -N1 -n1 -l -o output.stderr.buffer.type=line {script}").stderr == "0: ab\n"


def batch(site: Site, text: str, options: str = "") -> str:
    """The log of a batch job on two nodes that has ended."""
    (site.home / "b.sh").write_text(f"#!/bin/bash\n{text}\n")
    ended(site, run(site, f"flux batch -N2 --output=b.log {options} b.sh").stdout.strip())
    return (site.home / "b.log").read_text()


def test_a_batch_job_knows_its_rest_of_time_and_its_parent(site: Site) -> None:
    commands = (
        "flux job timeleft", "flux run -N1 -n1 flux job timeleft", "flux getattr size", "flux --parent getattr size",
        "flux --parent jobs -n -o '{status}'",
    )  # fmt: skip
    inside, step, size, outer, state = batch(site, "\n".join(commands), "-t 2m").split()
    assert 60 < int(step) <= int(inside) <= 120
    assert (size, outer, state) == ("2", "4", "RUN")
    assert run(site, "flux job timeleft").stdout == "4294967295\n"


def test_at_the_time_limit_the_script_hears_two_signals_and_its_ranks_one(site: Site) -> None:
    said = batch(
        site,
        "trap 'echo script ALRM' ALRM; trap 'echo script HUP' HUP\n"
        "flux run -N2 -n2 bash -c 'trap \"echo rank ALRM; exit\" ALRM; while :; do sleep 0.1; done' &\n"
        "while kill -0 $!; do sleep 0.1; done 2>/dev/null; wait",
        "-t 3s",
    )
    assert {"script ALRM", "script HUP", "rank ALRM"} <= set(said.splitlines())
    assert said.count("rank ALRM") == 2


def test_a_batch_job_waits_until_its_nodes_are_free(site: Site) -> None:
    (site.home / "b.sh").write_text("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.1; done\n")
    first = run(site, "flux batch -N3 b.sh").stdout.strip()
    wait_until(lambda: run(site, f"flux jobs -o {{status}} {first}").stdout.strip() == "RUN", timeout_s=30, what="runs")
    second = run(site, "flux batch -N3 --wrap true").stdout.strip()
    assert run(site, f"flux jobs -o {{status}} {second}").stdout.strip() == "SCHED"
    (site.home / "go").touch()
    for job_id in (first, second):
        assert ended(site, job_id)["result"] == "COMPLETED"


def test_resources_are_listed_by_state_and_summed_where_nothing_else_tells_lines_apart(site: Site) -> None:
    columns = "{queue}|{nnodes}|{ncores}|{ngpus}|{propertiesx}"
    asked = f"flux resource list --states=free,down,allocated --no-header --format='{columns}'"
    (line,) = run(site, asked).stdout.splitlines()
    queue, nodes, cores, *_ = line.split("|")
    assert (queue, int(cores) > int(nodes) > 1) == ("", True)
    assert run(site, "flux resource list -n -s down -o '{state} {nnodes}'").stdout == "down 0\n"
    refused = run(site, "flux resource list --states=bogus")
    assert (refused.returncode, refused.stderr) == (1, "flux-resource: ERROR: Invalid resource state bogus specified\n")
