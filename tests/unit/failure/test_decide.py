"""What is done about a run that ended."""

from __future__ import annotations

import msgspec

from windlass.run.failure.decide import IDLE_JOBS, Decision, Past, RestartOptions, decide
from windlass.run.failure.root_cause import Cause

_OPTIONS = RestartOptions(restarts=2, spare_hosts=1)


def killed(host: str = "n1", step: int = 5) -> Cause:
    return Cause(kind="transient", reason="killed by SIGKILL", rank=2, host=host, signal=9, step=step)


def mistake(step: int = 5, error: str = "ValueError: x") -> Cause:
    return Cause(kind="user", reason=error, rank=2, host="n1", code=1, error=error, step=step)


def decided(*past: Past | Cause, **options: object) -> Decision:
    made = tuple(one if isinstance(one, Past) else Past(cause=one, job="1") for one in past)
    return decide(made[-1].cause, made, msgspec.structs.replace(_OPTIONS, **options))


def test_a_killed_rank_is_started_again_up_to_the_limit() -> None:
    assert decided(killed("n1")).action == "restart"
    assert decided(killed("n1"), killed("n2")).action == "restart"
    last = decided(killed("n1"), killed("n2"), killed("n3"))
    assert (last.action, last.why) == ("stop", "after 2 restarts without a newer snapshot")


def test_without_restarts_nothing_is_started_again() -> None:
    assert decided(killed(), restarts=0) == Decision(action="stop", why="no restart left")


def test_a_newer_snapshot_makes_the_count_begin_again() -> None:
    progress = Past(cause=killed("n3"), job="1", progress=True)
    assert decided(killed("n1"), killed("n2"), progress).action == "restart"
    assert decided(progress, killed("n1"), restarts=1).action == "stop"
    assert decided(progress, killed("n1"), restarts=2).action == "restart"


def test_the_same_error_at_the_same_step_twice_is_the_scripts_fault() -> None:
    assert decided(mistake()).action == "restart"
    assert decided(mistake(), mistake()).why == "the same error at the same step twice"
    assert decided(mistake(5), mistake(9)).action == "restart"
    assert decided(mistake(), mistake(error="KeyError: 'y'")).action == "restart"
    assert decided(mistake(), killed(), mistake()).why == "the same error at the same step twice"


def test_an_error_that_cannot_go_away_stops_at_once() -> None:
    certain = msgspec.structs.replace(mistake(error="ModuleNotFoundError: No module named 'x'"), certain=True)
    assert decided(certain).action == "stop"


def test_out_of_memory_twice_stops_with_advice() -> None:
    memory = Cause(kind="memory", reason="out of memory", rank=0, host="n0", step=3)
    assert decided(memory).action == "restart"
    again = decided(memory, memory)
    assert again.action == "stop" and "fewer ranks per node" in again.hint


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    lost = Cause(kind="node", reason="gone", host="n1")
    assert decided(lost).bad == "n1"
    none = decided(lost, spare_hosts=0)
    assert (none.action, none.bad, none.hint) == ("stop", "n1", "add --spares 1")


def test_without_a_spare_a_lost_node_goes_back_to_the_queue_where_the_work_is_to_be_done() -> None:
    assert decided(Cause(kind="node", reason="gone", host="n1"), spare_hosts=0, until_done=True).action == "resubmit"


def test_a_node_whose_ranks_die_twice_in_a_row_is_bad() -> None:
    assert decided(killed("n1")).bad is None
    assert decided(killed("n1"), killed("n1")).bad == "n1"
    assert decided(killed("n1"), killed("n2")).bad is None
    assert decided(killed("n1"), killed("n1"), several_hosts=False).bad is None


def test_a_suspect_without_a_spare_gets_another_chance() -> None:
    again = decided(killed("n1"), killed("n1"), spare_hosts=0)
    assert (again.action, again.bad) == ("restart", None)


def test_a_node_with_evidence_about_it_is_left_out_at_once_and_in_later_jobs() -> None:
    ecc = msgspec.structs.replace(killed(), origin="device", proof="Xid of the hardware: NVRM: Xid (PCI:3f): 79")
    assert (decided(ecc).bad, decided(ecc).proof) == ("n1", ecc.proof)
    assert decided(ecc, msgspec.structs.replace(ecc, host="n2")).lifted == (), "two devices can be broken"


def test_without_evidence_a_node_is_left_out_of_this_run_only() -> None:
    assert decided(killed("n1"), killed("n1")).proof == ""
    broken = Cause(kind="transient", reason="could not start", rank=2, host="n1", code=70, origin="node")
    assert (decided(broken).bad, decided(broken).proof) == ("n1", "")


def test_an_error_that_follows_the_script_to_another_node_is_the_scripts_and_lifts_the_ban() -> None:
    crash = Cause(kind="transient", reason="killed by SIGSEGV", rank=2, host="n1", signal=11, step=5)
    assert decided(crash, crash).bad == "n1"
    moved = decided(crash, crash, msgspec.structs.replace(crash, host="n2"), restarts=9)
    assert (moved.action, moved.bad, moved.lifted) == ("stop", None, ("n1",))
    further = decided(crash, crash, msgspec.structs.replace(crash, host="n2", step=9), restarts=9)
    assert further.action == "restart", "it got further: another error, or chance"


def test_a_shared_file_system_condemns_no_node() -> None:
    stale = Cause(kind="transient", reason="", rank=2, host="n1", code=1, error="OSError: x", origin="file system")
    assert decided(stale, stale, restarts=9) == Decision(action="restart", why="the failure looks transient")
    other = msgspec.structs.replace(stale, host="n2")
    assert decided(stale, other, restarts=9).action == "restart", "and no script"


def test_ranks_that_left_on_request_go_on_even_without_restarts() -> None:
    assert decided(Cause(kind="resume", reason="saved"), restarts=0).action == "restart"


def test_when_the_time_is_up_the_rest_goes_to_another_job_or_waits_for_the_user() -> None:
    up = Cause(kind="walltime", reason="time")
    assert decided(up, until_done=True).action == "resubmit"
    assert decided(up).action == "stop" and "runs resume" in decided(up).hint
    assert decided(killed(), seconds_left=5.0, needed_s=60.0, until_done=True).action == "resubmit"


def test_jobs_without_progress_are_not_sent_again_for_ever() -> None:
    up = Cause(kind="walltime", reason="time")
    idle = [Past(cause=up, job=str(job)) for job in range(IDLE_JOBS)]
    assert decided(*idle, until_done=True).action == "stop"
    assert decided(*idle[:-1], until_done=True).action == "resubmit"
    moved = Past(cause=up, job="9", progress=True)
    assert decided(*idle, moved, until_done=True).action == "resubmit"


def test_what_was_preempted_is_submitted_again_unless_the_scheduler_does_that_itself() -> None:
    taken = Cause(kind="preempted", reason="the scheduler takes the nodes back")
    assert decided(taken, until_done=True).action == "resubmit"
    assert decided(taken).action == "stop" and "runs resume" in decided(taken).hint
    queued = decided(taken, until_done=True, requeued=True)
    assert queued.action == "stop" and "back into its queue" in queued.why


def test_a_full_disk_ends_the_run_where_another_start_would_meet_it_too() -> None:
    full = Cause(kind="disk", reason="No space left on device", rank=0, host="n0", step=3)
    assert decided(full).action == "restart"
    assert decided(full, full).action == "stop"
    assert decided(full, full).bad is None, "it is not the node's fault"
    tried = decided(msgspec.structs.replace(full, certain=True))
    assert tried.action == "stop" and "free space" in tried.hint


def test_a_request_to_stop_is_final() -> None:
    assert decided(Cause(kind="stopped", reason="")).action == "stop"
