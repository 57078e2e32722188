"""NVIDIA's MPS as a service of the agent, with a stand-in for its control daemon. No GPU is here."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planning import plan_for
from unit.cli.typed import windlass
from waiting import wait_until
from windlass.agents.ship import agent_argv
from windlass.agents.start import AgentManifest, ServiceSpec, agent_bytes
from windlass.errors import UsageError
from windlass.model.plan import Setting, plan_to_json
from windlass.model.topology import Core, Topology
from windlass.node.sys.identity import start_of
from windlass.node.sys.messages import read_messages
from windlass.plan.agents import plan_agents

STANDIN = Path(__file__).parents[1] / "standins" / "mps"


class MpsAgent:
    """An agent with the service, on one node."""

    def __init__(self, folder: Path, **environ: str) -> None:
        service = ServiceSpec(name="mps", entry="windlass.node.agent.mps:make", settings={"folder": "m"})
        manifest = AgentManifest(
            run_id="r", hosts=("n1",), node_variables=("NODE",), folder=str(folder / "agents"), services=(service,)
        )
        bundle = folder / "agent.pyz"
        bundle.write_bytes(agent_bytes(manifest, b"k" * 32))
        bundle.chmod(0o600)
        path = {"PATH": f"{STANDIN}:{os.defpath}"}
        self.folder = folder / "agents" / "m" / "r.0"
        self.child = subprocess.Popen(
            agent_argv(str(bundle), sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**path, "NODE": "0", "CUDA_VISIBLE_DEVICES": "2", **environ},
            text=True,
        )

    def line(self) -> dict[str, Any]:
        assert self.child.stdout
        return read_messages([self.child.stdout.readline()])[0]

    def daemon(self) -> int:
        file = self.folder / "pipe" / "nvidia-cuda-mps-control.pid"
        wait_until(lambda: file.exists() and file.read_text(), timeout_s=10, what="the daemon runs")
        return int(file.read_text())

    def end(self) -> list[dict[str, Any]]:
        out, _ = self.child.communicate(timeout=60)
        return read_messages(out.splitlines())


@pytest.fixture(params=[{}])
def mps(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MpsAgent]:
    made = MpsAgent(tmp_path, **request.param)
    yield made
    made.child.kill()
    made.child.communicate(timeout=30)


def test_the_daemon_is_up_before_the_ranks_in_private_folders_and_quits_at_the_end(mps: MpsAgent) -> None:
    assert "up" in mps.line()
    pid = mps.daemon()
    for name in ("pipe", "log"):
        assert stat.S_IMODE((mps.folder / name).stat().st_mode) == 0o700
    assert (mps.folder / "log" / "control.log").read_text() == "devices all\n", "ranks number all devices of the node"
    assert mps.end() == [{"node": 0, "ended": {"mps": {"killed": 0}}}]
    assert not start_of(pid)
    assert not mps.folder.exists()


@pytest.mark.parametrize("mps", [{"STANDIN_IGNORES_QUIT": "1"}], indirect=True)
def test_a_daemon_that_does_not_quit_is_killed(mps: MpsAgent) -> None:
    mps.line()
    pid = mps.daemon()
    os.kill(pid, signal.SIGSTOP)  # it does not even answer
    assert mps.end()[-1]["ended"] == {"mps": {"killed": 1}}
    assert not start_of(pid)


@pytest.mark.parametrize(
    ("mps", "why"),
    [({"STANDIN_FAILS": "1"}, "Cannot find MPS control daemon"), ({"PATH": os.defpath}, "No such file or directory")],
    indirect=["mps"],
)
def test_ranks_run_without_a_daemon_that_cannot_start_and_the_user_is_told(mps: MpsAgent, why: str) -> None:
    assert "up" in mps.line()
    told = mps.end()
    assert f"MPS does not start, the ranks of a device run in time slices: {why}"[:60] in told[0]["news"]
    assert why in told[0]["news"]
    assert not mps.folder.exists()


def test_only_ranks_that_share_an_nvidia_device_get_mps() -> None:
    plan, _ = plan_for("perlmutter", "x", account="A", ranks_per_device=2)
    assert plan.agents is not None
    assert plan.agents.services == ("mps",)
    assert "--gres=none" not in [word for argument in plan.agents.launch for word in argument.words]
    for site, options in (
        ("perlmutter", {}),
        ("frontier", {"ranks_per_device": 2}),
        ("aurora", {"ranks_per_device": 2}),
        ("perlmutter", {"ranks_per_device": 2, "users": {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"}}),
        ("perlmutter", {"ranks_per_device": 2, "env": (("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mine"),)}),
    ):
        assert plan_for(site, "x", account="A", **options)[0].agents is None, (site, options)


@pytest.mark.parametrize(("ranks", "share"), [(2, "100"), (4, "50"), (8, "25")])
def test_a_rank_may_use_twice_its_share_of_the_device(ranks: int, share: str) -> None:
    plan, _ = plan_for("perlmutter", "x", account="A", ranks_per_device=ranks)
    assert {s.name: s.value for s in plan.environment}["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == share


def test_three_ranks_per_tile_of_aurora_are_refused() -> None:
    with pytest.raises(UsageError, match="--ranks-per-device 3") as error:
        plan_for("aurora", "x", account="A", ranks_per_device=3)
    assert error.value.hint == "a tile can be split into 1, 2 or 4 parts"


def test_a_rank_of_a_run_finds_the_daemon_and_it_ends_with_the_run(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    here = Topology(arch="x86_64", cores=(Core(cpus=(one,)),), allowed=(one,))
    code = "import os; pipes = os.environ['CUDA_MPS_PIPE_DIRECTORY']; print('at', pipes, os.listdir(pipes))"
    plan, _ = plan_for("workstation", sys.executable, "-c", code, topology=here, ranks_per_device=2)
    share = Setting(name="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", value="100", because="two ranks share a device")
    request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
    plan = msgspec.structs.replace(plan, environment=(*plan.environment, share), request=request)
    plan = msgspec.structs.replace(plan, agents=plan_agents(plan))
    (tmp_path / "plan.json").write_bytes(plan_to_json(plan))
    path = f"{STANDIN}:{os.environ['PATH']}"
    assert windlass("runs", "trust", "--yes", "plan.json", cwd=tmp_path).code == 0
    done = windlass("run", "--plan", "plan.json", "--show", "all", cwd=tmp_path, env={"PATH": path})
    assert done.code == 0, done.text
    seen = [line.split()[2] for line in done.stdout.splitlines() if " at " in line]
    assert len(seen) == 1, done.text
    assert "'control'" in done.stdout
    assert not Path(seen[0]).exists()
    done = windlass("run", "--plan", "plan.json", cwd=tmp_path, env={"PATH": path, "STANDIN_FAILS": "1"})
    assert "MPS does not start" in done.text, done.text
    assert "CUDA_MPS_PIPE_DIRECTORY" in done.text, "the rank has no daemon"
