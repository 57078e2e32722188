"""Logs explained: the cause is told from what follows from it and from what is harmless."""

from __future__ import annotations

import io
import json
from pathlib import Path

from looping import each
from unit.cli.typed import in_process
from unit.doctor.test_comm_log import FOUND, INFINIBAND, LOOPBACK, NOT_FOUND
from windlass.cli.explain_log import report_lines
from windlass.diagnose.doctor.explain_log import LogReader, explain_files
from windlass.diagnose.doctor.log_findings import LogReport, kind_of
from windlass.diagnose.doctor.log_lines import candidate_signs
from windlass.model.finding import SERIOUS
from windlass.model.jsontext import to_json
from windlass.run.failure.decide import Decision
from windlass.run.failure.root_cause import Cause
from windlass.run.failure.signs import Sign, log_signs
from windlass.run.failure.verdict import Verdict

SAMPLES = {
    "errno 97": "[W1115 socket.cpp:200] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97 - "
    "Address family not supported by protocol).",
    "gloo at exit": "terminate called without an active exception",
    "no process group destroyed": "[W] Warning: WARNING: destroy_process_group() was not called before program exit",
    "OMP_NUM_THREADS": "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    "TensorFlow start-up": "E0000 Unable to register cuDNN factory: Attempting to register factory",
    "verbs drivers": "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so'",
    "NCCL plugins": "n1:1:1 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so",
    "library warnings": "/x/y.py:12: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
    "out of memory (the kernel's)": "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some processes died",
    "shared memory": "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that",
    "time limit": "slurmstepd: error: *** JOB 123 ON nid001 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
    "preemption": "slurmstepd: error: *** JOB 123 ON nid001 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",
    "lost node": "srun: error: Node failure on nid0417",
    "duplicate device": "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
    "no device (NVIDIA)": "RuntimeError: No CUDA GPUs are available",
    "no device (AMD)": "RuntimeError: No HIP GPUs are available",
    "no device (Intel)": "RuntimeError: no XPU device is available",
    "library does not fit": "ImportError: /lib64/libm.so.6: version `GLIBC_2.38' not found",
    "driver too old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)",
    "torch for another device": "torch.AcceleratorError: CUDA error: no kernel image is available for execution",
    "network forced": "n1:1:1 [0] misc.cc:1 NCCL WARN Error: network AWS Libfabric not found.",
    "library missing": "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    "port taken": "DistNetworkError: The server socket has failed to listen. port: 29500, (errno: 98 - Address already "
    "in use).",
    "name of the first node": "[c10d] The IPv6 network addresses of (bad, 29500) cannot be retrieved (gai error: "
    "-2 - Name or service not known).",
    "ranks missing at the start": "DistStoreError: Timed out after 61 s waiting for clients. 7/8 clients joined.",
    "out of memory (the device's)": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "no space left": "OSError: [Errno 28] No space left on device: '/scratch/ckpt'",
    "open files": "OSError: [Errno 24] Too many open files",
    "collectives differ": "RuntimeError: Detected mismatch between collectives on ranks.",
    "MPI start-up": "MPIR_pmi_init: PMI2_Init failed",
    "fabric resources": "nid001: Cassini Event Queue overflow detected.",
    "memory registration": "n1:7:7 [0] NCCL WARN Call to ibv_reg_mr failed: Cannot allocate memory",
    "offline": "requests.exceptions.ConnectionError: MaxRetryError: HTTPSConnectionPool(host='x', port=443)",
    "ECC error of the device (NVIDIA)": "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    "device lost (NVIDIA)": "Unable to determine the device handle for GPU 0000:3F:00.0: GPU is lost.",
    "assertion in a kernel (NVIDIA)": "torch.AcceleratorError: CUDA error: device-side assert triggered",
    "illegal memory access (NVIDIA)": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "launch failure (NVIDIA)": "n1:7:9 [0] NCCL WARN Cuda failure 719 'unspecified launch failure'",
    "ECC error of the device (AMD)": "RuntimeError: HIP error: hipErrorECCNotCorrectable",
    "assertion in a kernel (AMD)": "RuntimeError: HIP error: device-side assert triggered",
    "illegal memory access (AMD)": "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f2b00000000.",
    "launch failure (AMD)": "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.",
    "illegal memory access (Intel)": "Segmentation fault from GPU at 0xff00000000, ctx_id: 1 (CCS) type: 0",
    "device lost (Intel)": "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    "shared file system": "OSError: [Errno 116] Stale file handle: '/lus/data/x'",
    "network down": "OSError: [Errno 113] No route to host",
    "bus error": "n1: task 3: Bus error (core dumped)",
    "crash": "Fatal Python error: Segmentation fault",
    "device of the barrier": "[rank3]:[W] using GPU 3 as devices used by this process are currently unknown.",
    "loader workers": "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max "
    "number of worker in current system is 7",
    "allocator retries": "cudaMalloc retries: 12",
    "libfabric providers": "libfabric:7:core:core:fi_getinfo_():1021<warn> fi_getinfo: provider ofi_rxm returned -61",
    "process that does not end": "error: *** STEP 7.0 STEPD TERMINATED ON n1 DUE TO JOB NOT ENDING WITH SIGNALS ***",
    "scheduler's daemons": "srun: error: Task launch for StepId=7.0 failed on node n1: Invalid job credential",
    "account": "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "job request": "srun: error: Unable to create step for job 7: More processors requested than permitted",
    "CPUs of the job": "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x3",
    "host names of the job": "ssh: Could not resolve hostname n9",
    "launcher reaches no node": "Host key verification failed.",
    "launcher option": "mpiexec: unrecognized option '--mca'",
    "command not started": "slurmstepd: error: execve(): python3: No such file or directory",
    "container not started": "FATAL:   container creation failed: mount hook function failure",
    "MPI without GPU support": "MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL library is not linked",
    "no fabric provider": "find_provider(170): OFI fi_getinfo() failure",
    "fabric error": "ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)",
    "wrong interface": "n1:1:1 [0] NCCL WARN Bootstrap : no socket interface found",
    "NCCL versions differ": "n1:1:1 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
    "memory between devices": "n1:1:1 [0] NCCL WARN hipIpcGetMemHandle failed : invalid argument",
    "worker affinity": "|CCL_ERROR| base_thread.cpp:36 start: error while creating worker thread #0",
    "no access to a model": "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    "driver of the node": "Failed to initialize NVML: Driver/library version mismatch",
    "forked process": "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    "kernel too large": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072",
    "compiler cache": "MIOpen Error: sqlite_db.cpp:227: Internal error while accessing SQLite database: disk I/O error",
    "kernels not built": "RuntimeError: Error building extension 'fused_adam'",
    "module missing": "ModuleNotFoundError: No module named 'flash_attn'",
    "loss not finite": "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
    "too many threads": "libgomp: Thread creation failed: Resource temporarily unavailable",
    "cannot write": "OSError: [Errno 30] Read-only file system: '/home/u/.cache'",
    "killed": "E1115 api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary: /x/python",
    "collective timed out": "[R2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
    "lost peers": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "ended by the launcher": "srun: error: nid001: task 3: Terminated",
}


def _read(*lines: str, name: str = "log") -> LogReport:
    reader = LogReader()
    data = "\n".join(lines).encode()
    reader.read(name, io.BytesIO(data), len(data))
    return reader.report()


@each("sign", log_signs(), ids=lambda sign: sign.title)
def test_every_sign_explains_its_line_and_is_seen_at_first_look(sign: Sign) -> None:
    line = SAMPLES[sign.title]
    assert sign in candidate_signs(line.encode())
    assert [one.kind for one in _read(line).findings] == [kind_of(sign.title)]


def test_the_cause_stands_out_among_a_thousand_ranks() -> None:
    lines = []
    for rank in range(1000):
        lines.append(f"{rank}: {SAMPLES['errno 97']}")
        if rank == 417:
            lines += [
                f"{rank}: Traceback (most recent call last):",
                f'{rank}:   File "train.py", line 10, in <module>',
                f"{rank}:     x = batch[7]",
                f"{rank}: IndexError: list index out of range",
            ]
        else:
            lines.append(f"{rank}: [rank{rank}]: torch.distributed.DistBackendError: ncclRemoteError: A call failed")
    report = _read(*lines)
    assert report.verdict == "rank 417: IndexError: list index out of range"
    assert [(one.severity, one.facts["count"], one.facts["ranks"]) for one in report.findings] == [
        ("error", 1, "417"),
        ("note", 999, "0-416,418-999"),
        ("ok", 1000, "0-999"),
    ]
    text = "\n".join(report_lines(report))
    assert "harmless: 1000 lines (errno-97); --all shows them" in text and report.ranks == 1000


def test_ranks_that_did_not_come_to_a_collective_are_named() -> None:
    late = [f"{rank}: {SAMPLES['collective timed out']}" for rank in range(64) if rank != 9]
    assert "not on rank 9" in _read("9: step 10", *late).verdict
    assert "no line here gives the reason" in _read(SAMPLES["lost peers"]).verdict


def test_a_log_without_anything_wrong_says_so() -> None:
    report = _read("step 1 loss 2.5", "", SAMPLES["errno 97"])
    assert report.verdict == "no problem found in this output" and report.lines == 3


@each("line", ["step {} loss: nan", "{{'loss': nan, 'epoch': {}}}", "Epoch {}: train_loss=nan", "iter {}: loss nan"])
def test_a_loss_that_is_printed_as_no_number_to_the_end_is_a_cause(line: str) -> None:
    report = _read("step 1 loss: 2.5", *(line.format(number) for number in range(9)))
    assert report.verdict.startswith("loss-not-finite"), report
    once = _read(line.format(1), *(f"step {number} loss: 2.5 nano loss: info" for number in range(60)))
    assert once.verdict == "no problem found in this output", "scaled losses overflow once and recover"


def test_what_the_machine_did_says_more_than_the_error_of_the_script() -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: nan"]
    report = _read(*trace, SAMPLES["out of memory (the kernel's)"])
    assert report.verdict.startswith("out-of-memory-the-kernel-s: ")
    assert [one.kind for one in report.findings] == ["out-of-memory-the-kernel-s", "error-of-the-script"]


_RAISED = ["Traceback (most recent call last):", '  File "a.py", line 1', "    step()"]


@each(
    "other",
    ["step 31 loss 2.5", "n1:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 8", "W1115 10:00:01.1 api.py] a thread"],
)
def test_a_line_of_another_thread_inside_a_traceback_does_not_lose_it(other: str) -> None:
    report = _read(*_RAISED[:2], other, _RAISED[2], other, "ValueError: nan in batch")
    assert report.verdict == "ValueError: nan in batch"
    assert _read(*_RAISED, *[other] * 20, "ValueError: somebody else's").verdict.startswith("no problem found")


@each("prefix", ["(pid=1521965) ", "ERROR 01-28 03:21:01 engine.py:387] ", "2026-11-15 10:00:01,123 - "])
def test_a_traceback_behind_a_prefix_of_a_logger_is_read(prefix: str) -> None:
    lines = [prefix.replace("01", f"0{number}") + line for number, line in enumerate([*_RAISED, "KeyError: 7"])]
    assert _read(*lines).verdict == "KeyError: 7"


def test_the_first_cause_stands_first_however_often_others_are_named() -> None:
    """By the order of lines in one file, by their times in several."""
    quota, files = SAMPLES["no space left"], SAMPLES["open files"]
    assert _read(f"3: {quota}", *[f"{rank}: {files}" for rank in range(9)]).verdict.startswith("rank 3: no-space-left")
    reader = LogReader()
    for name, clock, line in (("a", "10:00:09", files), ("b", "10:00:03", quota), ("c", "10:00:05", files)):
        data = f"2026-11-15 {clock} INFO step 1\n{line}\n".encode()
        reader.read(name, io.BytesIO(data), len(data))
    assert reader.report().verdict.startswith("no-space-left")


def test_an_error_that_came_while_another_was_handled_is_the_one_that_counts() -> None:
    handled = [*_RAISED, "_queue.EmptyError", "", "During handling of the above exception, another exception occurred:"]
    assert _read(*handled, *_RAISED, "RuntimeError: the loader is gone").verdict == "RuntimeError: the loader is gone"


def test_what_a_rank_survives_is_no_cause() -> None:
    memory = SAMPLES["out of memory (the device's)"]
    steps = [f"3: step {number} loss 2.5" for number in range(60)]
    assert _read(f"3: {memory}", *steps).verdict == "no problem found in this output"
    ended = _read(f"3: {memory}", *steps, f"5: {SAMPLES['open files']}", SAMPLES["ended by the launcher"])
    assert ended.verdict.startswith("rank 5: open-files")
    assert _read(*steps, f"3: {memory}").verdict.startswith("rank 3: out-of-memory")


@each(
    ("line", "code"),
    [
        ("srun: error: nid0002: task 1: Exited with exit code 3", "task 1: Exited with exit code 3"),
        ("mpiexec: node2: rank 2 exited with code 3", "rank 2 exited with code 3"),
        ("=   EXIT CODE: 3", "EXIT CODE: 3"),
        ("  Exit code:    3", "Exit code:    3"),
        ("flux-job: task(s) exited with exit code 3", "task(s) exited with exit code 3"),
    ],
)
def test_a_rank_that_leaves_with_a_code_and_no_error_is_told_by_the_launcher(line: str, code: str) -> None:
    assert _read("step 1 loss 2.5", line).verdict.startswith(f"{code}, and no line here says why")
    raised = _read(*_RAISED, "RuntimeError: the loader is gone", line)
    assert raised.verdict == "RuntimeError: the loader is gone"


def test_a_run_whose_logs_say_nothing_has_its_own_verdict(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/node-0.log").write_text("0: step 1\n")
    cause = Cause(kind="user", reason="exited with code 3", rank=1, host="n2", code=3)
    decision = Decision(action="stop", why="no restart left")
    verdict = Verdict(attempt=0, cause=cause, decision=decision)
    (tmp_path / "verdict.json").write_bytes(to_json(verdict))
    assert explain_files([tmp_path], lambda _: None).verdict == "rank 1 on n2 exited with code 3"
    (tmp_path / "out/node-0.log").write_text("0: CUDA out of memory\n")
    assert "out-of-memory" in explain_files([tmp_path], lambda _: None).verdict


@each(
    ("lines", "severity", "kind"),
    [
        (NOT_FOUND, "warning", "tcp-between-nodes"),
        (LOOPBACK, "warning", "wrong-interface"),
        (INFINIBAND, "ok", "no-plugin-with-infiniband"),
    ],
)
def test_the_lines_of_nccl_are_read_together(lines: list[str], severity: str, kind: str) -> None:
    found = [one for one in _read(*lines).findings if one.facts["where"] == "NCCL's lines"]
    assert [(one.severity, one.kind) for one in found] == [(severity, kind)]
    assert not [one for one in _read(*FOUND).findings if one.severity in SERIOUS]


def test_files_folders_and_run_folders_are_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "out").mkdir(parents=True)
    (run / "plan.json").write_text('{"error": "Too many open files"}')
    (run / "out" / "node-0000.log").write_bytes(b"0: fine\n1: OSError: [Errno 24] Too many open files\n\xff\xfe\n")
    (run / "launcher.log").write_text("srun: error: nid001: task 1: Exited with exit code 1\n")
    report = explain_files([run], lambda _: None)
    assert (report.files, report.lines) == (2, 4)
    assert report.verdict.startswith("rank 1: open-files")
    (tmp_path / "rank-7.log").write_text(SAMPLES["no space left"] + "\r\n")
    assert explain_files([tmp_path / "rank-7.log"], lambda _: None).findings[0].subject == "rank 7"


def test_the_logs_of_components_are_read(tmp_path: Path) -> None:
    for name in ("server", "trainer"):
        (tmp_path / "components" / name / "out").mkdir(parents=True)
        (tmp_path / "components" / name / "out" / "node-0000.log").write_text("0: ready\n")
    (tmp_path / "out").mkdir()
    assert explain_files([tmp_path], lambda _: None).files == 2


def test_the_command_explains_and_complains_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(SAMPLES["port taken"] + "\n")
    done = in_process("explain-log", "a.log", cwd=tmp_path)
    assert done.code == 0 and "port-taken" in done.stdout and "→ let windlass choose the port" in done.stdout
    said = json.loads(in_process("explain-log", "--json", "a.log", cwd=tmp_path).stdout)
    assert said["findings"][0]["kind"] == "port-taken" and said["version"] == 2
    missing = in_process("explain-log", "none.log", cwd=tmp_path)
    assert missing.code == 2 and missing.stderr.startswith("windlass: error: none.log does not exist")


@each(("lines", "told"), [(1, "read 1 file, 1 line"), (1200, "read 1 file, 1,200 lines")])
def test_lines_are_counted_as_people_say_it(lines: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step\n" * lines)
    assert told in report_lines(explain_files([tmp_path / "a.log"], lambda text: None))
