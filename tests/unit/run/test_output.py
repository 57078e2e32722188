"""Lines of ranks: read from pipes, kept per node, shown to a person."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning import plan_for
from windlass.backends.launchers import get_launcher
from windlass.errors import UsageError
from windlass.run.output import Lines, NodeLogs, OutputView, Tail, show_ranks

LOCAL = get_launcher("local")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", {0}), ("0,3-5", {0, 3, 4, 5}), ("2-99", {2, 3, 4, 5, 6, 7}), ("none", set()), (" 1 , 2 ", {1, 2})],
)
def test_ranks_to_show(text: str, ranks: set[int]) -> None:
    assert show_ranks(text, 8) == ranks


def test_all_ranks_are_no_set_of_a_hundred_thousand() -> None:
    assert show_ranks("all", 98_304) is None


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "8", "3-1", "1,,2", "0x1", "1;2"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        show_ranks(text, 8)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _read_all(data: bytes, sizes: list[int]) -> list[bytes]:
    """The lines that come out when `data` arrives in pieces of these sizes."""
    got: list[bytes] = []
    reader, writer = os.pipe()
    try:
        lines = Lines(reader, got.append)
        at = 0
        for size in sizes:
            os.write(writer, data[at : at + size])
            at += size
            if size and data[at - size : at]:
                assert lines.read()
        os.write(writer, data[at:])
        if data[at:]:
            assert lines.read()
        os.close(writer)
        writer = -1
        assert not lines.read()
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    return got


@given(st.binary(max_size=300), st.lists(st.integers(0, 40), max_size=12))
def test_lines_are_whole_however_they_arrive(data: bytes, sizes: list[int]) -> None:
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert _read_all(data, sizes) == expected


def test_a_line_that_never_ends_is_handed_on_before_it_fills_the_memory() -> None:
    got: list[bytes] = []
    reader, writer = os.pipe()
    lines = Lines(reader, got.append)
    piece = b"x" * 65_536
    for _ in range(40):
        os.write(writer, piece)
        lines.read()
    assert sum(map(len, got)) > 1 << 20
    assert max(map(len, got)) <= (1 << 20) + 65_536
    os.close(reader)
    os.close(writer)


def test_lines_are_kept_in_one_file_per_node(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path, LOCAL, ranks_per_node=2)
    for rank in (0, 1, 2, 5, 1):
        logs.write(rank, b"from %d \xff" % rank)
    logs.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-0000.log", "node-0001.log", "node-0002.log"]
    assert (tmp_path / "node-0000.log").read_bytes() == b"0: from 0 \xff\n1: from 1 \xff\n1: from 1 \xff\n"
    assert (tmp_path / "node-0000.log").stat().st_mode & 0o777 == 0o600
    assert logs.lost is None


def test_many_nodes_need_few_open_files(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path, LOCAL, ranks_per_node=1)
    before = _open_files()
    for _ in range(2):
        for node in range(400):
            logs.write(node, b"x")
    assert _open_files() - before <= 256
    logs.close()
    assert _open_files() == before
    assert all((tmp_path / f"node-{node:04}.log").read_text() == f"{node}: x\n" * 2 for node in range(400))


def test_a_file_that_cannot_be_written_is_remembered_and_does_not_raise(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "gone", LOCAL, ranks_per_node=1)
    logs.write(0, b"x")
    assert logs.lost is not None and logs.lost.errno == errno.ENOENT


def _view(shown: frozenset[int] | None = None, width: int = 1) -> tuple[OutputView, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return OutputView(shown, out, err, width=width), out, err


def test_lines_are_labelled_in_columns() -> None:
    view, out, _ = _view(width=3)
    view.line(7, "seven")
    view.line(100, "hundred")
    assert out.getvalue() == "[  7] seven\n[100] hundred\n"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    view, out, _ = _view()
    view.line(0, "a\udcffb")
    assert out.getvalue() == "[0] a�b\n"


def test_words_of_others_cannot_move_the_cursor() -> None:
    view, _, err = _view()
    view.note("srun: \x1b[2Jerror\x07 \x9b")
    assert "\x07" not in err.getvalue()


class _Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error
        self.tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise self.error


@pytest.mark.parametrize(("error", "told"), [(BrokenPipeError(), False), (OSError(errno.ENOSPC, "no space"), True)])
def test_a_broken_output_is_told_once_and_not_tried_again(error: OSError, told: bool) -> None:
    out, err = _Broken(error), io.StringIO()
    view = OutputView(None, out, err)
    assert view.shows(0)
    view.line(0, "a")
    view.line(0, "b")
    assert out.tries == 1
    assert (err.getvalue().count("cannot write to the standard output") == 1) is told
    assert not view.shows(0)  # so that the last lines of a failed rank are told


def test_files_of_daemons_are_followed_while_they_grow(tmp_path: Path) -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=2, ranks_per_node=1)
    srun = get_launcher("srun")
    view, out, _ = _view()
    tail = Tail(plan, tmp_path, srun, view)
    assert tail.poll() is False
    file = tmp_path / srun.node_log.format(node_rank=1)
    with file.open("w") as stream:
        for text, expected in (("1: a\n1: b", "[1] a\n"), ("c\n", "[1] a\n[1] bc\n")):
            stream.write(text)
            stream.flush()
            assert tail.poll() is True
            assert out.getvalue() == expected
        stream.write("1: rest without end")
    tail.poll()
    tail.close()
    assert out.getvalue().endswith("[1] rest without end\n")


def test_lines_that_srun_has_cut_are_whole_again_on_the_terminal(tmp_path: Path) -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=1, ranks_per_node=2)
    srun = get_launcher("srun")
    view, out, _ = _view()
    tail = Tail(plan, tmp_path, srun, view)
    line = ("x" + "é" * 1500).encode()
    pieces = [line[start : start + 1024] for start in range(0, len(line), 1024)]
    exact = b"y" * 1024
    data = b"0: " + pieces[0] + b"\n1: other\n" + b"".join(b"0: " + piece + b"\n" for piece in pieces[1:])
    data += b"1: " + exact + b"\n1: \n1: " + exact + b"\n"
    (tmp_path / srun.node_log.format(node_rank=0)).write_bytes(data)
    tail.poll()
    tail.close()
    whole = exact.decode()
    assert out.getvalue() == f"[1] other\n[0] {line.decode()}\n[1] {whole}\n[1] {whole}\n"


def test_only_files_of_nodes_that_are_shown_are_opened(tmp_path: Path) -> None:
    plan, _ = plan_for("generic-slurm", "true", nodes=100, ranks_per_node=1)
    srun = get_launcher("srun")
    for node in range(100):
        (tmp_path / srun.node_log.format(node_rank=node)).write_text(f"{node}: x\n")
    view, out, _ = _view(frozenset({3, 70}))
    before = _open_files()
    tail = Tail(plan, tmp_path, srun, view)
    tail.poll()
    assert _open_files() - before == 2
    tail.close()
    assert sorted(out.getvalue().splitlines()) == ["[3] x", "[70] x"]


_XTERM = {"TERM": "xterm"}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _read_growing(view: OutputView, *pieces: bytes) -> None:
    reader, writer = os.pipe()
    lines = Lines(reader, lambda line: view.line(0, line.decode()), lambda part: view.bar(0, part.decode()))
    try:
        for piece in pieces:
            os.write(writer, piece)
            assert lines.read()
    finally:
        os.close(writer)
        os.close(reader)


def test_a_progress_bar_grows_on_a_terminal_and_gives_way_to_the_next_line() -> None:
    out, err = _Terminal(), io.StringIO()
    _read_growing(OutputView(None, out, err, environ=_XTERM), b"\r 10%", b"\r 50%", b"\r100%\n", b"done\n")
    label, clear = "\x1b[2m[0]\x1b[0m", "\r\x1b[K"
    assert out.getvalue() == f"{clear}{label}  10%{clear}{label}  50%{clear}{label} 100%\n{label} done\n"


def test_half_a_line_that_is_no_bar_waits_for_its_end_and_files_see_lines_alone() -> None:
    out = _Terminal()
    _read_growing(OutputView(None, out, io.StringIO(), environ=_XTERM), b"lo", b"ss 1\n")
    assert out.getvalue() == "\x1b[2m[0]\x1b[0m loss 1\n"
    file = io.StringIO()
    _read_growing(OutputView(None, file, io.StringIO()), b"\r 10%", b"\r 50%\n")
    assert file.getvalue() == "[0] \r 10%\r 50%\n"


def test_a_bar_is_cut_to_the_width_of_the_terminal() -> None:
    out = _Terminal()
    _read_growing(OutputView(None, out, io.StringIO()), b"\r" + b"#" * 200)
    assert out.getvalue().count("#") == 80 - len("[0] ") - 1
