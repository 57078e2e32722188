"""Where the time of a miss goes is counted by stage and by kind of thread."""

from __future__ import annotations

import threading
from time import perf_counter

from startup.stages import costs_text, mean_costs, node_costs
from windlass.node.cache.stages import Stages, thread_figures


def test_calls_and_seconds_of_all_threads_are_added_up() -> None:
    stages = Stages()

    def work() -> None:
        for _ in range(3):
            assert stages.add("digest", perf_counter() - 2.0) > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    calls, seconds = stages.figures()["digest"]
    assert calls == 12
    assert seconds >= 24.0


def test_threads_are_counted_by_what_they_do_and_not_by_number() -> None:
    ready, over = threading.Barrier(3), threading.Event()

    def wait() -> None:
        ready.wait(30)
        over.wait(30)

    threads = [threading.Thread(target=wait, name=f"reader-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    found = thread_figures()
    over.set()
    for thread in threads:
        thread.join(30)
    assert "reader" in found and not any(name.startswith("reader-") for name in found)
    assert all(len(figures) == 3 for figures in found.values())


def test_costs_of_a_node_name_the_process_and_the_mean_counts_every_round() -> None:
    status = {
        "stages": {"digest": [10, 0.5]},
        "threads": {"link": [0.25, 30, 2]},
        "mount": {"stages": {"read": [4, 0.1]}},
    }
    costs = node_costs(status)
    assert costs == {"peer: digest": (10, 0.5), "peer thread link": (32, 0.25), "mount: read": (4, 0.1)}
    assert mean_costs([costs, {}, {"peer: digest": (20, 1.5)}])["peer: digest"] == (15.0, 1.0)
    assert mean_costs([{}]) == {}
    assert "50.000" in costs_text("cache", costs), "half a second in ten calls"
