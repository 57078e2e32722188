"""Every scheduler keeps the same contract: directives with reasons, UNKNOWN for the unknown, errors in words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.backends.schedulers import get_scheduler, scheduler_names
from windlass.backends.schedulers.base import JobSpec, JobState, Scheduler
from windlass.errors import UsageError, WindlassError
from windlass.model.origin import Argument, ArgumentSpec, argument_key
from windlass.model.site import SchedulerSpec

pytestmark = pytest.mark.parametrize("name", scheduler_names())
BATCH = [name for name in scheduler_names() if name != "none"]

SPECS = {
    "small": JobSpec(name="train", nodes=1, ranks_per_node=1),
    "full": JobSpec(
        name="train", nodes=10_000, ranks_per_node=12, cpus_per_rank=8, gpus_per_node=6, partition="prod", account="p1",
        time="6h", output="{run_dir}/job.log",
    ),
    "hostile": JobSpec(
        name="it's \"a\" $(touch x) `id` #c é", nodes=2, ranks_per_node=1, account="a'b $(y)", time="30",
    ),
}  # fmt: skip


def directives(name: str, case: str, site: SchedulerSpec | None = None) -> tuple[Argument, ...]:
    return get_scheduler(name).directives(SPECS[case], site or SchedulerSpec(gpu_request="gpus-per-node"))


def test_it_says_what_it_is(name: str) -> None:
    scheduler = get_scheduler(name)
    assert isinstance(scheduler, Scheduler)
    assert scheduler.name == name
    assert scheduler.shebang.startswith("#!")
    assert scheduler.directive.startswith("#")
    assert scheduler.host_lines


def test_outside_of_a_job_there_is_no_allocation(name: str) -> None:
    assert not get_scheduler(name).in_allocation({"PATH": "/bin", "HOME": "/root"})


@each("case", sorted(SPECS))
def test_every_directive_is_one_line_with_a_reason(name: str, case: str) -> None:
    scheduler = get_scheduler(name)
    for argument in directives(name, case):
        line = scheduler.directive_line(argument)
        assert line.startswith(scheduler.directive + " ")
        assert len(line.splitlines()) == 1
        assert argument.because.strip()
        assert tuple(shlex.split(line.removeprefix(scheduler.directive))) == argument.words


@each("field", ["name", "partition", "account"])
def test_a_value_with_a_new_line_cannot_add_a_line_to_the_script(name: str, field: str) -> None:
    values = {"name": "x", "nodes": 1, "ranks_per_node": 1, field: "x\ntouch /tmp/owned"}
    scheduler = get_scheduler(name)
    try:
        made = scheduler.directives(JobSpec(**values), SchedulerSpec())  # type: ignore[arg-type]
    except UsageError:
        return
    assert all("\n" not in scheduler.directive_line(argument) for argument in made)


@each("case", sorted(SPECS))
def test_the_site_replaces_a_default_instead_of_saying_it_twice(name: str, case: str) -> None:
    for argument in directives(name, case):
        own = ArgumentSpec(words=(*argument.words[:-1], argument.words[-1] + "0"), because="the site", source="page")
        if own.key != argument_key(argument.words):
            continue
        again = directives(name, case, SchedulerSpec(gpu_request="gpus-per-node", directives=(own,)))
        assert [a.words for a in again if argument_key(a.words) == own.key] == [own.words]
        assert again[-1].words == own.words


@each("text", ["soon", "0", "1:99:00"])
def test_a_bad_time_limit_is_an_error(name: str, text: str) -> None:
    if name == "none":
        return
    with pytest.raises(UsageError, match="time limit"):
        get_scheduler(name).directives(JobSpec(name="x", nodes=1, ranks_per_node=1, time=text), SchedulerSpec())


@given(output=st.text(max_size=200), code=st.integers(min_value=0, max_value=255))
def test_an_answer_that_nobody_understands_is_unknown_not_an_exception(name: str, output: str, code: int) -> None:
    status = get_scheduler(name).parse_status(output, code, "123")
    assert status.state is JobState.UNKNOWN
    assert status.exit_code is None


@given(output=st.text(max_size=200), code=st.integers(min_value=1, max_value=255))
def test_any_refusal_becomes_an_error_in_words(name: str, output: str, code: int) -> None:
    error = get_scheduler(name).explain_refusal(code, output)
    assert isinstance(error, WindlassError)
    assert error.message


@each("output", ["", "error", "sbatch: error: no\n", "…"])
def test_no_job_id_is_an_error(name: str, output: str) -> None:
    with pytest.raises(WindlassError):
        get_scheduler(name).parse_submit(output)


def test_commands_are_words(name: str) -> None:
    scheduler = get_scheduler(name)
    if name == "none":
        with pytest.raises(UsageError, match="no scheduler"):
            scheduler.submit_argv("x")
        return
    for argv in (scheduler.submit_argv("/a b/job.sh"), scheduler.status_argv("12"), scheduler.cancel_argv("12")):
        assert argv and all(isinstance(word, str) for word in argv)
    assert scheduler.submit_argv("/a b/job.sh")[-1] == "/a b/job.sh"
    assert scheduler.status_argv("12; reboot")[-1] == "12; reboot"


def test_a_step_is_killed_by_name_only_inside_a_job(name: str) -> None:
    argv = get_scheduler(name).kill_step_argv({}, "x")
    assert argv is None
