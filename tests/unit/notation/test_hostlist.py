"""Host lists: what expands folds back, order is kept, and a malformed list says where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.errors import UsageError

_prefixes = st.text(alphabet="abcnxyz", min_size=1, max_size=4)
_numbers = st.integers(min_value=0, max_value=10_500)
_hosts = st.builds(
    lambda prefix, number, width, suffix: f"{prefix}{number:0{width}d}{suffix}",
    _prefixes,
    _numbers,
    st.integers(min_value=0, max_value=6),
    st.sampled_from(["", "-ib", ".hsn", "s3b0n1", "x0c0"]),
)


@given(st.lists(st.one_of(_hosts, _prefixes), min_size=1, max_size=40))
def test_what_is_folded_expands_to_the_same_hosts_in_the_same_order(hosts: list[str]) -> None:
    assert expand_hostlist(fold_hostlist(hosts)) == tuple(hosts)


@given(_prefixes, st.integers(0, 9_990), st.integers(1, 300), st.integers(1, 6))
def test_a_run_of_nodes_folds_into_one_range(prefix: str, first: int, count: int, width: int) -> None:
    hosts = [f"{prefix}{number:0{width}d}" for number in range(first, first + count)]
    folded = fold_hostlist(hosts)
    assert expand_hostlist(folded) == tuple(hosts)
    widths = {len(host) for host in hosts}
    assert folded.count("-") == sum(1 for w in widths if sum(len(h) == w for h in hosts) > 1)


@each(
    ("text", "hosts"),
    [
        ("nid0001", ["nid0001"]),
        ("nid[0001-0003,0010]", ["nid0001", "nid0002", "nid0003", "nid0010"]),
        ("nid[0008-0011]", ["nid0008", "nid0009", "nid0010", "nid0011"]),
        ("nid[8-11]", ["nid8", "nid9", "nid10", "nid11"]),
        ("x[1-2]c[0-1]n0", ["x1c0n0", "x1c1n0", "x2c0n0", "x2c1n0"]),
        ("a[1-2],b3,c", ["a1", "a2", "b3", "c"]),
        ("x4204c5s6b0n0\nx4204c5s6b0n1", ["x4204c5s6b0n0", "x4204c5s6b0n1"]),
        ("jrc0001i,jrc0002i", ["jrc0001i", "jrc0002i"]),
    ],
)
def test_lists_as_schedulers_write_them(text: str, hosts: list[str]) -> None:
    assert list(expand_hostlist(text)) == hosts


@each(
    "text",
    [
        "",
        " ",
        ",",
        "nid[",
        "nid]",
        "nid[]",
        "nid[3-1]",
        "nid[a-b]",
        "nid[1-]",
        "nid[[1]]",
        "nid$(id)",
        "a;b",
        "nid[1\u00b2]",
    ],
)
def test_a_malformed_list_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand_hostlist(text)
    assert repr(text)[1:-1] in caught.value.message


@each("text", ["n[0-999999999]", "n[0-999]m[0-999]k[0-999]", ",".join(["n[0-999999]"] * 2)])
def test_an_absurd_list_is_refused_before_it_fills_memory(text: str) -> None:
    with pytest.raises(UsageError, match="more than"):
        expand_hostlist(text)


def test_repeated_hosts_stay_repeated() -> None:
    assert expand_hostlist(fold_hostlist(["n1", "n1", "n2"])) == ("n1", "n1", "n2")


def test_ten_thousand_nodes_fold_into_a_short_list() -> None:
    hosts = [f"nid{number:06d}" for number in range(1, 10_001)]
    assert fold_hostlist(hosts) == "nid[000001-010000]"
