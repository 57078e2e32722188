from __future__ import annotations

from pathlib import Path

import pytest

from windlass.node.cache.keys import Pin, chunk_key
from windlass.node.cache.streamlog import StreamLog, dump_plan, parse_plan, stream_key
from windlass.node.cache.trace import (
    BadTraceError,
    Touch,
    TouchRecorder,
    Trace,
    directory_touch,
    dump_trace,
    parse_trace,
    read_trace,
    write_trace,
)
from windlass.node.wire.wire import ProtocolError


def test_touches_are_kept_in_order_once_and_neighbours_become_one_range() -> None:
    recorder = TouchRecorder(100, 10**9)
    recorder.directory(b"/a")
    for index in (0, 1, 2, 1, 7):
        recorder.chunk(b"/a/f", index, 1000)
    recorder.chunk(b"/a/g", 9, 950)
    recorder.directory(b"/a")
    trace = recorder.trace("id", (b"/a",))
    assert trace.touches == (
        directory_touch(b"/a"),
        Touch(b"/a/f", 0, 300),
        Touch(b"/a/f", 700, 100),
        Touch(b"/a/g", 900, 50),
    )
    assert trace.file_bytes == 450


def test_recording_stops_at_the_limit_so_that_a_data_set_is_not_recorded() -> None:
    recorder = TouchRecorder(100, 1000)
    for index in range(50):
        recorder.chunk(b"/data", index, 5000)
    assert recorder.trace("id", ()).file_bytes == 1000


def test_a_later_run_keeps_what_only_the_earlier_one_touched() -> None:
    first, second = TouchRecorder(100, 10**9), TouchRecorder(100, 10**9)
    first.chunk(b"/f", 0, 100)
    first.chunk(b"/only-before", 0, 100)
    second.chunk(b"/new", 0, 100)
    second.chunk(b"/f", 0, 100)
    merged = second.trace("id", (), first.trace("id", ()))
    assert [t.path for t in merged.touches] == [b"/new", b"/f", b"/only-before"]


def test_a_trace_survives_its_file_with_names_that_are_not_utf8(tmp_path: Path) -> None:
    trace = Trace("id", (b"/r\xff",), (directory_touch(b"/r\xff"), Touch(b"/r\xff/\xc3\xa4\xfe", 5, 10)))
    path = tmp_path / "sub" / "t.json"
    write_trace(str(path), trace)
    assert read_trace(str(path)) == trace
    assert [p.name for p in path.parent.iterdir()] == ["t.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 99}', '{"version": 1, "touches": [[1]]}', "null"])
def test_a_file_that_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(BadTraceError):
        parse_trace(text)


@pytest.mark.parametrize(
    "touch",
    [
        '["/r/f", 0, 1000000000000000]',
        '["/r/f", -1, 5]',
        '["/r/f", 0, -2]',
        '["/r/f", 1e400, 1]',
        '["/r/../f", 0, 1]',
        '["r", 0, 1]',
        '["/r\\u0000", 0, 1]',
    ],
)
def test_a_touch_that_cannot_be_is_refused(touch: str) -> None:
    with pytest.raises(BadTraceError):
        parse_trace('{"version": 1, "identity": "i", "roots": ["/r"], "touches": [' + touch + "]}")


def test_what_goes_beyond_the_limit_of_a_record_is_left_out() -> None:
    huge, small, folder = Touch(b"/r/huge", 0, 1 << 40), Touch(b"/r/small", 0, 60), directory_touch(b"/r")
    trace = Trace("id", (b"/r",), (huge, small, folder, small))
    assert trace.within(100).touches == (small, folder)


def test_a_trace_of_the_wrong_bytes_or_too_deep_is_refused(tmp_path: Path) -> None:
    for data in (b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "t").write_bytes(data)
        with pytest.raises(BadTraceError):
            read_trace(str(tmp_path / "t"))


def test_dumping_is_stable() -> None:
    trace = Trace("id", (b"/r",), (Touch(b"/r/f", 0, 10),))
    assert parse_trace(dump_trace(trace)) == trace


def test_a_plan_survives_the_wire() -> None:
    plan = [(1, b"\0\0\0\0", b"/a b"), (2, b"\1\0\0\0", b"/a b/\xff c")]
    assert parse_plan(dump_plan(plan)) == plan
    assert parse_plan(b"") == []
    with pytest.raises(ProtocolError):
        parse_plan(b"x")


def test_a_log_awaits_what_is_announced_and_has_not_come() -> None:
    key, other = chunk_key(b"/f", Pin(10, 1, 1), 0), chunk_key(b"/g", Pin(10, 1, 1), 0)
    log = StreamLog()
    assert not log.awaits(key)
    log.start([stream_key(key), stream_key(other)])
    assert log.awaits(key) and log.awaits(other)
    log.add(key)
    assert not log.awaits(key) and log.awaits(other)
    log.add(None)
    assert not log.awaits(other), "skipped is not awaited"
    log.close()
    assert log.closed


def test_what_is_offered_during_a_plan_follows_it() -> None:
    key, extra = chunk_key(b"/f", Pin(10, 1, 1), 0), chunk_key(b"/x", Pin(10, 1, 1), 0)
    log = StreamLog()
    log.offer(extra)
    log.start([stream_key(key), stream_key(chunk_key(b"/g", Pin(1, 1, 1), 0))])
    log.offer(key)
    assert log.items == []
    log.add(key)
    assert log.items == [key] and not log.plan_over
    log.give_up_plan()
    assert log.items == [key, None, extra], "positions of the plan stay, and nothing comes twice"
    log.close()
    log.offer(chunk_key(b"/late", Pin(1, 1, 1), 0))
    assert len(log.items) == 3
