"""Which chunks follow one that somebody waited for."""

from __future__ import annotations

from windlass.node.cache.keys import Pin, chunk_key
from windlass.node.cache.source_reader import GAP_CHUNKS, LAST_WINDOW, Neighbours

CHUNK = 4096
COUNT = 1000


def key(index: int, path: bytes = b"/lib") -> bytes:
    return chunk_key(path, Pin(COUNT * CHUNK, 1, 2), index)


def test_a_single_chunk_is_followed_by_its_group() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    assert near.of(key(6)) == range(4, 8)
    assert near.of(key(COUNT - 1)) == range(COUNT - 4, COUNT)


def test_a_walk_through_a_file_is_met_by_growing_windows() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    asked, windows, index = 0, [], 100
    while index < 600:
        found = near.of(key(index))
        windows.append(len(found))
        asked += 1
        index = found.stop + 3  # the walk leaves chunks out
    assert windows[:4] == [4, 8, 16, 32] and max(windows) == LAST_WINDOW
    assert asked < 20


def test_a_walk_backwards_is_met_as_well() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    windows, index = [], 600
    while index > 100:
        found = near.of(key(index))
        assert found.start <= index
        windows.append(len(found))
        index = found.start - 2
    assert windows[:4] == [4, 8, 16, 32] and len(windows) < 20
    assert near.of(key(0)).start == 0


def test_walks_side_by_side_in_one_file_do_not_end_each_other() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    ends = {start: near.of(key(start)).stop for start in (40, 500, 800)}
    assert [len(near.of(key(end + 1))) for end in ends.values()] == [8, 8, 8]


def test_a_jump_and_another_file_begin_anew() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    end = near.of(key(40)).stop
    assert len(near.of(key(end + GAP_CHUNKS + 4))) == 4
    assert len(near.of(key(end + 1, b"/other"))) == 4


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    near = Neighbours(CHUNK, 1 << 30)
    near.of(key(40))
    assert len(near.of(key(45))) == 8
    assert not near.of(key(50))


def test_windows_end_with_their_limit() -> None:
    near = Neighbours(CHUNK, 20 * CHUNK)
    index, windows = 40, []
    for _ in range(6):
        found = near.of(key(index))
        windows.append(len(found))
        index = found.stop + 1
    assert windows[:3] == [4, 8, 4] and max(windows[3:]) <= 8 and windows[-1] == 4
