"""The program of a rank with Ray, with a stand-in for the `ray` package that runs as long as `ray start --block`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import wait_until
from windlass.node.ray.cluster import CANNOT_START, RAY_DIED, authenticates, free_port, node_folder, read_place
from windlass.node.sys.identity import start_of

SRC = Path(__file__).parents[3] / "src"
# Refuses unknown flags, as click does.
STANDIN = """\
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["start"])
for flag in ("--block", "--head", "--disable-usage-stats"):
    parser.add_argument(flag, action="store_true")
for name in ("address", "port", "node-ip-address", "temp-dir", "num-cpus", "num-gpus", "dashboard-host"):
    parser.add_argument("--" + name)
for name in ("dashboard-port", "ray-client-server-port", "min-worker-port", "max-worker-port"):
    parser.add_argument("--" + name)
args = parser.parse_args()
assert args.head or args.address, "neither head nor address"
assert os.environ["RAY_AUTH_MODE"] == os.environ.get("EXPECTED", "token")
assert os.path.exists(os.environ["RAY_AUTH_TOKEN_PATH"])
if os.environ.get("FAILS") and args.address:
    raise SystemExit(os.environ["FAILS"])
with open(os.environ["STARTED"] + (".head" if args.head else ".worker"), "w") as file:
    file.write("%d %s %s" % (os.getpid(), args.num_cpus, args.num_gpus))
with open(args.temp_dir + "/ray_current_cluster", "w") as file:
    file.write("up")
time.sleep(300)
"""


class Ranks:
    """Two ranks of one cluster on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir, self.nodes = folder / "run", folder / "nodes"
        for made in (self.run_dir, self.nodes, folder / "lib" / "ray" / "scripts"):
            made.mkdir(parents=True)
        for part in ("ray", "ray/scripts"):
            (folder / "lib" / part / "__init__.py").touch()
        (folder / "lib" / "ray" / "scripts" / "scripts.py").write_text(STANDIN)
        self.install("2.52.0")
        (self.run_dir / "ray.token").write_text("secret")
        self.port = free_port("127.0.0.1")
        self.children: list[subprocess.Popen[str]] = []

    def install(self, version: str) -> None:
        about = self.folder / "lib" / "ray.dist-info" / "METADATA"
        about.parent.mkdir(exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")

    def start(self, node: int, *command: str, ray: bool = True, **environ: str) -> subprocess.Popen[str]:
        settings = {"nodes": 2, "cpus": 3, "devices": 1, "run_id": "r", "forwards": True}
        path = f"{SRC}:{self.folder / 'lib'}" if ray else str(SRC)
        code = "import sys; from windlass.node.ray.cluster import main; sys.exit(main(sys.argv[1:]))"
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                code,
                str(node),
                "127.0.0.1",
                str(self.port),
                "/tmp",
                json.dumps(settings),
                *command,
            ],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": path,
                "WINDLASS_RUN_DIR": str(self.run_dir),
                "SLURMD_NODENAME": f"n{node + 1}",
                "STARTED": str(self.folder / "started"),
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def started(self, part: str) -> list[str]:
        file = self.folder / f"started.{part}"
        wait_until(lambda: file.exists() and file.read_text(), timeout_s=20, what=f"the {part} has started")
        return file.read_text().split()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait()


def _end(child: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = child.communicate(timeout=40)
    return child.returncode, out + err


def test_the_command_runs_once_with_the_address_and_everything_ends_with_it(ranks: Ranks) -> None:
    worker = ranks.start(1, "false")
    head = ranks.start(
        0, sys.executable, "-c", "import os; print('at', os.environ['RAY_ADDRESS']); raise SystemExit(3)"
    )
    code, text = _end(head)
    assert code == 3, text
    assert "at 127.0.0.1:" in text
    assert _end(worker) == (0, "")
    pids = [int(ranks.started(part)[0]) for part in ("head", "worker")]
    assert ranks.started("worker")[1:] == ["3", "1"], "the plan's cores and devices"
    assert not [pid for pid in pids if start_of(pid)]


def test_a_ray_without_authentication_starts_only_if_the_user_accepts_it(ranks: Ranks) -> None:
    ranks.install("2.51.2")
    code, text = _end(ranks.start(0, "true"))
    assert code == CANNOT_START
    assert "Ray 2.51.2 has no authentication" in text and "RAY_AUTH_MODE=disabled" in text
    ranks.start(0, "true", RAY_AUTH_MODE="disabled", EXPECTED="disabled")
    assert ranks.started("head")
    assert [authenticates(text) for text in ("2.52.0", "3.0.0.dev0", "2.9.3", "of unknown version")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_dead_worker_is_named_with_its_node_and_ends_the_run(ranks: Ranks) -> None:
    worker, head = ranks.start(1, "false"), ranks.start(0, "sleep", "60")
    os.kill(int(ranks.started("worker")[0]), signal.SIGKILL)
    code, text = _end(worker)
    assert code == RAY_DIED
    assert "Ray on n2: the worker has failed (code -9)" in text
    time.sleep(0.5)
    head.terminate()  # as the launcher does when a rank has failed
    code, text = _end(head)
    assert code == 128 + signal.SIGTERM
    assert "the worker on n2 has died" in text


def test_a_dead_head_fails_first_and_the_worker_ends(ranks: Ranks) -> None:
    worker, head = ranks.start(1, "false"), ranks.start(0, "sleep", "60")
    ranks.started("worker")
    os.kill(int(ranks.started("head")[0]), signal.SIGKILL)
    code, text = _end(head)
    assert code == RAY_DIED
    assert "Ray on n1: the head has failed (code -9)" in text
    assert worker.poll() is None, "the launcher ends it, so that the first rank is the first to fail"
    worker.terminate()
    code, text = _end(worker)
    assert code != 0
    assert "head on the first node is gone" in text


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (
            "Version mismatch: the cluster was started with\n    Ray: 2.52.0",
            "Version mismatch: the cluster was started with | Ray:",
        ),
        ("noise\n1\tERR s.py:1 -- \x1b[31mraylet died\x1b[39m\nnoise\n2\tERR s.py:2 -- [log] noise", "raylet died\n"),
    ],
)
def test_a_ray_that_cannot_start_on_one_node_is_an_error_of_that_node(ranks: Ranks, printed: str, why: str) -> None:
    worker, head = ranks.start(1, "false", FAILS=printed), ranks.start(0, "sleep", "60")
    code, text = _end(worker)
    assert code == RAY_DIED
    assert f"Ray on n2: the start of Ray has failed (code 1): {why}" in text
    time.sleep(0.5)
    head.terminate()  # as the launcher does when a rank has failed
    code, text = _end(head)
    assert code == 128 + signal.SIGTERM
    assert "the worker on n2 has died" in text


def test_a_killed_rank_leaves_no_process_and_no_folder(ranks: Ranks) -> None:
    ranks.start(1, "false")
    head = ranks.start(0, "sleep", "60")
    pid = int(ranks.started("head")[0])
    folder = Path(f"/proc/{pid}/environ").read_bytes().split(b"WINDLASS_RAY=")[1].split(b"\0")[0].decode()
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    head.kill()
    wait_until(lambda: not Path(folder).exists(), timeout_s=20, what="the guard has removed the folder")
    assert not start_of(pid)


def test_a_program_that_overwrites_its_environment_does_not_outlive_ray(ranks: Ranks) -> None:
    file = ranks.folder / "lib" / "ray" / "scripts" / "scripts.py"
    hidden = 'import subprocess\nhidden = subprocess.Popen(["sleep", "300"], env={})\n'
    file.write_text(hidden + file.read_text().replace('"%d %s %s" % (os.getpid()', '"%d %s %s" % (hidden.pid'))
    ranks.start(1, "false")
    head = ranks.start(0, "true")
    assert _end(head)[0] == 0
    assert not start_of(int(ranks.started("head")[0]))


def test_a_python_without_ray_is_an_error_that_names_it(ranks: Ranks) -> None:
    code, text = _end(ranks.start(0, "true", ray=False))
    assert code == CANNOT_START
    assert f"{sys.executable} has no ray: install it there" in text


def test_a_port_in_use_is_an_error(ranks: Ranks) -> None:
    with socket.create_server(("127.0.0.1", ranks.port)):
        code, text = _end(ranks.start(0, "true"))
    assert code == RAY_DIED
    assert f"cannot listen at 127.0.0.1 port {ranks.port}: Address already in use" in text


def test_a_worker_with_another_key_does_not_join(ranks: Ranks, tmp_path: Path) -> None:
    head = ranks.start(0, "sleep", "60")
    ranks.started("head")
    other = Ranks(tmp_path / "other")
    (other.run_dir / "ray.token").write_text("another")
    other.port = ranks.port
    stranger = other.start(1, "false")
    time.sleep(1.0)
    assert not (tmp_path / "other" / "started.worker").exists()
    for child in (head, stranger):
        child.terminate()
        child.communicate(timeout=40)


def test_folders_of_killed_runs_are_removed_and_those_in_use_stay(tmp_path: Path) -> None:
    root = Path("/tmp") / f"wr{os.getpid()}"
    root.mkdir(mode=0o700)
    old = root / "windlass-ray-old"
    old.mkdir()
    (old / "lock").touch()
    try:
        with node_folder(str(root)) as used, node_folder(str(root)) as mine:
            assert sorted(map(str, root.iterdir())) == sorted((used, mine))
        assert not list(root.iterdir())
    finally:
        root.rmdir()


def test_a_long_root_gives_way_to_tmp_because_of_the_length_of_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    with node_folder(str(deep)) as folder:
        assert Path(folder).parent == Path("/tmp")


def test_the_place_is_read_from_the_command_line() -> None:
    settings = json.dumps({"nodes": 4, "cpus": 0, "devices": None, "run_id": "r", "forwards": False})
    place, command = read_place(["2", "n1-hsn", "20000", "/tmp", settings, "python", "train.py", "--x"])
    assert (place.node, place.address, place.port, place.nodes, place.devices) == (2, "n1-hsn", 20000, 4, None)
    assert command == ["python", "train.py", "--x"]
