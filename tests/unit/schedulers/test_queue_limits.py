"""Partitions and queues with their limits, from captured output of the real schedulers."""

from __future__ import annotations

from captured import FOLDER
from looping import each
from windlass.backends.schedulers import get_scheduler, scheduler_names
from windlass.model.site import QueueSpec


def told(name: str, *files: str) -> tuple[QueueSpec, ...]:
    return get_scheduler(name).parse_queues("\n".join((FOLDER / file).read_text() for file in files))


def test_slurm_tells_sizes_times_and_the_default() -> None:
    assert told("slurm", "slurm/show_partition.stdout") == (
        QueueSpec(name="batch", nodes_max=2, default=True),
        QueueSpec(name="short", nodes_min=2, nodes_max=2, time_max="1-12:00:00"),
        QueueSpec(name="staff", nodes_max=3, by_name=True),
        QueueSpec(name="cpu", nodes_max=1),
    ), "a partition that is down takes no jobs; one for a group is for those who name it"


def test_pbs_tells_its_queues_and_the_server_the_default() -> None:
    assert told("pbs", "openpbs/qstat_Q_f_json.out", "openpbs/qstat_B_f_json.out") == (
        QueueSpec(name="workq", kind="queue", default=True),
        QueueSpec(name="debug", kind="queue", nodes_max=2, time_max="00:30:00"),
    ), "a default time is no limit"


def test_flux_tells_its_queues_where_they_have_names() -> None:
    assert told("flux", "flux/queue-list.stdout") == (
        QueueSpec(name="batch", kind="queue", nodes_max=2, time_max="08:00:00", default=True),
        QueueSpec(name="debug", kind="queue", time_max="00:30:00"),
    )
    assert get_scheduler("flux").parse_queues("|inf|0|inf\n") == ()


@each("name", scheduler_names())
@each("text", ["", "no answer\n", "{", '{"Queue": 3}', '{"Queue": {"a": 1}}', "PartitionName=", "a|b|c|d"])
def test_what_cannot_be_read_is_no_queue_with_limits(name: str, text: str) -> None:
    for queue in get_scheduler(name).parse_queues(text):
        assert (queue.nodes_min, queue.nodes_max, queue.time_max) == (None, None, None)
