"""Faults of nodes, each with the finding and the remedy that a person who knows the fault would expect.

The expectations were written before the checks. Nothing here imports a check or a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    """The finding that names it."""
    remedy: str
    """Words that its advice holds."""
    plant: str = ""
    """Shell text that runs on the node before every task."""
    mend: str = ""
    """Shell text that does what the advice says, after `plant`. `avoid`: the node is left out. Empty: not tried."""
    node: str = "node3"
    """Where it is planted; empty: in the user's own shell or command."""
    level: str = "--quick"
    vendor: str = ""
    words: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    mended_words: tuple[str, ...] | None = None
    mended_env: dict[str, str] | None = None
    beside: tuple[str, ...] = ()
    """Kinds that are true too."""
    seen_on: str | None = None
    """The subject of the finding; None: the node where it is planted."""
    prepare: str = ""
    """Shell text that runs once, on this machine, in the pretended home."""


RANK_LIMITS = ("ulimits-of-the-ranks",)
_OVER_TMP = """
mkdir -p /run/kept && mount --bind "$CORPUS" /run/kept
mount -t tmpfs -o {options} tmpfs /tmp
mkdir -p "$CORPUS" && mount --bind /run/kept "$CORPUS"
"""
_LEFTOVER = "RANK=0 WORLD_SIZE=8 MASTER_ADDR=node1 PBS_JOBID=6.head sleep 60 & left=$!"
_OTHER_USER = "for n in 1 2 3; do setpriv --reuid 1234 --clear-groups sh -c 'while :; do :; done' & done"

SPACE = [
    Fault(
        "/dev/shm of 64 MB",
        "local-space",
        "--shm-size",
        "mount -t tmpfs -o size=64m tmpfs /dev/shm",
        "mount -o remount,size=8g /dev/shm",
    ),
    Fault(
        "/dev/shm full",
        "local-space",
        "earlier jobs",
        "mount -t tmpfs -o size=1g tmpfs /dev/shm; fallocate -l 1000m /dev/shm/left",
        "rm /dev/shm/left",
    ),
    Fault("/dev/shm read-only", "local-space", "another node", "mount -t tmpfs -o ro tmpfs /dev/shm", "avoid"),
    Fault(
        "/tmp full",
        "local-space",
        "earlier jobs",
        _OVER_TMP.format(options="size=1m") + "dd if=/dev/zero of=/tmp/left bs=1M 2>/dev/null",
        "rm /tmp/left; mount -o remount,size=8g /tmp",
    ),
    Fault(
        "/tmp read-only",
        "local-space",
        "another node",
        _OVER_TMP.format(options="size=8g") + "mount -o remount,ro /tmp",
        "avoid",
        beside=("ranks",),
    ),
    Fault(
        "/tmp without free inodes",
        "local-space",
        "earlier jobs",
        _OVER_TMP.format(options="size=8g,nr_inodes=400"),
        "mount -o remount,nr_inodes=1000000 /tmp",
    ),
    Fault("TMPDIR that does not exist", "tmpdir", "unset TMPDIR", "export TMPDIR=/tmp/none", "unset TMPDIR"),
    Fault(
        "TMPDIR full",
        "tmpdir",
        "TMPDIR",
        "mkdir /run/full; mount -t tmpfs -o size=1m tmpfs /run/full; export TMPDIR=/run/full\n"
        "dd if=/dev/zero of=/run/full/left bs=1M 2>/dev/null",
        "unset TMPDIR",
    ),
    Fault(
        "TMPDIR read-only",
        "tmpdir",
        "unset TMPDIR",
        "mkdir /run/ro; mount -t tmpfs -o ro tmpfs /run/ro; export TMPDIR=/run/ro",
        "unset TMPDIR",
    ),
    Fault(
        "HOME read-only on one node",
        "home",
        "leave the node out",
        'mount --bind "$HOME" "$HOME"; mount -o remount,ro,bind "$HOME"',
        "avoid",
        beside=("ranks",),
    ),
    Fault("HOME missing on one node", "home", "HOME", "export HOME=/nonexistent", "export HOME=$CORPUS/home"),
    Fault(
        "HOME full on one node",
        "home",
        "~/.cache",
        "mkdir /run/home; mount -t tmpfs -o size=1m tmpfs /run/home; export HOME=/run/home\n"
        "dd if=/dev/zero of=/run/home/left bs=1M 2>/dev/null",
        "rm /run/home/left; mount -o remount,size=8g $HOME",
    ),
    Fault(
        "HOME full on the first node",
        "home",
        "~/.cache",
        "mkdir /run/home; mount -t tmpfs -o size=1m tmpfs /run/home; export HOME=/run/home\n"
        "dd if=/dev/zero of=/run/home/left bs=1M 2>/dev/null",
        "rm /run/home/left; mount -o remount,size=8g $HOME",
        node="node1",
    ),
]

LIMITS = [
    Fault("64 open files", "ulimits", "ulimit -n 4096", "ulimit -S -n 64", "ulimit -S -n 4096", beside=RANK_LIMITS),
    Fault("100 processes", "ulimits", "ulimit -u 4096", "ulimit -S -p 100", "ulimit -S -p 4096", beside=RANK_LIMITS),
    Fault(
        "address space of 20 GB",
        "ulimits",
        "ulimit -v unlimited",
        "ulimit -S -v 20000000",
        "ulimit -S -v unlimited",
        beside=RANK_LIMITS,
    ),
    Fault(
        "files of at most 100 MB",
        "ulimits",
        "ulimit -f unlimited",
        "ulimit -S -f 200000",
        "ulimit -S -f unlimited",
        beside=RANK_LIMITS,
    ),
    Fault(
        "30 minutes of CPU time",
        "ulimits",
        "ulimit -t unlimited",
        "ulimit -S -t 1800",
        "ulimit -S -t unlimited",
        beside=RANK_LIMITS,
    ),
    Fault(
        "data segment of 4 GB",
        "ulimits",
        "ulimit -d unlimited",
        "ulimit -S -d 4000000",
        "ulimit -S -d unlimited",
        beside=RANK_LIMITS,
    ),
    Fault("stack of 64 KB", "ulimits", "ulimit -s 8192", "ulimit -S -s 256", "ulimit -S -s 8192", beside=RANK_LIMITS),
    Fault(
        "64 KB of locked memory with RDMA",
        "ulimits",
        "ulimit -l unlimited",
        "mkdir /sys/class/infiniband; mkdir /sys/class/infiniband/mlx5_0; ulimit -S -l 64",
        beside=RANK_LIMITS,
        vendor="nvidia",
    ),
]

CPUS_AND_MEMORY = [
    Fault(
        "cores taken away from the node's ranks",
        "affinity",
        "--exclusive",
        "taskset -p -c 0 $$ > /dev/null",
        "taskset -p -c 0-1 $$ > /dev/null",
        beside=("threads",),
    ),
    Fault(
        "another CPU type on one node",
        "hardware",
        "node",
        "sed 's/^model name.*/model name : Another CPU 9000/' /proc/cpuinfo > /run/cpuinfo\n"
        "mount --bind /run/cpuinfo /proc/cpuinfo",
        "avoid",
    ),
    Fault(
        "fewer CPUs on one node",
        "hardware",
        "node",
        'awk \'BEGIN{RS="";ORS="\\n\\n"} NR==1\' /proc/cpuinfo > /run/cpuinfo\nmount --bind /run/cpuinfo /proc/cpuinfo',
        "avoid",
    ),
    Fault(
        "less memory on one node",
        "hardware",
        "node",
        "sed 's/^MemTotal:.*/MemTotal: 8000000 kB/; s/^MemAvailable:.*/MemAvailable: 7900000 kB/' /proc/meminfo"
        " > /run/meminfo; mount --bind /run/meminfo /proc/meminfo",
        "avoid",
    ),
    Fault(
        "memory held by others",
        "memory",
        "node",
        "sed 's/^MemAvailable:.*/MemAvailable: 900000 kB/' /proc/meminfo > /run/meminfo\n"
        "mount --bind /run/meminfo /proc/meminfo",
        "avoid",
    ),
    Fault(
        "a job that may use a small part of the memory",
        "memory",
        "--mem",
        "mount -t tmpfs tmpfs /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory\n"
        "echo 20000000 > /sys/fs/cgroup/memory/memory.usage_in_bytes\n"
        "echo 1000000000 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
        "echo 40000000000 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
    ),
    Fault("processes of another user on the cores", "busy-node", "node", _OTHER_USER, "avoid"),
    Fault(
        "another job of the same user on the cores",
        "busy-node",
        "end them",
        "for n in 1 2 3; do PBS_JOBID=6.head sh -c 'while :; do :; done' & done",
        "avoid",
    ),
    Fault("ranks of an earlier run", "leftover-processes", "kill", _LEFTOVER, "kill $left"),
]

NETWORK = [
    Fault(
        "the first node's name does not resolve",
        "rendezvous",
        "suffix",
        "echo 127.0.0.1 localhost > /run/hosts; mount --bind /run/hosts /etc/hosts",
        "umount /etc/hosts",
    ),
    Fault(
        "the first node is not reached",
        "rendezvous",
        "firewall",
        '[ -n "$CORPUS_NET" ] || CORPUS_NET=1 NODE_CORPUS=inside exec unshare --net sh "$0" "$@"\n'
        "sed 's/.* node1/192.0.2.1 node1/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts",
        "avoid",
    ),
    Fault(
        "a clock that is 500 s ahead",
        "clock",
        "chrony",
        "export LD_PRELOAD=$CORPUS/ahead.so",
        "unset LD_PRELOAD",
        beside=("same-environment",),
    ),
    Fault(
        "the rendezvous port is taken",
        "port",
        "--master-port",
        "python3 -c 'import socket, time; s = socket.create_server((\"\", 29711)); time.sleep(60)' & sleep 0.5",
        node="node1",
        words=("--master-port", "29711"),
        mended_words=(),
    ),
    Fault(
        "a fabric interface is missing",
        "network-interfaces",
        "another node",
        "rm -r /sys/class/net/hsn0",
        "avoid",
        vendor="nvidia",
        beside=("interface-variables", "hardware", "same-environment"),
    ),
    Fault(
        "a fabric interface is down",
        "network-interfaces",
        "another node",
        "echo down > /sys/class/net/hsn0/operstate",
        "avoid",
        vendor="nvidia",
        beside=("interface-variables",),
    ),
    Fault(
        "another MTU on one node", "hardware", "node", "echo 1500 > /sys/class/net/hsn0/mtu", "avoid", vendor="nvidia"
    ),
    Fault(
        "a link at a lower speed",
        "hardware",
        "node",
        "echo 100000 > /sys/class/net/hsn0/speed",
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "NCCL_SOCKET_IFNAME of another site",
        "interface-variables",
        "leave the variable unset",
        node="",
        words=("--env", "NCCL_SOCKET_IFNAME=ib0"),
        mended_words=(),
        seen_on="node[1-4]",
    ),
    Fault(
        "NCCL_SOCKET_IFNAME from the profile of one node",
        "same-environment",
        "NCCL_SOCKET_IFNAME",
        "export NCCL_SOCKET_IFNAME=ib0",
        "unset NCCL_SOCKET_IFNAME",
    ),
    Fault(
        "no network plugin on one node",
        "network-plugin",
        "module",
        "unset LD_LIBRARY_PATH",
        "export LD_LIBRARY_PATH=$CORPUS/plugin",
        vendor="nvidia",
        beside=("same-environment",),
    ),
    Fault(
        "a network plugin that does not load",
        "network-plugin",
        "library",
        "mkdir /run/p; echo > /run/p/libnccl-net.so; export LD_LIBRARY_PATH=/run/p",
        "export LD_LIBRARY_PATH=$CORPUS/plugin",
        vendor="nvidia",
        beside=("same-environment",),
    ),
    Fault(
        "two network plugins",
        "network-plugin",
        "leave one",
        "mkdir /run/p; cp /lib/x86_64-linux-gnu/libm.so.6 /run/p/libnccl-net.so\n"
        "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/run/p",
        "export LD_LIBRARY_PATH=$CORPUS/plugin",
        vendor="nvidia",
        beside=("same-environment",),
    ),
    Fault(
        "a libfabric without the fabric's provider",
        "libfabric",
        "module",
        "mkdir /run/b; printf '#!/bin/sh\\necho tcp:\\n' > /run/b/fi_info; chmod +x /run/b/fi_info\nPATH=/run/b:$PATH",
        "PATH=${PATH#*:}",
        vendor="nvidia",
        beside=("same-environment",),
    ),
]

_SMI = """mkdir /run/b; cp $CORPUS/tools/nvidia/nvidia-smi /run/b; PATH=/run/b:$PATH
smi() {{ sed -i "$1" /run/b/nvidia-smi; }}
{}"""
_AMD = _SMI.replace("nvidia/nvidia-smi", "amd/rocm-smi").replace("nvidia-smi", "rocm-smi")
_INTEL = _SMI.replace("nvidia/nvidia-smi", "intel/xpu-smi").replace("nvidia-smi", "xpu-smi")

DEVICES = [
    Fault("a device is missing", "devices", "another node", _SMI.format("smi '/^1,/d'"), "avoid", vendor="nvidia"),
    Fault(
        "memory of a device is in use",
        "device-memory",
        "earlier job",
        _SMI.format("smi '/^1,/s/ 4,/ 30000,/'"),
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "uncorrected memory errors",
        "device-errors",
        "another node",
        _SMI.format("smi '/^1,/s/ 0, 0x/ 3, 0x/'"),
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "rows of device memory wait for a reset",
        "device-errors",
        "another node",
        _SMI.format("smi '/^1,/s/No, No/Yes, No/'"),
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "a device throttled by heat",
        "device-clocks",
        "another",
        _SMI.format("smi '/^1,/s/0x0000000000000000/0x0000000000000040/'"),
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "devices with less memory",
        "device-memory",
        "node type",
        _SMI.format("smi 's/ 40960,/ 20480,/'"),
        "avoid",
        vendor="nvidia",
    ),
    Fault(
        "driver and library differ",
        "device-errors",
        "another node",
        "mkdir /run/b; PATH=/run/b:$PATH; cat > /run/b/nvidia-smi <<'X'\n#!/bin/sh\n"
        "echo Failed to initialize NVML: Driver/library version mismatch\nexit 18\nX\nchmod +x /run/b/nvidia-smi",
        "avoid",
        vendor="nvidia",
        beside=("devices",),
    ),
    Fault(
        "nvidia-smi hangs",
        "devices",
        "another",
        "mkdir /run/b; PATH=/run/b:$PATH; printf '#!/bin/sh\\nexec sleep 60\\n' > /run/b/nvidia-smi\n"
        "chmod +x /run/b/nvidia-smi",
        "avoid",
        vendor="nvidia",
        beside=("device-errors",),
    ),
    Fault(
        "no device files and no tool",
        "devices",
        "another node",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "avoid",
        vendor="nvidia",
        beside=("same-environment", "libfabric"),
    ),
    Fault(
        "a driver that is too old for this torch",
        "torch",
        "driver",
        "mount -t tmpfs tmpfs /proc/driver; mkdir /proc/driver/nvidia\n"
        "echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  x' > /proc/driver/nvidia/version",
        "avoid",
        vendor="nvidia",
        beside=("hardware",),
    ),
    Fault(
        "CUDA_VISIBLE_DEVICES from the profile of one node",
        "same-environment",
        "CUDA_VISIBLE_DEVICES",
        "export CUDA_VISIBLE_DEVICES=0",
        "unset CUDA_VISIBLE_DEVICES",
        vendor="nvidia",
    ),
    Fault("an AMD device is missing", "devices", "another node", _AMD.format("smi '/card1/d'"), "avoid", vendor="amd"),
    Fault(
        "memory of an AMD device is in use",
        "device-memory",
        "earlier job",
        _AMD.format("smi '/card1/s/10960896/30960896000/'"),
        "avoid",
        vendor="amd",
    ),
    Fault(
        "an Intel device is missing",
        "devices",
        "another node",
        _INTEL.format("smi '/\"device_id\": 1,/d'"),
        "avoid",
        vendor="intel",
    ),
    Fault(
        "an Intel device is not healthy",
        "device-errors",
        "another node",
        _INTEL.format('smi \'s/"status": "OK"/"status": "Warning"/\''),
        "avoid",
        vendor="intel",
    ),
]

SETTINGS = [
    Fault(
        "FI_MR_CACHE_MONITOR=memhooks",
        "settings",
        "userfaultfd",
        node="",
        words=("--env", "FI_MR_CACHE_MONITOR=memhooks"),
        mended_words=("--env", "FI_MR_CACHE_MONITOR=userfaultfd"),
    ),
    Fault(
        "a misspelt variable",
        "settings",
        "NCCL_SOCKET_IFNAME",
        node="",
        words=("--env", "NCCL_SOCKET_IF_NAME=eth0"),
        mended_words=("--env", "NCCL_SOCKET_IFNAME=eth0"),
    ),
    Fault(
        "NCCL_NET forced on one node",
        "settings",
        "unset NCCL_NET",
        node="",
        words=("--nodes", "1", "--env", "NCCL_NET=AWS Libfabric"),
        mended_words=("--nodes", "1"),
    ),
    Fault(
        "NCCL_P2P_DISABLE left switched on", "settings", "unset", node="", env={"NCCL_P2P_DISABLE": "1"}, mended_env={}
    ),
    Fault(
        "visible devices that disagree",
        "settings",
        "set one",
        node="",
        env={"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "2"},
        mended_env={"ROCR_VISIBLE_DEVICES": "0,1"},
    ),
    Fault(
        "srun inside every rank",
        "launcher-nesting",
        "leave it out",
        node="",
        words=("--", "srun", "python3", "train.py"),
        mended_words=("--", "{python}", "train.py"),
    ),
    Fault(
        "windlass inside torchrun",
        "launcher-nesting",
        "without torchrun",
        node="",
        env={"TORCHELASTIC_RUN_ID": "none"},
        mended_env={},
    ),
    Fault(
        "a proxy without no_proxy",
        "proxies",
        "no_proxy",
        node="",
        env={"http_proxy": "http://proxy:3128"},
        mended_env={"http_proxy": "http://proxy:3128", "no_proxy": "localhost,127.0.0.1,.local"},
    ),
    Fault(
        "more workers than cores",
        "loader-workers",
        "workers",
        node="",
        prepare="touch train.py",
        words=("train.py", "--num-workers", "99"),
        mended_words=("train.py", "--num-workers", "1"),
    ),
    Fault(
        "OMP_NUM_THREADS=64 in the user's shell",
        "threads",
        "OMP_NUM_THREADS=2",
        node="",
        words=("--env", "OMP_NUM_THREADS=64"),
        mended_words=("--env", "OMP_NUM_THREADS=2"),
        seen_on="node[1-4]",
    ),
    Fault(
        "another environment is active",
        "python",
        "--python",
        node="",
        env={"VIRTUAL_ENV": "/opt/other"},
        mended_env={},
        seen_on="node[1-4]",
    ),
    Fault(
        "a proxy from the profile of one node",
        "same-environment",
        "http_proxy",
        "export http_proxy=http://proxy:3128",
        "unset http_proxy",
    ),
    Fault(
        "a library preloaded on one node",
        "same-environment",
        "LD_PRELOAD",
        "export LD_PRELOAD=libm.so.6",
        "unset LD_PRELOAD",
    ),
    Fault(
        "NCCL_ALGO from the profile of one node",
        "same-environment",
        "NCCL_ALGO",
        "export NCCL_ALGO=Ring",
        "unset NCCL_ALGO",
    ),
]

_TORCH = (
    "torch=$($PYTHON -c 'import importlib.util as u; print(u.find_spec(\"torch\").submodule_search_locations[0])')\n"
)

ENVIRONMENT = [
    Fault(
        "torch is not installed on one node",
        "torch",
        "install",
        _TORCH + "mount -t tmpfs tmpfs $torch",
        "umount $torch",
        beside=("same-environment",),
    ),
    Fault(
        "another torch on one node",
        "same-environment",
        "one environment",
        _TORCH + "sed 's/^__version__.*/__version__ = \"2.4.0\"/' $torch/version.py > /run/version.py\n"
        "mount --bind /run/version.py $torch/version.py",
        "umount $torch/version.py",
    ),
    Fault(
        "a library of torch is missing on one node",
        "torch",
        "anew",
        _TORCH + ": > /run/empty; mount --bind /run/empty $torch/lib/libtorch_cpu.so",
        "umount $torch/lib/libtorch_cpu.so",
        level="",
        beside=("ranks", "all-reduce"),
    ),
    Fault(
        "a file of the environment was deleted",
        "torch",
        "anew",
        _TORCH + ": > /run/empty; mount --bind /run/empty $torch/../typing_extensions.py",
        "umount $torch/../typing_extensions.py",
        level="",
        beside=("ranks", "all-reduce"),
    ),
    Fault(
        "LD_LIBRARY_PATH hides a library of torch",
        "torch",
        "LD_LIBRARY_PATH",
        "mkdir /run/l; echo x > /run/l/libc10.so; echo x > /run/l/libgomp.so.1; echo x > /run/l/libstdc++.so.6\n"
        "export LD_LIBRARY_PATH=/run/l",
        "unset LD_LIBRARY_PATH",
        level="",
        beside=("ranks", "all-reduce", "same-environment"),
    ),
    Fault(
        "PYTHONPATH hides a module of torch",
        "torch",
        "PYTHONPATH",
        "mkdir /run/m; echo 'raise ImportError(\"old\")' > /run/m/typing_extensions.py\n"
        "export PYTHONPATH=/run/m:$PYTHONPATH",
        "export PYTHONPATH=${PYTHONPATH#/run/m:}",
        level="",
        beside=("ranks", "all-reduce", "same-environment"),
    ),
    Fault(
        "PYTHONPATH has another torch",
        "torch",
        "PYTHONPATH",
        "mkdir -p /run/m/torch; echo 'import none_such' > /run/m/torch/__init__.py\n"
        "export PYTHONPATH=/run/m:$PYTHONPATH",
        "export PYTHONPATH=${PYTHONPATH#/run/m:}",
        level="",
        beside=("ranks", "all-reduce", "same-environment"),
    ),
    Fault(
        "importing torch hangs on one node",
        "torch",
        "node",
        "mkdir -p /run/m; echo 'import time; time.sleep(300)' > /run/m/typing_extensions.py\n"
        "export PYTHONPATH=/run/m:$PYTHONPATH",
        "avoid",
        level="",
        beside=("ranks", "all-reduce", "same-environment"),
    ),
    Fault(
        "a file beside the script hides a module of Python",
        "shadowed-modules",
        "rename",
        node="",
        prepare="mkdir -p work work2; touch work/train.py work2/train.py; echo 'x = 1' > work/random.py",
        words=("work/train.py",),
        mended_words=("work2/train.py",),
    ),
    Fault(
        "a stale lock of an extension build",
        "extension-lock",
        "rm",
        "mkdir -p /run/home/.cache/torch_extensions/py311_cpu/mine; export HOME=/run/home\n"
        "touch -d '2 hours ago' /run/home/.cache/torch_extensions/py311_cpu/mine/lock",
        "rm /run/home/.cache/torch_extensions/py311_cpu/mine/lock",
    ),
    Fault(
        "another Python on one node",
        "same-environment",
        "one environment",
        "export OTHER=1",
        "unset OTHER",
        prepare='printf \'#!/bin/sh\\n[ -n "$OTHER" ] && exec /usr/bin/python3 "$@"\\nexec "$PYTHON" "$@"\\n\' '
        "> python; chmod +x python",
        words=("--python", "{home}/python"),
        beside=("python", "torch"),
    ),
    Fault(
        "the environment is not there on one node",
        "ranks",
        "node",
        "mount -t tmpfs tmpfs $(dirname $(dirname $PYTHON))",
        "avoid",
    ),
    Fault(
        "a slow file system under the environment",
        "environment",
        "stage",
        "export LD_PRELOAD=$CORPUS/slow.so",
        "unset LD_PRELOAD",
        beside=("same-environment",),
    ),
]

NODE = [
    Fault("the node does not answer", "answer", "another node", "sleep 300; exit 1", "avoid"),
    Fault("nothing can be started on the node", "answer", "another node", "exit 1", "avoid"),
    Fault(
        "the first node does not answer",
        "answer",
        "another node",
        "sleep 300; exit 1",
        "avoid",
        node="node1",
        beside=("rendezvous",),
    ),
    Fault("ranks hang on one node", "ranks", "node", 'case "$*" in *rank.sh*) sleep 300; exit 1;; esac', "avoid"),
    Fault(
        "a rank crashes in its first collective on one node",
        "ranks",
        "node",
        "mkdir /run/m; printf 'import os, torch.distributed as d\\nd.all_reduce = lambda *_, **__: os.abort()\\n' "
        "> /run/m/crash.py\n"
        "printf 'import sys, threading, time\\ndef late():\\n'"
        '\'    while not hasattr(sys.modules.get("torch.distributed"), "all_reduce"): time.sleep(0.01)\\n\''
        "'    import crash\\nthreading.Thread(target=late, daemon=True).start()\\n' > /run/m/sitecustomize.py\n"
        "export PYTHONPATH=/run/m:$PYTHONPATH",
        "avoid",
        level="",
        beside=("all-reduce", "same-environment"),
    ),
    Fault("ranks die on one node", "ranks", "node", 'case "$*" in *rank.sh*) kill -9 $$; exit 137;; esac', "avoid"),
]

GROUPS = {
    "space": SPACE,
    "limits": LIMITS,
    "CPUs and memory": CPUS_AND_MEMORY,
    "network": NETWORK,
    "devices": DEVICES,
    "settings": SETTINGS,
    "environment": ENVIRONMENT,
    "whole node": NODE,
}
FAULTS = [fault for group in GROUPS.values() for fault in group]
