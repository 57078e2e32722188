"""Files that another user may have written are read with bounds, or end in one error that names the file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from windlass.model.jsontext import from_json
from windlass.node.sys.reading import UnreadableError, read_bytes, read_lines, read_object, read_tail, read_text


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": a_socket,
}
READERS: dict[str, Callable[[Path], object]] = {
    "bytes": read_bytes,
    "text": read_text,
    "object": read_object,
    "tail": lambda path: read_tail(path, 10),
    "lines": lambda path: list(read_lines(path)),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_plain_is_refused_by_name(
    kind: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SPECIAL[kind](tmp_path / "plan.json")
    with pytest.raises(UnreadableError, match=r"plan\.json: is (a link|not a plain file)"):
        READERS[reader](tmp_path / "plan.json")


def test_a_link_that_the_user_chose_is_followed_but_not_to_a_device(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    assert read_text(tmp_path / "link", follow=True) == "x"
    with pytest.raises(UnreadableError, match="not a plain file"):
        read_text("/dev/zero", follow=True)


def test_a_linked_folder_below_the_run_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "n0").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out").symlink_to("../private")
    with pytest.raises(UnreadableError, match="link"):
        read_bytes(tmp_path / "run" / "out" / "n0", within=tmp_path / "run")
    with pytest.raises(UnreadableError, match="not below"):
        read_bytes(tmp_path / "private" / "n0", within=tmp_path / "run")
    assert read_bytes(tmp_path / "private" / "n0", within=tmp_path) == b"secret"


def test_a_file_over_the_limit_is_refused_and_its_tail_and_lines_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"first\n")
        file.truncate(1 << 30)
    with pytest.raises(UnreadableError, match="larger than 16777216 bytes"):
        read_bytes(tmp_path / "log")
    assert read_tail(tmp_path / "log", 3) == b"\0\0\0"
    lines = read_lines(tmp_path / "log", 8)
    assert [next(lines), next(lines)] == [b"first\n", b"\0" * 8]
    (tmp_path / "log").write_bytes(b"0123456789\nab\n")
    assert list(read_lines(tmp_path / "log", 4)) == [b"0123", b"ab\n"]


def test_a_file_of_the_kernel_with_no_size_is_read() -> None:
    assert read_text("/proc/self/status").startswith("Name:")


@pytest.mark.parametrize(
    "text", [b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b"[" * 100_000, b"[]", b"", b'{"a"', b"\xff", b"9"]
)
def test_json_that_is_no_object_with_finite_numbers_is_refused_by_name(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(UnreadableError, match=r"x\.json: is not"):
        read_object(tmp_path / "x.json")


class Point(msgspec.Struct):
    x: float
    name: str = ""


@pytest.mark.parametrize(
    "text", [b'{"x": NaN}', b'{"x": 1e999}', b'{"x": NaN, "name": "\\udc80"}', b"[" * 100_000, b"[]", b"", b"\xff"]
)
def test_a_typed_text_is_read_or_ends_in_one_kind_of_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(text, Point)
    assert from_json(b'{"x": 1e3, "name": "\\udc80"}', Point) == Point(1000.0, "\udc80")
