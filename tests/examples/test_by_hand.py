"""The table of all steps of the documents: its commands work, what it names exists, and no step is missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from unit.cli.test_docs_commands import printed
from unit.cli.typed import SRC, in_process
from windlass.cli.main import command_parser

ROOT = SRC.parent
PAGE = ROOT / "docs" / "explanation" / "by-hand.md"
_CELL = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
_FILE = re.compile(r"(?:tests|results|examples|docs)/[\w./-]*")

# What each document has people type, set or run, in its order: a step of it must be in that section of the page.
STEPS = {
    "AI frameworks at scale (Aurora)": (
        *("simple_with_copper.sh", "module load copper", "launch_copper.sh", "/tmp/${USER}/copper", "PYTHONPATH"),
        *("--cpu-bind=list:4:9:14", "--genvall", "torch.__file__", "with and without Copper", "is not needed"),
        *("CPU affinity", "module show frameworks_optimized", "module use /soft/datascience/frameworks_optimized/"),
        *("module load frameworks_optimized", "mpiexec -n 24 -ppn 12", "${CPU_BIND}", "a different value for any"),
    ),
    "Extreme scale AI (LUMI)": (
        *("sif-images", "$WITH_CONDA", "salloc", "--reservation", "torch.cuda.device_count()", "mask_cpu"),
        *("NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "AWS CXI plugin", "NCCL_DEBUG`", "NCCL_DEBUG_SUBSYS"),
        *("NCCL_DEBUG_FILE", "MASTER_ADDR", "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "brought back", "run.sh"),
        *("GPT-neo-IMDB-finetuning.py", "set_start_method('spawn')", "batch of 24", "srun -N1 -n8", "-B .:/workdir"),
        *("/var/spool/slurmd", "/opt/cray", "libcxi.so.1", "rank 14", "rocprof --hip-trace --stats", "32 steps"),
        *("RCCL kernels", "cv_example.py", "/scratch", "/flash", "/pfs", "$SLURM_LOCALID", "$SLURM_NPROCS"),
        *("$SLURM_PROCID", "--dist-url", "MIOpen cache filled", "rocm-smi", "cv_example_ds.py", "--deepspeed_config"),
        *("--local_rank", "packages that the image lacks", "other storage", "tar -C /tmp -xf", "is it faster"),
    ),
    "PyTorch on Frontier": (
        *(
            "PrgEnv-gnu",
            "miniforge3",
            "craype-accel-amd-gfx90a",
            "conda create",
            "source activate",
            "pip3 install torch",
        ),
        *("older wheels", "PyTorch from source", "mpi4py", "multinode_olcf.py", "torch's device is 0", "#SBATCH"),
        *("unset SLURM_EXPORT_ENV", "--export=NONE", "hostname -i", "MIOPEN_USER_DB_PATH", "rm -rf", "srun -N2 -n16"),
        *("--gpu-bind=closest", "snapshot", "NCCL_SOCKET_IFNAME=hsn0", "MASTER_PORT=3442", "torchrun", "sbcast"),
        *("conda-pack", "NVMe", "AWS-OFI-RCCL", "LD_LIBRARY_PATH", "NCCL_NET_GDR_LEVEL", "NCCL_ALGO", "NCCL_CROSS_NIC"),
        *("NCCL_DEBUG=info", "http_proxy", "errno 97", "HF_DATASETS_CACHE"),
    ),
    "PyTorch on Aurora": (
        *("module use /soft/modulefiles", "module load frameworks", "get-device-info.py", "COMPOSITE", "6 cards"),
        *("intel_extension_for_pytorch", "ZE_AFFINITY_MASK=0", "0.0,0.1", "AMP", "TorchScript", "torch.compile"),
        *("more than 16 nodes", "IPEX_FP32_MATH_MODE=TF32", "CPU_BIND", "HOROVOD_THREAD_AFFINITY"),
        *("CCL_WORKER_AFFINITY", "backend='ccl'", "ipex.optimize", "DDP or Horovod", "512 nodes", "#PBS"),
        *("FI_CXI_DEFAULT_CQ_SIZE", "FI_CXI_OFLOW_BUF_SIZE", "FI_CXI_CQ_FILL_PERCENT", "FI_LOG_LEVEL", "FI_LOG_PROV"),
        *("MPIR_CVAR_ENABLE_GPU", "channels_last", "NUMEXPR_NUM_THREADS", "$CCL_ROOT/lib", "ulimit -c 0"),
        *("ZEX_NUMBER_OF_CCS", "48 ranks", "--ppd=4", "collectives then run on the CPU"),
    ),
    "Containers and benchmarks (HPE)": (
        *("podman", "make build-pytorch-ngc", "WITH_MPI=1 WITH_OFI=1", "HPC_LIBS_DIR", "-ss", "SIF", "/host/lib"),
        *("/host/usr", "entry point", "nccl-tests, compiled", "NCCL_ALGO=Tree", "all_reduce_perf -b 1M -e 8G -f 2"),
        *("DDP benchmark", "nvidia-smi topo -m", "Horovod's synthetic benchmark", "--fp16-allreduce", "TensorFlow"),
        *("run_clm.py", "DeepSpeed config", "edits", "HF_TOKEN", "samples × 6 × 7b × length", "1 to 8 nodes"),
    ),
}


class Row(NamedTuple):
    section: str
    by_hand: str
    ours: str
    shown: str


def rows() -> list[Row]:
    found, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("|") and not line.startswith(("|---", "| by hand")):
            cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
            assert len(cells) == 3, line
            found.append(Row(section, *cells))
    return found


def commands() -> list[list[str]]:
    """Those that are not tried as they are printed, with the commands of all pages."""
    tried = {command for _, command in printed()}
    texts = [code for row in rows() for code in _CODE.findall(row.ours + " " + row.shown)]
    return [shlex.split(text)[1:] for text in texts if text.startswith("windlass ") and text not in tried]


def test_every_step_of_the_documents_is_on_the_page() -> None:
    said = {section: "\n".join(row.by_hand for row in rows() if row.section == section) for section in STEPS}
    assert [row.section for row in rows() if row.section not in STEPS] == []
    missing = [(name, step) for name, steps in STEPS.items() for step in steps if step not in said[name]]
    assert missing == []


def test_every_step_has_an_answer_and_something_that_shows_it() -> None:
    assert [row.by_hand for row in rows() if not row.ours or not row.shown] == []
    shown = [row for row in rows() if not _LINK.search(row.shown) and not _FILE.search(row.shown)]
    assert [row.by_hand for row in shown if not row.shown.startswith("out of scope")] == []


def test_everything_that_the_page_names_is_there() -> None:
    text = PAGE.read_text()
    links = [link for link in _LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    files = [name for row in rows() for code in _CODE.findall(row.shown) for name in _FILE.findall(code)]
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert len(links) > 30 and len(files) > 30


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)[:100]) for words in commands()])
def test_every_command_of_the_page_is_one(words: list[str], tmp_path: Path) -> None:
    """Parsed as it is printed, and planned where it starts ranks: that needs no machine."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for name in ("pyvenv.cfg", "bin/activate", "bin/python"):
        (tmp_path / "env" / name).touch()
    own = {"ENV": str(tmp_path / "env"), "IMAGE": "/scratch/image.sif"}
    name, *rest = [own.get(word, word) for word in words]
    if name in {"plan", "explain", "alloc"} or "--help" in rest:
        done = in_process(name, *rest, cwd=tmp_path)
        assert done.code == 0, done.text
        return
    command, parser = command_parser(name)
    args = command.parse(parser, rest) if hasattr(command, "parse") else parser.parse_args(rest)
    assert args is not None
    if name in {"run", "submit"}:
        not_of_plan = {"--show", "all", "--dry-run", "--standalone"}
        site = () if "--site" in rest else ("--site", "lumi", "--account", "project_1", "--nodes", "2")
        planned = in_process("plan", *site, *(word for word in rest if word not in not_of_plan), cwd=tmp_path)
        assert planned.code == 0, planned.text
