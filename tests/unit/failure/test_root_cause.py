"""The root cause among the cascade, from what ranks, launchers and nodes say."""

from __future__ import annotations

import math
import signal

from captured import FOLDER
from looping import each
from windlass.model.record import RankFailure
from windlass.plan.render.rank_script import EXIT_BROKEN
from windlass.run.failure.ends import End
from windlass.run.failure.rank_states import RankState
from windlass.run.failure.root_cause import RESUME_ME, SCRIPT_BROKEN, Cause, Observed, find_cause
from windlass.run.failure.signs import error_line, traceback_of
from windlass.runtime import RESUME_ME as RUNTIME_RESUME_ME

_LOST_PEER = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "train.py", line 9, in <module>',
    "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:670: Connection reset by peer.",
)
_NAN = (
    "step 17",
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "    raise ValueError('loss is nan')",
    "ValueError: loss is nan",
)


def end(rank: int, code: int, at: float = 0.0) -> End:
    return End(at=100.0 + at, rank=rank, host=f"n{rank // 2}", code=code)


def seen(*ends: End, exit_code: int = 1, **more: object) -> Observed:
    return Observed(exit_code=exit_code, ends=ends, **more)  # type: ignore[arg-type]


def test_the_numbers_of_the_contract_are_the_same_on_both_sides() -> None:
    assert RESUME_ME == RUNTIME_RESUME_ME
    assert SCRIPT_BROKEN == EXIT_BROKEN


def test_a_killed_rank_is_the_cause_although_its_peers_complain_louder() -> None:
    found = find_cause(
        seen(
            end(2, 137),
            end(0, 1, 0.02),
            end(1, 1, 0.03),
            end(3, 143, 0.2),
            last_lines={0: _LOST_PEER, 1: _LOST_PEER},
        )
    )
    assert (found.rank, found.host, found.kind) == (2, "n1", "transient")
    assert found.line() == "rank 2 on n1 was killed by SIGKILL"


def test_an_abort_after_an_exception_is_told_as_the_exception() -> None:
    """Threads of collectives abort some processes that end by an exception; the exception is what matters."""
    aborted = (*_NAN, "terminate called without an active exception")
    found = find_cause(seen(end(1, 128 + signal.SIGABRT), end(0, 1, 0.1), last_lines={1: aborted, 0: _LOST_PEER}))
    assert (found.rank, found.kind, found.error) == (1, "user", "ValueError: loss is nan")
    alone = find_cause(seen(end(1, 128 + signal.SIGABRT), last_lines={1: ("terminate called",)}))
    assert (alone.kind, alone.reason) == ("transient", "was killed by SIGABRT")


def test_a_rank_that_was_ended_while_it_failed_is_the_cause_although_others_were_gone_before() -> None:
    raised = (*_NAN, "Terminated")
    found = find_cause(seen(end(0, 1), end(1, 143, 0.2), last_lines={0: _LOST_PEER, 1: raised}))
    assert (found.rank, found.kind, found.error) == (1, "user", "ValueError: loss is nan")
    went_on = (*_NAN, *(f"step {step}" for step in range(9)))
    found = find_cause(seen(end(0, 1), end(1, 143, 0.2), last_lines={0: _LOST_PEER, 1: went_on}))
    assert found.rank == 0, "an error that it survived was not its end"


def test_a_watchdog_that_aborts_because_a_peer_is_gone_is_a_secondary_failure() -> None:
    watchdog = tuple((FOLDER / "flight" / "watchdog.txt").read_text().splitlines())
    alone = find_cause(seen(end(0, 128 + signal.SIGABRT), last_lines={0: watchdog}))
    assert alone.kind == "transient"
    assert alone.reason.startswith("lost its peers (Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5")
    found = find_cause(seen(end(0, 128 + signal.SIGABRT), end(2, 1, 0.5), last_lines={0: watchdog, 2: _NAN}))
    assert (found.rank, found.error) == (2, "ValueError: loss is nan")


def test_clocks_that_differ_do_not_blame_a_peer() -> None:
    """Node 0's clock is behind: its ranks seem to have ended before the one that was killed."""
    found = find_cause(seen(end(0, 1, -0.3), end(2, 137), last_lines={0: _LOST_PEER}))
    assert found.rank == 2


def test_a_kill_by_the_launcher_at_the_end_is_not_the_cause() -> None:
    found = find_cause(seen(end(0, 1), end(1, 137, 5.0), last_lines={0: _NAN}))
    assert (found.rank, found.kind, found.error) == (0, "user", "ValueError: loss is nan")


def test_where_all_lost_their_peers_the_first_is_named_and_nobody_is_accused_of_a_mistake() -> None:
    found = find_cause(seen(end(0, 1), end(1, 1, 0.1), last_lines={0: _LOST_PEER, 1: _LOST_PEER}))
    assert (found.rank, found.kind) == (0, "transient")
    assert "lost its peers" in found.reason


def test_a_rank_that_left_early_with_code_0_is_named_and_not_those_that_miss_it() -> None:
    found = find_cause(seen(end(1, 0, -5), end(0, 1), end(2, 1, 0.1), last_lines={0: _LOST_PEER, 2: _LOST_PEER}))
    assert (found.rank, found.code, found.kind) == (1, 0, "user")
    own = find_cause(seen(end(1, 0, -5), end(0, 1), last_lines={0: _NAN}))
    assert own.rank == 0, "an error of its own is not because of the other"
    after = find_cause(seen(end(0, 1), end(1, 0, 5), last_lines={0: _LOST_PEER}))
    assert after.rank == 0
    gone = RankState(rank=1, host="n0", state="gone")
    assert "exited with code 0" in find_cause(seen(end(1, 0), hang="no output for 9 s", straggler=gone)).reason


def test_a_node_that_does_not_answer_is_the_cause_whatever_the_others_say() -> None:
    found = find_cause(seen(end(0, 1), lost=("n1",), last_lines={0: _LOST_PEER}))
    assert (found.kind, found.host) == ("node", "n1")


def test_ranks_that_saved_and_left_are_no_failure() -> None:
    assert find_cause(seen(end(0, 85), end(1, 143, 0.1), exit_code=85)).kind == "resume"
    assert find_cause(seen(end(0, 85), time_up=True, exit_code=85)).kind == "walltime"
    assert find_cause(seen(exit_code=85)).kind == "resume"


@each("job", ["preempted", "requeued"])
def test_a_job_that_the_scheduler_takes_back_is_told_from_one_that_somebody_stopped(job: str) -> None:
    assert find_cause(seen(exit_code=143, stopped=True)).kind == "stopped"
    assert find_cause(seen(exit_code=143, stopped=True, job="cancelled")).kind == "stopped"
    assert find_cause(seen(end(0, 85), exit_code=85, job="cancelled")).kind == "stopped", "the ranks were just faster"
    assert find_cause(seen(exit_code=143, stopped=True, job=job)).kind == "preempted"
    assert find_cause(seen(end(0, 85), exit_code=85, job=job)).kind == "preempted"
    assert find_cause(seen(end(0, 85), exit_code=85, job="runs")).kind == "resume"
    assert find_cause(seen(exit_code=143, stopped=True, job="over")).kind == "walltime"


@each(
    ("lines", "code", "kind", "origin", "certain"),
    [
        (("ModuleNotFoundError: No module named 'flash'",), 1, "user", "script", True),
        (("  File 'x'", "SyntaxError: invalid syntax"), 1, "user", "script", True),
        (("usage: train.py [-h]", "train.py: error: unrecognized arguments: --x"), 2, "user", "script", True),
        (("ValueError: loss is nan",), 1, "user", "script", False),
        (("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",), 1, "memory", "job", False),
        (("RuntimeError: CUDA error: uncorrectable ECC error encountered",), 1, "transient", "device", False),
        (("OSError: [Errno 28] No space left on device: '/lus/out'",), 1, "disk", "job", False),
        (("windlass.errors.MachineError: cannot write /x: Disk quota exceeded",), 1, "disk", "job", True),
        (("OSError: [Errno 5] Input/output error: '/lus/data'",), 1, "transient", "file system", False),
        (("OSError: [Errno 116] Stale file handle: '/lus/x'",), 1, "transient", "file system", False),
        (("ImportError: libmpi.so.40: cannot open shared object file: No such",), 1, "transient", "file system", False),
        (("RuntimeError: CUDA error: device-side assert triggered",), 1, "user", "script", False),
        (("RuntimeError: CUDA error: an illegal memory access was encountered",), 1, "user", "script", False),
        (("RuntimeError: HIP error: an illegal memory access was encountered",), 1, "user", "script", False),
        (("terminate called", "  what():  CUDA error: an illegal memory access"), 134, "user", "script", False),
        (("Memory access fault by GPU node-4 (Agent handle: 0x5) on address 0x7f",), 134, "user", "script", False),
        (("RuntimeError: No HIP GPUs are available",), 1, "transient", "device", False),
        (("RuntimeError: CUDA unknown error - this may be due to",), 1, "transient", "device", False),
        (("RuntimeError: NCCL Error 1: Cuda failure 719 'unspecified'",), 1, "transient", "device", False),
        (("RuntimeError: level_zero backend failed (UR_RESULT_ERROR_DEVICE_LOST)",), 1, "transient", "device", False),
        (("OSError: [Errno 113] No route to host",), 1, "transient", "network", False),
        (("windlass: rank 0 on n0: cannot make /tmp/x",), 70, "transient", "node", False),
        ((), 139, "transient", "unknown", False),
        ((), 7, "user", "script", False),
    ],
)
def test_what_a_rank_said_decides_what_it_is(
    lines: tuple[str, ...], code: int, kind: str, origin: str, certain: bool
) -> None:
    found = find_cause(seen(end(0, code), last_lines={0: lines}))
    assert (found.kind, found.origin, found.certain) == (kind, origin, certain)
    assert bool(found.proof) == any("ECC" in line for line in lines), "only this line is no code's doing"


@each(
    ("line", "proves"),
    [
        ("[9.1] NVRM: Xid (PCI:0000:3f:00): 79, pid=7, GPU has fallen off the bus.", True),
        ("[9.1] NVRM: Xid (PCI:0000:3f:00): 48, pid=7, An uncorrectable double bit error (DBE)", True),
        ("[9.1] NVRM: Xid (PCI:0000:3f:00): 13, pid=7, Graphics Exception: ESR 0x50", False),
        ("[9.1] NVRM: Xid (PCI:0000:3f:00): 31, pid=79, Ch 00000008, MMU Fault", False),
        ("[9.1] amdgpu 0000:c1:00.0: amdgpu: uncorrectable hardware errors detected in umc block", True),
        ("[9.1] amdgpu 0000:c1:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24)", False),
        ("[9.1] i915 0000:18:00.0: [drm] *ERROR* GT0: declared wedged", True),
        ("[9.1] mce: [Hardware Error]: Machine check: Uncorrected", True),
        ("[9.1] LustreError: 11-0: lus-OST0003: operation ost_read failed: rc = -5", False),
        ("[9.1] blk_update_request: I/O error, dev nvme0n1, sector 9", True),
        ("[9.1] python[7]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so", False),
    ],
)
def test_only_messages_about_the_hardware_are_evidence_against_a_node(line: str, proves: bool) -> None:
    found = find_cause(seen(end(2, 134), kernel={"n1": (line,)}))
    assert (found.host, bool(found.proof)) == ("n1", proves)
    elsewhere = find_cause(seen(end(0, 1), kernel={"n1": (line,)}, last_lines={0: _NAN}))
    assert (elsewhere.host, elsewhere.proof) == ("n0", ""), "an error of its own is not another node's"
    hang = find_cause(seen(hang="no output for 9 s", kernel={"n1": (line,)}))
    assert hang.host == ("n1" if proves else None)


def test_a_kill_on_a_node_that_ran_out_of_memory_is_told_as_that() -> None:
    said = {"n1": ("[9.1] Out of memory: Killed process 7",)}
    found = find_cause(seen(end(2, 137), oom=frozenset({"n1"}), kernel=said))
    assert found.kind == "memory"
    assert "Killed process 7" in found.reason
    assert find_cause(seen(end(2, 137), oom=frozenset({"n0"}))).kind == "transient"


def test_where_no_rank_reported_anything_the_launcher_is_quoted() -> None:
    said = RankFailure(rank=None, host="n3", said="Node failure on n3")
    found = find_cause(seen(exit_code=1, launcher=said))
    assert (found.host, found.line()) == ("n3", "node n3 failed; the launcher says: Node failure on n3")
    step = find_cause(seen(exit_code=1, launcher=RankFailure(rank=None, said="Unable to create step")))
    assert step.line() == "the launcher says: Unable to create step"
    killed = find_cause(seen(exit_code=139, launcher=RankFailure(rank=None, signal=11)))
    assert killed.line() == "the launcher says: a rank was killed by SIGSEGV"
    assert find_cause(seen(exit_code=9)).line() == "the launcher ended with code 9, and no rank reported a reason"


def test_a_rank_script_that_was_killed_is_the_cause_and_not_those_who_were_asked_to_leave_because_of_it() -> None:
    """The script cannot report its own end; the others save and leave when the launcher ends them."""
    unreported = End(at=math.inf, rank=1, host="n0", code=137, reported=False)
    found = find_cause(seen(end(0, 85), end(2, 143, 0.1), unreported, exit_code=137))
    assert found.line() == "rank 1 on n0 was killed by SIGKILL"
    mistake = find_cause(seen(end(0, 1), unreported, exit_code=1, last_lines={0: _NAN}))
    assert mistake.rank == 0, "an error that a rank reported tells more than the launcher's kill"


@each(
    ("cause", "line"),
    [
        (seen(end(0, 7)), "rank 0 on n0 exited with code 7"),
        (seen(end(0, 1), last_lines={0: _NAN}), "rank 0 on n0 exited with code 1: ValueError: loss is nan"),
        (seen(hang="no output for 9 s"), "the ranks hang: no output for 9 s"),
        (
            seen(hang="no output for 9 s", straggler=RankState(rank=2, host="n1", state="T")),
            "rank 2 on n1 blocks the others: no output for 9 s; it is stopped (SIGSTOP)",
        ),
        (seen(lost=("n1", "n2")), "node n1 no longer responds (and 1 more)"),
        (
            seen(end(0, 70), last_lines={0: ("windlass: rank 0 on n0: cannot make /tmp/x",)}),
            "rank 0 on n0 could not start: cannot make /tmp/x",
        ),
        (seen(exit_code=143, stopped=True), "the run was stopped on request"),
    ],
)
def test_every_cause_is_a_sentence(cause: Observed, line: str) -> None:
    assert find_cause(cause).line() == line


def test_the_same_error_is_the_same_whatever_its_numbers() -> None:
    first = Cause(kind="user", reason="", error="RuntimeError: port 123 at 0x7f12 is bad")
    second = Cause(kind="user", reason="", error="RuntimeError: port 999 at 0x7fff is bad")
    assert first.same_as == second.same_as
    assert first.same_as != Cause(kind="user", reason="", error="RuntimeError: port 123 is good").same_as
    assert Cause(kind="user", reason="", code=3).same_as != Cause(kind="user", reason="", code=4).same_as


def test_the_last_traceback_ends_with_its_error() -> None:
    lines = (*_NAN, "more output", "Traceback (most recent call last):", '  File "b.py"', "KeyError: 'x'", "bye")
    assert traceback_of(lines) == lines[-4:-1]
    assert error_line(lines) == "KeyError: 'x'"
    assert traceback_of(("no", "trace")) == ()


def test_every_signal_has_a_name_or_a_number() -> None:
    assert "SIGBUS" in find_cause(seen(end(0, 128 + signal.SIGBUS))).reason
    assert "signal 50" in find_cause(seen(end(0, 128 + 50))).reason
