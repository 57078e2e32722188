"""Real processes that die, stop or disappear, and sources that change: right bytes or a clear error, never a hang."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuse.caches import configs, make_tree, mounts, wait_for, wait_ready
from requirements import require_fuse
from windlass.node.cache import control
from windlass.node.cache.config import dump_config
from windlass.node.sys.folders import UntrustedError

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module", autouse=True)
def _fuse() -> None:
    require_fuse()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shared")


def differences(source: Path, view: Path, timeout: float = 60) -> str:
    argv = ["diff", "-r", "--no-dereference", "-x", "absolute", str(source), str(view)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_without_its_peer_process_a_mount_reads_the_source_and_says_so_once(
    tmp_path: Path, tree: Path, number: int
) -> None:
    with mounts(tmp_path / "c", 2, tree) as caches:
        (caches.view(1, tree) / "d0/e0/f0").read_bytes()
        os.kill(caches.pids[1]["peer"], number)
        assert differences(tree, caches.view(1, tree), timeout=20) == ""
        warnings = [line for line in caches.log(1, "mount").splitlines() if "WARNING" in line]
        assert len(warnings) == 1 and "directly" in warnings[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victims", [(1,), (0,), (0, 1)], ids=["parent", "root", "both"])
def test_without_its_ancestors_a_node_still_reads_the_right_bytes_in_time(
    tmp_path: Path, tree: Path, number: int, victims: tuple[int, ...]
) -> None:
    with mounts(tmp_path / "c", 4, tree, fanout=1) as caches:
        (caches.view(3, tree) / "d0/e0/f0").read_bytes()
        for victim in victims:
            os.kill(caches.pids[victim]["peer"], number)
        # Each silent node costs its timeout (1 s here) once; then it is left out.
        assert differences(tree, caches.view(3, tree), timeout=20) == ""
        assert differences(tree, caches.view(2, tree), timeout=20) == ""


def test_a_dead_mount_process_is_an_error_at_once_and_the_next_start_sweeps(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree) as caches:
        file = caches.view(0, tree) / "sparse"
        file.read_bytes()
        os.kill(caches.pids[0]["mount"], signal.SIGKILL)
        wait_for(lambda: not control.is_running(caches.configs[0].state_dir, "mount"))
        with pytest.raises(OSError) as caught:
            list((caches.view(0, tree) / "d0").iterdir())
        assert caught.value.errno == errno.ENOTCONN
        os.kill(caches.pids[0]["peer"], signal.SIGKILL)
        wait_for(lambda: not control.is_running(caches.configs[0].state_dir, "peer"))
        assert control.is_our_mount(caches.configs[0].mount, caches.configs[0].job)
        (again,) = configs(tmp_path / "c", 1, tree, mounted=True)
        control.start(again)
        assert differences(tree, Path(again.mount + str(tree))) == ""
        control.stop(again.state_dir)
        assert not Path(again.mount).exists()


def test_what_kill_9_of_everything_leaves_is_swept_and_nothing_else(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 3, tree) as caches:
        base = Path(caches.configs[0].state_dir).parent
        strangers = base / "somebody-else"
        strangers.mkdir()
        (strangers / "config.json").write_text("{}")
        for node in (0, 1):
            for pid in caches.pids[node].values():
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(control.is_running(str(base / n), r) for n in "01" for r in ("peer", "mount")))
        assert sorted(control.sweep(str(base))) == [str(base / "0"), str(base / "1")]
        assert sorted(p.name for p in base.iterdir()) == ["2", "somebody-else"]
        assert not control.is_our_mount(caches.configs[0].mount, caches.configs[0].job)
        assert differences(tree, caches.view(2, tree), timeout=20) == "", "the living one is untouched"


def test_stop_leaves_nothing_behind_even_with_files_open(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree) as caches:
        fd = os.open(caches.view(0, tree) / "sparse", os.O_RDONLY)
        os.pread(fd, 10, 0)
        config = caches.configs[0]
        control.stop(config.state_dir)
        assert not Path(config.state_dir).exists()
        assert not Path(config.mount).exists()
        assert not control.is_our_mount(config.mount, config.job)
        with pytest.raises(OSError):
            os.pread(fd, 10, 2_000_000)
        with contextlib.suppress(OSError):
            os.close(fd)
        control.stop(config.state_dir)  # a second stop is no error


def test_a_second_start_is_refused_while_the_first_runs(tmp_path: Path, tree: Path) -> None:
    with mounts(tmp_path / "c", 1, tree) as caches:
        with pytest.raises(control.ControlError, match="in use"):
            control.start(caches.configs[0])
        assert differences(tree, caches.view(0, tree)) == ""


def test_a_cache_that_cannot_mount_says_why_and_leaves_nothing(tmp_path: Path, tree: Path) -> None:
    (config,) = configs(tmp_path / "c", 1, tree, mounted=True)
    Path(config.mount).parent.mkdir(parents=True)
    Path(config.mount).write_text("a file is in the way")
    with pytest.raises(control.ControlError, match="mount process"):
        control.start(config)
    assert not Path(config.state_dir).exists()


def test_the_cache_ends_with_the_process_that_wanted_it(tmp_path: Path, tree: Path) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    (config,) = configs(tmp_path / "c", 1, tree, mounted=True, owner_pids=(owner.pid,))
    try:
        control.start(config)
        owner.kill()
        owner.wait()
        wait_for(lambda: not any(control.is_running(config.state_dir, r) for r in ("peer", "mount")), 10, "both end")
        assert not control.is_our_mount(config.mount, config.job)
    finally:
        control.stop(config.state_dir)


def test_a_source_replaced_under_the_job_is_an_error_and_reported_never_mixed(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    size = 8 << 20
    (root / "model").write_bytes(b"o" * size)
    with mounts(tmp_path / "c", 2, root) as caches:
        with (caches.view(1, root) / "model").open("rb", buffering=0) as file:
            assert file.read(4096) == b"o" * 4096
            (root / "new").write_bytes(b"n" * size)
            (root / "new").rename(root / "model")
            seen = set()
            # The reader of the shared file system holds the old file open: then the old version comes, and whole.
            with contextlib.suppress(OSError):
                for offset in range(0, size, 65536):
                    seen |= set(os.pread(file.fileno(), 65536, size - offset - 65536))
        assert seen == {ord("o")}


def test_a_source_truncated_under_the_job_is_an_error_and_reported(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "model").write_bytes(b"o" * (8 << 20))
    with mounts(tmp_path / "c", 2, root) as caches:
        with (caches.view(1, root) / "model").open("rb", buffering=0) as file:
            assert file.read(4096) == b"o" * 4096
            os.truncate(root / "model", 4 << 20)
            with pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 65536, 7 << 20)
            assert caught.value.errno == errno.EIO
        assert caches.status(1)["changed"] >= 1
        assert "changed on the shared file system" in caches.log(1, "peer")


def test_nodes_wait_for_each_other_at_the_barrier_and_name_who_is_missing(tmp_path: Path, tree: Path) -> None:
    nodes = configs(tmp_path / "c", 3, tree, start_grace_s=3.0)
    try:
        for config in nodes[:2]:
            control.start(config)
        wait_for(lambda: control.status(nodes[0].state_dir)[0]["missing_nodes"] == [2], 20, "node 1 is known at node 0")
        assert control.status(nodes[0].state_dir)[0]["state"] == "starting"
        control.start(nodes[2])
        for config in nodes:
            assert wait_ready(config)["ready_nodes"] == 3
    finally:
        for config in nodes:
            control.stop(config.state_dir)


def test_sixteen_nodes_are_ready_soon_and_idle_quietly(tmp_path: Path, tree: Path) -> None:
    nodes = configs(tmp_path / "c", 16, tree)
    started = []
    try:
        for config in nodes:
            (tmp_path / f"config{config.node}.json").write_text(dump_config(config))
            argv = [sys.executable, "-S", "-I", "-c", START, str(SRC)]
            started.append(subprocess.Popen([*argv, str(tmp_path / f"config{config.node}.json")]))
        assert [child.wait(60) for child in started] == [0] * 16
        for config in nodes:
            wait_ready(config)
        found = control.status(nodes[0].state_dir, tree=True)
        assert sorted(s["node"] for s in found) == list(range(16))
        assert {s["state"] for s in found} == {"ready"}
        pids = [s["pid"] for s in found]
        before, since = sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(2)
        share = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - since) / 16
        assert share < 0.02, "an idle peer process uses almost no CPU"
        assert max(map(resident_mb, pids)) < 40
    finally:
        for config in nodes:
            control.stop(config.state_dir)


SRC = Path(__file__).parents[2] / "src"
START = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from windlass.node.cache import config, control\n"
    "control.start(config.read_config(sys.argv[2]))"
)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def test_a_state_folder_of_somebody_else_is_refused(tmp_path: Path, tree: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a folder of somebody else")
    (config,) = configs(tmp_path / "c", 1, tree)
    Path(config.state_dir).mkdir(parents=True)
    os.chown(config.state_dir, 65534, 65534)
    with pytest.raises(UntrustedError, match="belongs to uid 65534"):
        control.start(config)
    Path(config.state_dir).rmdir()
    Path(config.state_dir).symlink_to(tmp_path)
    with pytest.raises(UntrustedError, match="is a link"):
        control.start(config)
