"""Job files in a real Slurm of four nodes: every component on its nodes, at the same time, killed one by one."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from cluster.command import allocated, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from waiting import wait_until

pytestmark = pytest.mark.slurm

EXAMPLES = Path(__file__).parents[2] / "examples" / "components"
STANDINS = Path(__file__).parents[1] / "standins"
SERVER = """
import http.server, os, sys
print('host', os.environ.get('SLURMD_NODENAME'), 'rank', os.environ['RANK'], flush=True)
if os.environ['RANK'] == '0':
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b'ok')
        def log_message(self, *words): pass
    http.server.ThreadingHTTPServer(('', int(sys.argv[1])), Handler).serve_forever()
import time; time.sleep(600)
"""
CLIENT = """
import os, sys, urllib.request
print('host', os.environ.get('SLURMD_NODENAME'), urllib.request.urlopen(sys.argv[1]).read(), sys.argv[2:], flush=True)
"""
JOB = """
[components.server]
script = "server.py"
args = ["{server.port}"]
nodes = 2
ready = { http = "/", within_s = 60 }
end = "service"

[components.client]
script = "client.py"
args = ["http://{server.addr}:{server.port}/", "{server.hosts}"]
nodes = 2
ranks_per_node = 2
needs = ["server"]
"""


def _folder(tmp_path: Path, job: str = JOB) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "job.toml").write_text(job)
    return tmp_path


def test_components_have_their_own_nodes_and_find_each_other(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, _folder(tmp_path), "--nodes=4", "--exclusive") as job:
        done = job.windlass("run", "--show", "all", "job.toml")
    assert done.code == 0, done.text
    assert "[server 0] host nid0001" in done.stdout
    assert "[server 1] host nid0002" in done.stdout
    assert "[client 0] host nid0003 b'ok'" in done.stdout
    assert "[client 3] host nid0004 b'ok'" in done.stdout


def test_components_that_share_nodes_are_bound_to_different_cores(slurm_bound: SlurmCluster, tmp_path: Path) -> None:
    show = "import os; print('cpus', sorted(os.sched_getaffinity(0)), os.environ['SLURMD_NODENAME'], flush=True)"
    job = f"""
[components.one]
command = ["python3", "-c", "{show}"]
cores_per_node = 1
nodes = 2
[components.two]
command = ["python3", "-c", "{show}"]
cores_per_node = 1
nodes = 2
"""
    with allocated(slurm_bound, _folder(tmp_path, job), "--nodes=2", "--exclusive") as allocation:
        done = allocation.windlass("run", "--show", "all", "job.toml")
    assert done.code == 0, done.text
    assert "[one 0] cpus [0] nid0001" in done.stdout
    assert "[one 1] cpus [0] nid0002" in done.stdout
    assert "[two 0] cpus [1] nid0001" in done.stdout
    assert "[two 1] cpus [1] nid0002" in done.stdout


def test_a_submitted_job_runs_its_components_and_records_them(slurm: SlurmCluster, tmp_path: Path) -> None:
    env = {**windlass_env(_folder(tmp_path)), "WINDLASS_STATE": str(tmp_path / "state")}
    sent = slurm.run(windlass_argv("submit", "--time", "5", "job.toml"), timeout_s=60, env=env, cwd=tmp_path)
    assert sent.code == 0, sent.text
    (run,) = (tmp_path / "runs").iterdir()
    wait_until((run / "result.json").exists, timeout_s=60, what="the job ends", state=slurm.state)
    assert json.loads((run / "result.json").read_text())["outcome"] == "ok", (run / "job.log").read_text()
    states = {one["name"]: one["state"] for one in json.loads((run / "components.json").read_text())}
    assert states == {"server": "stopped", "client": "done"}
    assert json.loads((run / "components/client/result.json").read_text())["nodes"] == 2


@pytest.mark.slow
def test_vllm_over_two_nodes_answers_its_client(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "--nodes=3", "--exclusive") as allocation:
        path = f"{STANDINS}:{allocation.env.get('PATH') or os.environ['PATH']}"
        done = allocation.windlass("run", str(EXAMPLES / "vllm" / "vllm.toml"), env={"PATH": path})
    assert done.code == 0, done.text
    assert "[client 0] answer of 2 nodes" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_a_trainer_learns_with_a_server_and_a_reward_worker_on_three_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "--nodes=3", "--exclusive") as allocation:
        done = allocation.windlass("run", str(EXAMPLES / "grpo" / "grpo.toml"), timeout_s=200)
    assert done.code == 0, done.text
    assert float(done.stdout.rpartition("reward ")[2]) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "client"])
def test_the_component_whose_rank_is_killed_is_named_with_its_node(
    slurm: SlurmCluster, tmp_path: Path, victim: str
) -> None:
    wait = JOB.replace('script = "client.py"', 'script = "wait.py"')
    (tmp_path / "wait.py").write_text(
        "import sys, time, urllib.request\nprint('up', flush=True)\nwhile True:\n"
        "    urllib.request.urlopen(sys.argv[1]).read(); time.sleep(0.2)\n"
    )
    with allocated(slurm, _folder(tmp_path, wait), "--nodes=4", "--exclusive") as allocation:
        started = slurm.popen(windlass_argv("run", "job.toml"), env=allocation.env, cwd=tmp_path)
        run = wait_until(lambda: next(iter((tmp_path / "runs").glob("*")), None), timeout_s=30, what="the run folder")
        seats = run / "components" / victim / "where"
        wait_until(lambda: _up(run / "components/client/out"), timeout_s=60, what="the client runs", state=slurm.state)
        line = sorted(seats.iterdir())[0].read_text().splitlines()[0].split()
        os.kill(int(line[-1]), signal.SIGKILL)
        out, err = started.communicate(timeout=60)
    assert started.returncode == 137, out + err
    host = "nid0001" if victim == "server" else "nid0003"
    assert re.search(rf"windlass: {victim} failed: rank \d on {host} was killed by SIGKILL", err), err
    if victim == "server":
        assert "client failed" not in err or "client failed because server failed first: rank 0 on nid0001" in err
    states = {one["name"]: one["state"] for one in json.loads((run / "components.json").read_text())}
    assert states[victim] == "failed"


def _up(out: Path) -> bool:
    return any("up" in path.read_text() for path in out.glob("*.log"))


@pytest.mark.slow
def test_a_killed_server_restarts_alone_and_its_client_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = JOB.replace('script = "client.py"', 'script = "patient.py"').replace(
        'end = "service"', 'end = "service"\nrestarts = 1'
    )
    (tmp_path / "patient.py").write_text(
        "import pathlib, sys, time, urllib.request\nprint('up', flush=True)\nend = time.monotonic() + 60\n"
        "while not pathlib.Path('killed').exists() and time.monotonic() < end: time.sleep(0.1)\n"
        "while time.monotonic() < end:\n"
        "    try: print(urllib.request.urlopen(sys.argv[1]).read(), flush=True); break\n"
        "    except OSError: time.sleep(0.2)\n"
    )
    with allocated(slurm, _folder(tmp_path, job), "--nodes=4", "--exclusive") as allocation:
        started = slurm.popen(windlass_argv("run", "job.toml"), env=allocation.env, cwd=tmp_path)
        run = wait_until(lambda: next(iter((tmp_path / "runs").glob("*")), None), timeout_s=30, what="the run folder")
        wait_until(lambda: _up(run / "components/client/out"), timeout_s=60, what="the client runs", state=slurm.state)
        seat = sorted((run / "components/server/where").iterdir())[0].read_text().splitlines()[0].split()
        os.kill(int(seat[-1]), signal.SIGKILL)
        wait_until((run / "components/server/attempt-1").exists, timeout_s=60, what="the server starts again")
        (tmp_path / "killed").touch()
        out, err = started.communicate(timeout=90)
    assert started.returncode == 0, out + err
    assert "b'ok'" in out
    assert not (run / "components/client/attempt-1").exists()
