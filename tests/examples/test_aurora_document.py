"""Every setting of Aurora's PyTorch page (edition for torch 2.3) beside what the plan says: the same, or why not."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from looping import each
from unit.cli.typed import in_process
from windlass.plan.environment.ranks import RANK_VARIABLES

TUNED = ("--cpu-bind", "three-cores", "--with", "oneccl-tuning", "--with", "cxi-overflow", "--with", "tf32")
LOGGED = ("--with", "fabric-log", "--with", "ccl-root", "--with", "mpi-host-only")
CARDS = ("--device-unit", "card")
SHARED = ("--ranks-per-device", "4")

# name, options, value of the page
SAME = [
    # A node's devices
    ("ZE_FLAT_DEVICE_HIERARCHY", CARDS, "COMPOSITE"),
    ("ZEX_NUMBER_OF_CCS", SHARED, "0:4,1:4,2:4,3:4,4:4,5:4,6:4,7:4,8:4,9:4,10:4,11:4"),
    # Cores of communication threads
    ("HOROVOD_THREAD_AFFINITY", TUNED, "4,12,20,28,36,44,56,64,72,80,88,96"),
    ("CCL_WORKER_AFFINITY", TUNED, "5,13,21,29,37,45,57,65,73,81,89,97"),
    # The job script of 512 nodes
    ("FI_CXI_DEFAULT_CQ_SIZE", TUNED, "131072"),
    ("FI_CXI_OFLOW_BUF_SIZE", TUNED, "8388608"),
    ("FI_CXI_CQ_FILL_PERCENT", TUNED, "20"),
    ("FI_LOG_LEVEL", LOGGED, "warn"),
    ("FI_LOG_PROV", LOGGED, "cxi"),
    ("MPIR_CVAR_ENABLE_GPU", LOGGED, "0"),
    ("CCL_KVS_GET_TIMEOUT", TUNED, "600"),
    ("IPEX_FP32_MATH_MODE", TUNED, "TF32"),
    ("NUMEXPR_NUM_THREADS", (), "64"),
    ("LD_LIBRARY_PATH", LOGGED, "${CCL_ROOT}/lib"),
    ("CPATH", LOGGED, "${CCL_ROOT}/include"),
    ("LIBRARY_PATH", LOGGED, "${CCL_ROOT}/lib"),
    ("CCL_PROCESS_LAUNCHER", (), "pmix"),
    ("CCL_ATL_TRANSPORT", (), "mpi"),
    ("CCL_BCAST", TUNED, "double_tree"),
    ("CCL_KVS_MODE", (), "mpi"),
    ("CCL_CONFIGURATION_PATH", TUNED, ""),
    ("CCL_CONFIGURATION", TUNED, "cpu_gpu_dpcpp"),
    ("CCL_KVS_CONNECTION_TIMEOUT", TUNED, "600"),
    ("CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD", TUNED, "1024"),
    ("CCL_KVS_USE_MPI_RANKS", TUNED, "1"),
    # Scripts that ask PALS for their place find it
    ("PALS_LOCAL_RANKID", (), "{local_rank}"),
]

# name, options, value of the page, value of the plan, why
OTHER = [
    (
        *("CCL_ALLREDUCE_SCALEOUT", TUNED, "rabenseifner", "direct:0-1048576;rabenseifner:1048577-max"),
        "the site's oneCCL page has since put `direct` in front for small messages",
    ),
    (
        "CCL_ALLREDUCE",
        TUNED,
        "topo",
        None,
        "of older scripts: the site's set has the split by size instead",
    ),
    ("CCL_LOG_LEVEL", TUNED, "WARN", None, "oneCCL's default; `--comm-log` sets `info`"),
    ("FI_CXI_OVFLOW_BUF_SIZE", TUNED, "8388608", None, "misspelt on the page: the name is FI_CXI_OFLOW_BUF_SIZE"),
    (
        "ZE_AFFINITY_MASK",
        (*CARDS, "--devices", "one"),
        "0",
        "{device}",
        "the page masks one process by hand: rank 0 has 0",
    ),
]


@functools.cache
def plan(options: tuple[str, ...], nodes: str = "512") -> dict[str, Any]:
    words = ("--site", "aurora", "--nodes", nodes, "--account", "A", "--time", "1:59:00", "--name", "a.name", *options)
    with tempfile.TemporaryDirectory() as folder:
        done = in_process("plan", "--json", *words, cwd=Path(folder))
    assert done.code == 0, done.text
    return dict(json.loads(done.stdout))


def value(options: tuple[str, ...], name: str) -> str | None:
    """What the ranks of this plan find in the variable; None where the plan does not set it."""
    found = [str(setting["value"]) for setting in plan(options)["environment"] if setting["name"] == name]
    found += [variable.value for variable in RANK_VARIABLES if variable.name == name]
    return found[0] if found else None


@each(("name", "options", "page"), SAME, ids=[name for name, _, _ in SAME])
def test_the_plan_has_the_value_of_the_page(name: str, options: tuple[str, ...], page: str) -> None:
    assert value(options, name) == page


@each(("name", "options", "page", "ours", "why"), OTHER, ids=[row[0] for row in OTHER])
def test_a_value_that_differs_from_the_page_has_a_reason(
    name: str, options: tuple[str, ...], page: str, ours: str | None, why: str
) -> None:
    assert why
    assert value(options, name) == ours
    assert ours != page, "the same by now: move it to the list above"


def launch(options: tuple[str, ...], nodes: str = "512") -> list[str]:
    return [word for argument in plan(options, nodes)["launch"] for word in argument["words"]]


def test_the_launch_line_has_the_ranks_and_the_cores_of_the_page() -> None:
    cores = "list:2-4:10-12:18-20:26-28:34-36:42-44:54-56:62-64:70-72:78-80:86-88:94-96"
    words = launch(TUNED)
    assert words[:5] == ["mpiexec", "-n", str(512 * 12), "--ppn", "12"]
    assert f"--cpu-bind={cores}" in words
    streamers = "1:2:4:6:8:10:12:14:16:18:20:22:24:26:28:30:32:34:36:38:40:42:44:46"
    streamers += ":53:54:56:58:60:62:64:66:68:70:72:74:76:78:80:82:84:86:88:90:92:94:96:98"
    words = launch(SHARED, "1")
    assert words[:5] == ["mpiexec", "-n", "48", "--ppn", "48"]
    assert {f"--cpu-bind=list:{streamers}", "--pmi=pmix", "--envall"} <= set(words)


def test_four_ranks_share_each_of_the_twelve_tiles_and_six_ranks_have_a_card_each() -> None:
    ranks = plan(SHARED, "1")["binding"]["ranks"]
    assert [rank["devices"] for rank in ranks] == [[rank // 4] for rank in range(48)]
    assert [rank["devices"] for rank in plan(CARDS, "1")["binding"]["ranks"]] == [[card] for card in range(6)]
    assert plan((), "1")["ranks_per_node"] == 12


def test_the_batch_script_has_the_directives_of_the_page() -> None:
    had = {" ".join(line["words"]) for line in plan(TUNED)["directives"]}
    page = {"-l select=512", "-l place=scatter", "-l walltime=01:59:00", "-A A", "-k doe", "-j oe", "-N a.name"}
    assert page <= had
    named = {
        " ".join(line["words"]) for line in plan(("--directive", "-l filesystems=home", "-p", "prod"))["directives"]
    }
    assert {"-l filesystems=home", "-q prod"} <= named


def test_the_module_and_the_limit_on_core_files_are_those_of_the_page() -> None:
    assert plan(())["modules"] == ["frameworks"]
    assert [limit["words"] for limit in plan(())["limits"]] == [["-c", "0"]]
