from __future__ import annotations

from typing import Any

from windlass.run.sidecars.cache_service import figures_text, status_text, totals


def node(number: int, **more: Any) -> dict[str, Any]:
    figures = (
        "source_bytes",
        "source_calls",
        "used_bytes",
        "budget_bytes",
        "errors",
        "fallbacks",
        "changed",
        "corrupt",
    )
    status: dict[str, Any] = dict.fromkeys(figures, 10)
    status |= {"node": number, "nodes": 3, "host": f"n{number}", "state": "ready", "push": {"ended": True, "bytes": 0}}
    status |= {"bytes": {"parent": 5, "peer": 7}, "mount": {"alive": True, "hits": 3, "misses": 1, "source_bytes": 90}}
    return {**status, **more}


GONE = {"node": 2, "host": "n2", "state": "gone", "reason": "no connection"}


def test_totals_add_up_the_living_nodes_and_name_the_others() -> None:
    total = totals([node(0), node(1, state="starting"), GONE])
    assert (total["nodes"], total["ready"], total["gone"], total["pushed"]) == (3, 1, [2], True)
    assert (total["shared_bytes"], total["shared_calls"], total["mount_hits"], total["parent_bytes"]) == (
        200,
        20,
        6,
        10,
    )
    assert totals([GONE])["ready"] == 0


def test_table_has_a_line_per_node_one_for_all_and_the_reason_of_who_is_gone() -> None:
    lines = status_text([node(0), GONE]).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["n0", "ready"], ["n2", "gone"]]
    assert lines[3].split()[:3] == ["1", "of", "2"]
    assert lines[-1] == "n2: no connection"


def _figures(calls: int, **more: object) -> dict[str, object]:
    return {"source_calls": calls, "source_bytes": calls * 1000, **more}


def test_the_last_word_of_a_cached_run_says_whether_its_figures_are_good() -> None:
    together = figures_text({0: _figures(9_000), 1: _figures(40), 2: _figures(60)})
    assert together.endswith("9,100 times for 9.1 MB, about as often as one node alone")
    each = figures_text({0: _figures(9_000), 1: _figures(9_000)})
    assert "about as often" not in each
    alone = figures_text({0: _figures(9_000)})
    assert "about as often" not in alone and alone.startswith("cache: 1 node asked")
    assert figures_text({0: _figures(0), 1: _figures(0, errors=2)}).endswith("(2 errors)")
