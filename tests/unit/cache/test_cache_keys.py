from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.node.cache.keys import (
    BadKeyError,
    Pin,
    check_path,
    chunk_count,
    chunk_key,
    chunk_length,
    digest,
    directory_key,
    parse_key,
    runs,
    stripe_of,
)

NAMES = st.binary(min_size=1, max_size=20).filter(lambda n: b"/" not in n and b"\0" not in n and n not in (b".", b".."))
PATHS = st.lists(NAMES, min_size=1, max_size=6).map(lambda parts: b"/" + b"/".join(parts))
PINS = st.builds(Pin, st.integers(0, 2**63), st.integers(-(2**62), 2**62), st.integers(0, 2**64 - 1))


@given(PATHS, PINS, st.integers(0, 2**32 - 1))
def test_a_chunk_key_gives_back_its_parts(path: bytes, pin: Pin, index: int) -> None:
    key = parse_key(chunk_key(path, pin, index))
    assert (key.path, key.pin, key.chunk) == (path, pin, index)


@pytest.mark.parametrize(
    "path", [b"", b"x", b"/a/../b", b"/a/./b", b"/a//b", b"/a/", b"/..", b"/a\0b", b"/" + b"n" * 256]
)
def test_a_path_that_could_leave_a_root_is_no_key(path: bytes) -> None:
    with pytest.raises(BadKeyError):
        check_path(path)
    with pytest.raises(BadKeyError):
        parse_key(directory_key(path))


@given(st.binary(max_size=5000))
def test_any_bytes_are_a_key_or_a_bad_key(data: bytes) -> None:
    with contextlib.suppress(BadKeyError):
        parse_key(data)


def test_two_versions_of_a_file_never_share_a_key() -> None:
    old, new = chunk_key(b"/f", Pin(10, 1, 7), 0), chunk_key(b"/f", Pin(10, 2, 7), 0)
    assert old != new
    assert old != new


def test_the_right_bytes_of_the_wrong_chunk_have_another_digest() -> None:
    pin = Pin(10**6, 1, 7)
    assert digest(chunk_key(b"/f", pin, 0), b"x" * 100) != digest(chunk_key(b"/f", pin, 1), b"x" * 100)


@given(st.integers(0, 10**9), st.sampled_from([4096, 131072, 1 << 20]))
def test_chunks_cover_a_file_exactly(size: int, chunk_bytes: int) -> None:
    count = chunk_count(size, chunk_bytes)
    if count > 3:
        assert chunk_length(size, chunk_bytes, count - 2) == chunk_bytes
    assert chunk_length(size, chunk_bytes, count) == 0
    assert (count - 1) * chunk_bytes + chunk_length(size, chunk_bytes, count - 1) == size if count else size == 0


def test_the_stripe_does_not_depend_on_the_version() -> None:
    for index in range(40):
        stripes = {stripe_of(chunk_key(b"/f", Pin(1, mtime, 3), index), 4) for mtime in range(5)}
        assert len(stripes) == 1


def test_a_large_file_is_spread_over_all_readers() -> None:
    pin = Pin(1 << 30, 1, 1)
    assert {stripe_of(chunk_key(b"/f", pin, index), 4) for index in range(64)} == {0, 1, 2, 3}


def test_runs_are_neighbouring_chunks_of_one_version_of_one_file() -> None:
    one, other = Pin(100, 1, 2), Pin(100, 9, 2)
    keys = [chunk_key(b"/a", one, n) for n in (0, 1, 2, 4, 5)]
    keys += [chunk_key(b"/a", other, 6), chunk_key(b"/b", other, 7), directory_key(b"/c"), directory_key(b"/d")]
    assert [len(run) for run in runs(keys, 8)] == [3, 2, 1, 1, 1, 1]
    assert [len(run) for run in runs(keys[:3], 2)] == [2, 1]
    assert [key for run in runs(keys, 8) for key in run] == keys
