"""What lines of logs mean: causes, what only follows from a cause, and what is harmless. The patterns of failures that
supervision goes by are those of `failure/`; here are more, with a remedy for each. Data, and nothing else."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from windlass.run.failure.last_lines import LOST_PEERS
from windlass.run.failure.signs import DISK, MEMORY, SIGNS

Kind = Literal["cause", "slow", "follows", "harmless"]
"""`slow`: nothing fails by it, but it costs time. `follows`: a rank that lost its peers says so."""


class Rule(NamedTuple):
    """The first rule that matches a line explains it."""

    name: str
    kind: Kind
    pattern: re.Pattern[str]
    meaning: str
    remedy: str = ""


def _rule(name: str, kind: Kind, pattern: str | re.Pattern[str], meaning: str, remedy: str = "") -> Rule:
    compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
    return Rule(name, kind, compiled, meaning, remedy)


HARMLESS = (
    _rule(
        "errno 97",
        "harmless",
        r"\[c10d\].{0,200}errno: 97|errno: 97 - Address family not supported",
        "the node has no IPv6; torch tries it first and goes on with IPv4",
    ),
    _rule(
        "no process group destroyed",
        "harmless",
        r"destroy_process_group\(\) was not called|process group has NOT been destroyed before",
        "the script ended without dist.destroy_process_group(); it had ended already",
        "call dist.destroy_process_group() at the end to silence it",
    ),
    _rule(
        "OMP_NUM_THREADS",
        "harmless",
        r"Setting OMP_NUM_THREADS environment variable for each process",
        "torchrun sets one thread; under windlass the plan sets the cores of the rank",
    ),
    _rule(
        "TensorFlow start-up",
        "harmless",
        r"oneDNN custom operations are on|Unable to register cu\w{1,20} factory|TF-TRT Warning|cpu_feature_guard",
        "TensorFlow says hello when something imports it",
    ),
    _rule(
        "verbs drivers",
        "harmless",
        r"libibverbs: Warning: couldn't (?:load|open) (?:driver|config)",
        "a driver for hardware that is not in this node",
    ),
    _rule(
        "NCCL plugins",
        "harmless",
        r"(?:TUNER|PROFILER|ENV|RAS)/Plugin ?: (?:Could not find|No plugin|Plugin load)",
        "NCCL looks for optional plugins; none is needed",
    ),
    _rule(
        "library warnings",
        "harmless",
        r"\b(?:Future|User|Deprecation|PendingDeprecation|Runtime|Syntax)Warning\b",
        "warnings of Python libraries",
    ),
)

CAUSES = (
    _rule(
        "out of memory (the kernel's)",
        "cause",
        r"(?i)oom[-_]kill|Out Of Memory: Killed|Killed process \d|Memory cgroup out of memory|"
        r"killed by signal: Killed",
        "the node or the job ran out of host memory, and the kernel killed a process",
        "fewer DataLoader workers or ranks per node, less pinned memory, whole nodes (--exclusive), more --mem",
    ),
    _rule(
        "shared memory",
        "cause",
        r"killed by signal: Bus error|insufficient shared memory|"
        r"unable to (?:open|write to) (?:shared memory|file </torch)",
        "DataLoader workers hand batches over through /dev/shm, which is full or too small",
        "a larger /dev/shm in the container, fewer workers, or file_system sharing (torch.multiprocessing)",
    ),
    _rule(
        "forked loader worker",
        "cause",
        r"killed by signal: Segmentation fault|segmentation fault encountered in worker|"
        r"Cannot re-initialize (?:CUDA|XPU) in forked subprocess",
        "a DataLoader worker was forked from a process with threads and a device, which it cannot use",
        "torch.multiprocessing.set_start_method('spawn') at the start of the script (pytorch issue 119845)",
    ),
    _rule(
        "MIOpen's database",
        "cause",
        r"accessing SQLite database|MIOpen.{0,200}(?:disk I/O error|database is locked|unable to open database)",
        "MIOpen keeps SQLite files in home, where many nodes lock them and shared file systems cannot",
        "MIOPEN_USER_DB_PATH and MIOPEN_CUSTOM_CACHE_DIR in /tmp of each node, as plans for AMD devices have them",
    ),
    _rule(
        "time limit",
        "cause",
        r"DUE TO TIME LIMIT|PBS: job killed: walltime|job exceeded (?:its )?(?:walltime|time limit)|"
        r"CANCELLED.{0,100}TIMEOUT",
        "the scheduler ended the job because its time was up",
        "ask for more --time, or `windlass run --until-done` with snapshots",
    ),
    _rule(
        "preemption",
        "cause",
        r"DUE TO PREEMPTION|CANCELLED.{0,100}PREEMPT",
        "the scheduler took the nodes back",
        "save snapshots; `windlass run --restarts` goes on",
    ),
    _rule(
        "lost node",
        "cause",
        r"DUE TO NODE FAILURE|NODE_FAIL|Node failure on|node .{1,100} not responding|LOST CONNECTION to node",
        "a node died or lost its network",
        "start again with --spares 1 --restarts 3; `windlass doctor` checks the nodes first",
    ),
    _rule(
        "duplicate device",
        "cause",
        r"Duplicate GPU detected|invalid device ordinal|peer mapping resources exhausted",
        "two ranks use the same device, or one uses a device that it does not see",
        "use LOCAL_RANK for the device; set one visibility variable only; see `windlass logs --where`",
    ),
    _rule(
        "driver too old",
        "cause",
        r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted",
        "torch was built for a newer CUDA than the driver runs",
        "install a torch for an older CUDA, or use a newer node",
    ),
    _rule(
        "torch for another device",
        "cause",
        r"no kernel image is available|Torch not compiled with (?:CUDA|XPU)|hipErrorNoBinaryForGpu|"
        r"invalid device function",
        "this torch was not built for these devices",
        "install the build for this vendor and architecture (`windlass doctor` shows which is used)",
    ),
    _rule(
        "network forced",
        "cause",
        r"network \S.{0,80} not found",
        "NCCL_NET forces a network whose plugin was not found",
        "put the plugin's folder into LD_LIBRARY_PATH of the ranks or bind it into the container; unset on one node",
    ),
    _rule(
        "library does not fit",
        "cause",
        r"GLIBC(?:XX)?_[\d.]{1,20}.? not found|undefined symbol: ",
        "a shared library of another version was found",
        "load the module that has it, or build the environment on this machine; mixed modules are the usual cause",
    ),
    _rule(
        "port taken",
        "cause",
        r"EADDRINUSE|errno: 98|[Aa]ddress already in use",
        "another process listens on MASTER_PORT of the first node: a leftover rank, or a fixed port used twice",
        "let windlass choose the port; `windlass doctor` finds leftovers",
    ),
    _rule(
        "offline",
        "cause",
        r"huggingface\.co.{0,200}(?:Max retries|NameResolution|unreachable|not known|name resolution)|MaxRetryError|"
        r"NameResolutionError|offline mode is enabled|couldn't connect to 'https://",
        "the script downloads at run time, and the nodes have no way out",
        "download before the job, then HF_HUB_OFFLINE=1",
    ),
    _rule(
        "name of the first node",
        "cause",
        r"errno: -?[23] - (?:Temporary|Name)|[Nn]ame or service not known|Temporary failure in name resolution|"
        r"nodename nor servname|No address associated with hostname",
        "MASTER_ADDR does not resolve on the nodes",
        "use the name of the fabric (`windlass sites show`), not the one of the login node",
    ),
    _rule(
        "ranks missing at the start",
        "cause",
        r"\d/\d{1,9} clients joined|waiting for clients|Timed out .{0,100}waiting for .{0,100}ranks|"
        r"rendezvous.{0,100}timed? ?out",
        "some ranks never reached the rendezvous: they died before it, or wait elsewhere",
        "look at ranks that say nothing here; check that all have the same MASTER_ADDR and WORLD_SIZE",
    ),
    _rule(
        "memory registration",
        "cause",
        r"(?:ibv_reg_mr|ibv_create_cq|fi_mr_reg|libfabric|cxip_|UCX|mlx5).{0,200}[Cc]annot allocate memory",
        "the network's library may not pin enough memory",
        "ulimit -l unlimited in the job (`windlass doctor` shows the limit)",
    ),
    _rule(
        "out of memory (the device's)",
        "cause",
        MEMORY,
        "an allocation failed",
        "smaller batches, activation checkpointing, sharding; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    _rule(
        "no space left",
        "cause",
        DISK,
        "a file system or a quota is full",
        "see `windlass doctor`; point HF_HOME, TORCH_HOME and caches to scratch",
    ),
    _rule(
        "open files",
        "cause",
        r"Too many open files|errno: 24\b|EMFILE",
        "the limit of open files is too low",
        "ulimit -n 65536 before the job starts",
    ),
    _rule(
        "collectives differ",
        "cause",
        r"Detected mismatch between collectives|COLLECTIVE_\w{1,40}_MISMATCH|Expected to have finished reduction",
        "ranks called different collectives, or parameters got no gradient on some",
        "a branch that not all ranks take; TORCH_DISTRIBUTED_DEBUG=DETAIL, find_unused_parameters=True",
    ),
    _rule(
        "MPI start-up",
        "cause",
        r"PMI2?_Init(?:ialized)? (?:failed|returned)|PMIX ERROR|MPIR_pmi_init|OPAL ERROR: Unreachable",
        "MPI was not started by a launcher that it understands",
        "choose --mpi pmi2, pmix or cray_shasta as the site says",
    ),
    _rule(
        "fabric resources",
        "cause",
        r"LE resources|cxip?_.{0,100}(?:ENOSPC|flow control|resource)|cq_readerr|Cassini Event Queue overflow",
        "the NIC ran out of match entries or its event queue overflowed",
        "FI_CXI_RX_MATCH_MODE=hybrid, FI_CXI_DEFAULT_CQ_SIZE=131072",
    ),
    *(_rule(sign.title, "cause", sign.pattern, sign.meaning, sign.remedy) for sign in SIGNS),
    _rule(
        "crash",
        "cause",
        r"Segmentation fault|Fatal Python error|SIGSEGV|core dumped|free\(\): invalid|double free",
        "a process crashed in native code",
        "often mixed libraries (two NCCLs, another libstdc++) or a bad node: try another, see its core or stack",
    ),
)

SLOW = (
    _rule(
        "device of the barrier",
        "slow",
        r"devices used by this process are currently unknown|Guessing device ID based on global rank",
        "the process group does not know its device: with more nodes it guesses a wrong one, and may hang",
        "init_process_group(…, device_id=torch.device('cuda', local_rank))",
    ),
    _rule(
        "loader workers",
        "slow",
        r"This DataLoader will create \d{1,9} worker processes.{0,100}(?:suggested max|more than)",
        "more workers than cores",
        "fewer workers, or more cores for each rank; `windlass doctor SCRIPT` compares them",
    ),
    _rule(
        "allocator retries",
        "slow",
        r"\b[1-9]\d{0,8} cudaMalloc retries|cudaMalloc retries: {1,8}[1-9]|num_alloc_retries: [1-9]",
        "device memory is nearly full: the allocator empties its cache again and again",
        "smaller batches, or expandable segments",
    ),
)

FOLLOWS = (
    _rule(
        "collective timed out",
        "follows",
        r"Watchdog caught collective operation timeout|watchdog caught collective",
        "the rank waited in a collective for one that did not come",
        "the cause is with the ranks that did not time out: see which below",
    ),
    _rule(
        "lost peers",
        "follows",
        LOST_PEERS,
        "another rank ended first, and this one lost its connection",
    ),
    _rule(
        "ended by the launcher",
        "follows",
        r"srun: error: .{0,200}(?:Terminated|Killed|Exited)|srun: Terminating|Force Terminated|"
        r"Sending process \d{1,9} closing signal SIGTERM|slurmstepd: error: \*\*\* STEP|mpiexec.{0,100}abort|"
        r"BAD TERMINATION",
        "the launcher ended the others after one had failed",
    ),
)

RULES = (*SLOW, *HARMLESS, *CAUSES, *FOLLOWS)

WORDS = {
    "errno 97": ("errno",),
    "no process group destroyed": ("destroy", "destroyed"),
    "OMP_NUM_THREADS": ("omp",),
    "TensorFlow start-up": ("onednn", "register", "trt", "guard"),
    "verbs drivers": ("libibverbs",),
    "NCCL plugins": ("plugin",),
    "library warnings": (
        *("futurewarning", "userwarning", "deprecationwarning", "pendingdeprecationwarning", "runtimewarning"),
        "syntaxwarning",
    ),
    "out of memory (the kernel's)": ("oom", "killed", "cgroup"),
    "shared memory": ("killed", "insufficient", "unable"),
    "forked loader worker": ("killed", "segmentation", "forked"),
    "MIOpen's database": ("sqlite", "miopen"),
    "time limit": ("limit", "walltime", "cancelled"),
    "preemption": ("preemption", "cancelled"),
    "lost node": ("node",),
    "duplicate device": ("duplicate", "ordinal", "exhausted"),
    "driver too old": ("driver", "compatibility"),
    "torch for another device": ("kernel", "compiled", "hiperrornobinaryforgpu", "function"),
    "network forced": ("network",),
    "library does not fit": ("glibc", "glibcxx", "undefined"),
    "port taken": ("eaddrinuse", "errno", "address"),
    "name of the first node": ("errno", "known", "resolution", "nodename", "hostname"),
    "ranks missing at the start": ("clients", "timed", "rendezvous"),
    "memory registration": ("allocate",),
    "out of memory (the device's)": ("memoryerror", "memory", "alloc"),
    "no space left": ("space", "quota"),
    "open files": ("files", "errno", "emfile"),
    "collectives differ": ("mismatch", "reduction"),
    "MPI start-up": ("pmi", "pmix", "opal"),
    "fabric resources": ("le", "cxi", "cxip", "readerr", "cassini"),
    "offline": ("huggingface", "maxretryerror", "nameresolutionerror", "offline", "connect"),
    "ECC error of the device (NVIDIA)": ("uncorrectable", "cudaerroreccuncorrectable", "ecc"),
    "device lost (NVIDIA)": ("lost", "fallen", "determine"),
    "assertion in a kernel (NVIDIA)": ("assert", "cudaerrorassert"),
    "illegal memory access (NVIDIA)": ("cuda", "cudaerrorillegaladdress"),
    "launch failure (NVIDIA)": ("launch", "cuda", "cudaerrorlaunchfailure", "cublas", "cudnn"),
    "no device (NVIDIA)": ("cuda", "nvidia", "busy", "cudaerrorsystemnotready", "initialized"),
    "ECC error of the device (AMD)": ("uncorrectable", "hiperroreccnotcorrectable"),
    "assertion in a kernel (AMD)": ("assert", "hiperrorassert"),
    "illegal memory access (AMD)": ("illegal", "hiperrorillegaladdress", "fault", "hsa"),
    "launch failure (AMD)": ("launch", "hiperrorlaunchfailure", "hsa", "hw", "hang"),
    "no device (AMD)": ("hip", "hiperrornodevice", "kfd", "hsa"),
    "illegal memory access (Intel)": ("segmentation", "page"),
    "device lost (Intel)": ("lost",),
    "no device (Intel)": ("xpu", "uninitialized"),
    "shared file system": ("input", "stale", "endpoint", "remote"),
    "library missing": ("shared",),
    "network down": ("route", "network"),
    "bus error": ("bus",),
    "crash": ("segmentation", "fatal", "sigsegv", "dumped", "free"),
    "device of the barrier": ("devices", "guessing"),
    "loader workers": ("dataloader",),
    "allocator retries": ("retries",),
    "collective timed out": ("watchdog",),
    "lost peers": (
        *("connection", "broken", "socket", "remote", "ncclremoteerror", "ncclsystemerror", "communicator", "watchdog"),
        *("nccl", "store", "tcpstore", "filestore", "hashstore", "prefixstore", "distnetworkerror", "diststoreerror"),
        *("peer", "lost", "heartbeat", "gloo", "timed", "meet"),
    ),
    "ended by the launcher": ("srun", "terminated", "closing", "slurmstepd", "mpiexec", "termination"),
}
"""Every line that a rule matches contains one of the rule's words, in any case. A word that contains `error` may be
part of a longer one. This decides quickly which patterns a line has to be matched with."""
