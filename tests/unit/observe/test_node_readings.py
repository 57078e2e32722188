"""What the kernel of a node shows: synthetic files in the kernel's own forms, and this machine's."""

from __future__ import annotations

import os
from pathlib import Path

from looping import each
from windlass.node.sampler import host
from windlass.node.sampler.sampler import Sampler


def _write(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


def test_slingshot_and_infiniband_count_beside_the_interfaces_of_the_kernel(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "sys/class/cxi/cxi0/device/telemetry/hni_sts_rx_ok_octets": "1000@1757000000.123\n",
            "sys/class/cxi/cxi0/device/telemetry/hni_sts_tx_ok_octets": "2000@1757000000.123\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "10\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "20\n",
            "sys/class/net/eth0/device/vendor": "x",
            "sys/class/net/eth0/statistics/rx_bytes": "5",
            "sys/class/net/eth0/statistics/tx_bytes": "7",
            "sys/class/net/lo/statistics/rx_bytes": "99999",
            "sys/class/net/lo/statistics/tx_bytes": "99999",
        },
    )
    assert host.network_bytes(root) == (1000 + 40 + 5, 2000 + 80 + 7)


def test_lustre_nfs_and_disks_are_told_apart(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/fs/lustre/llite/scratch-ffff8a/stats": "snapshot_time 1.5 secs.nsecs\n"
            "read_bytes 3 samples [bytes] 4096 1048576 2101248\nwrite_bytes 1 samples [bytes] 10 10 10\n"
            "open 12 samples [regs]\n",
            "proc/self/mountstats": "device srv:/home mounted on /home with fstype nfs4 statvers=1.1\n"
            "\tbytes:\t1 2 3 4 5000 6000 7 8\n",
            "proc/diskstats": " 259 0 nvme0n1 100 0 8 0 50 0 16 0 0 0 0\n 259 1 nvme0n1p1 9 0 9 0 9 0 9 0 0 0 0\n"
            "   7 0 loop0 1 0 999 0 0 0 0 0 0 0 0\n",
        },
    )
    counted = host.counters(root)
    assert (counted.shared_read, counted.shared_write) == (2101248 + 5000, 10 + 6000)
    assert (counted.disk_read, counted.disk_write) == (8 * 512, 16 * 512)
    assert counted.rx_bytes is None


def test_the_working_set_is_that_of_the_group_with_the_limit(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    root = _write(
        tmp_path,
        {
            "proc/41/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            f"{group}/step_0/user/task_0/memory.max": "max\n",
            f"{group}/step_0/user/task_0/memory.current": "1\n",
            f"{group}/memory.max": "1000\n",
            f"{group}/memory.current": "900\n",
            f"{group}/memory.stat": "anon 100\ninactive_file 300\nactive_file 5\n",
            "proc/meminfo": "MemTotal: 16 kB\nMemFree: 1 kB\nMemAvailable: 4 kB\n",
        },
    )
    assert host.memory(41, root) == (600, 1000)
    assert host.memory(42, root) == (12 * 1024, 16 * 1024)
    assert host.memory(None, str(tmp_path / "nothing")) == (None, None)


def test_control_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/slurm/uid_5/job_7"
    root = _write(
        tmp_path,
        {
            "proc/41/cgroup": "5:cpuset:/\n4:memory:/slurm/uid_5/job_7/step_0\n",
            f"{group}/step_0/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/step_0/memory.usage_in_bytes": "1\n",
            f"{group}/memory.limit_in_bytes": "5000\n",
            f"{group}/memory.usage_in_bytes": "4000\n",
            f"{group}/memory.stat": "inactive_file 1\ntotal_inactive_file 1500\n",
        },
    )
    assert host.memory(41, root) == (2500, 5000)


def test_power_is_the_nodes_own_meter_or_its_packages(tmp_path: Path) -> None:
    cray = _write(tmp_path / "cray", {"sys/cray/pm_counters/power": "812 W 1757000000000000 us\n"})
    assert host.power_w(cray) == 812.0
    meter = _write(
        tmp_path / "meter",
        {"sys/class/hwmon/hwmon0/name": "power_meter\n", "sys/class/hwmon/hwmon0/power1_average": "450000000\n"},
    )
    assert host.power_w(meter) == 450.0
    rapl = _write(
        tmp_path / "rapl",
        {"sys/class/powercap/intel-rapl:0/energy_uj": "3000000", "sys/class/powercap/intel-rapl:0:0/energy_uj": "9"},
    )
    assert (host.power_w(rapl), host.energy_j(rapl)) == (None, 3.0)


def test_the_processes_below_a_rank_are_found_on_this_machine() -> None:
    everyone = host.processes()
    mine = host.tree(os.getppid(), everyone)
    assert os.getpid() in mine
    assert everyone[os.getpid()].memory_bytes > 1 << 20
    assert host.tree(-5, everyone) == []


def test_this_machine_tells_of_its_cpus_and_memory() -> None:
    counted = host.counters()
    assert counted.cpu_all is not None
    assert counted.cpu_busy is not None
    assert 0 <= counted.cpu_busy <= counted.cpu_all
    used, limit = host.memory(os.getpid())
    assert used is not None
    assert limit is not None
    assert 0 < used <= limit


def test_a_kernel_that_does_not_count_the_wait_for_a_core_is_told_from_one_without_any(tmp_path: Path) -> None:
    root = _write(tmp_path, {"proc/7/task/7/schedstat": "0 0 1\n", "proc/8/task/8/schedstat": "5000 2000000000 3\n"})
    assert host.run_delay_s(7, root) is None
    assert host.run_delay_s(8, root) == 2.0


@each(
    ("used", "idle", "stolen", "taken"),
    [
        (50, 0, 0, 0.5),
        (100, 0, 0, 0.0),
        (50, 20, 0, 0.0),  # a core was free
        (50, 0, 50, 0.0),  # the hypervisor took it
        (0, 0, 0, None),  # the processes of the rank are not below it
    ],
)
def test_what_others_take_of_the_ranks_cores_is_what_the_ranks_did_not_use(
    tmp_path: Path, used: int, idle: int, stolen: int, taken: float | None
) -> None:
    """Two looks, 100 ticks apart on every core of this process; a core that it may not use counts for nothing."""
    ticks, me = os.sysconf("SC_CLK_TCK"), os.getpid()
    cpus = os.sched_getaffinity(0)
    sampler = Sampler(str(tmp_path), str(tmp_path))
    found = None
    for look in (0, 1):
        busy = (100 - idle - stolen) * look
        lines = [f"cpu{cpu} {busy} 0 0 {idle * look} 0 0 0 {stolen * look} 0 0" for cpu in sorted(cpus)]
        _write(
            tmp_path, {"proc/stat": "\n".join(["cpu  1 2 3 4 5 6 7 8", *lines, f"cpu9999 0 0 0 {99 * look} 0 0 0 0"])}
        )
        spent = 1.0 + used * look * len(cpus) / ticks
        found = sampler._taken([me], {me: host.ProcessUsage(1, spent, 0)})
    assert found == taken
