"""The window of blocks on a node: it never grows, nothing is lost to who takes its time, and nobody waits for ever."""

from __future__ import annotations

import threading

from windlass.node.stage.window import StripeWindow


def fill(row: StripeWindow, upto: int) -> None:
    while row.arrived < upto:
        begun = row.begin()
        assert begun is not None
        position, slot = begun
        slot.memory[:1] = bytes([position % 256])
        assert row.fill(position, slot, 1, b"d")
        row.used(position)


def begins(row: StripeWindow) -> threading.Thread:
    """A thread that waits for room."""
    thread = threading.Thread(target=row.begin, daemon=True)
    thread.start()
    return thread


def test_a_slow_child_holds_the_window_back_and_gets_every_block() -> None:
    row = StripeWindow(10, 4, 3)
    child = row.join(0, 1)
    fill(row, 3)
    waiting = begins(row)
    waiting.join(0.3)
    assert waiting.is_alive(), "three blocks that the child has not taken fill a window of three"
    slot = row.wait(child, 1.0)
    assert slot is not None and bytes(slot.data) == b"\0"
    row.step(child)
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_a_child_that_leaves_lets_the_others_go_on() -> None:
    row = StripeWindow(10, 4, 2)
    child = row.join(0, 1)
    fill(row, 2)
    row.leave(child)
    fill(row, 10)
    assert row.first >= 8 and row.begin() is None


def test_blocks_stay_while_there_is_room_so_that_a_late_child_finds_them() -> None:
    row = StripeWindow(4, 4, 4)
    fill(row, 4)
    late = row.join(0, 1)
    assert not late.behind and row.wait(late, 0.1) is not None


def test_a_child_behind_the_window_is_told_so_until_it_has_caught_up() -> None:
    row = StripeWindow(10, 4, 2)
    fill(row, 6)
    late = row.join(0, 1)
    assert late.behind and row.wait(late, 0.1) is None
    late.position = row.first
    assert row.wait(late, 0.1) is not None and not late.behind


def test_blocks_that_cannot_come_again_wait_for_children_that_have_not_come_yet() -> None:
    row = StripeWindow(10, 4, 2, awaited=1, patience_s=60.0)
    fill(row, 2)
    waiting = begins(row)
    waiting.join(0.3)
    assert waiting.is_alive()
    child = row.join(0, 7)
    assert row.wait(child, 1.0) is not None
    row.step(child)
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_patience_with_children_ends() -> None:
    row = StripeWindow(10, 4, 2, awaited=1, patience_s=0.0)
    fill(row, 10)


def test_a_closed_row_wakes_everybody() -> None:
    row = StripeWindow(10, 4, 1)
    child = row.join(0, 1)
    fill(row, 1)
    waiting = begins(row)
    row.close()
    waiting.join(5.0)
    assert not waiting.is_alive() and row.begin() is None
    row.step(child)
    assert row.wait(child, 5.0) is None


def test_a_position_that_was_not_filled_is_begun_again() -> None:
    row = StripeWindow(2, 4, 2)
    begun = row.begin()
    assert begun is not None
    row.undo(begun[1])
    again = row.begin()
    assert again is not None and again[0] == 0
