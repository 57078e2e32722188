"""On which line of a TOML text a key stands. The parser of the standard library does not say, and people need it.

Only for text that already parsed: everything here may assume that it is well formed.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]
Lines = dict[Path, int]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line_index(text: str) -> Lines:
    """The line of every table, key and array element, by its path (`("settings", 3, "value")`)."""
    return _Scanner(text).run()


def line_of(lines: Lines, path: Path) -> int:
    """The line of `path`, or of the nearest thing around it that has one; 1 for the file itself."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    """Walks the text once and keeps positions, not values."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.line = 1
        self.lines: Lines = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> Lines:
        table: Path = ()
        while self._skip_blank(newlines=True):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _skip_blank(self, *, newlines: bool) -> bool:
        """Past spaces, comments and, if asked, ends of lines. False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                self._advance(self.text.index("\n", self.at))
            elif char in " \t" or (newlines and char == "\n"):
                self._advance(self.at + 1)
            else:
                return True
        return False

    def _header(self) -> Path:
        double = self.text.startswith("[[", self.at)
        self._advance(self.at + (2 if double else 1))
        keys = self._keys()
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            if position == len(keys) - 1 and double:
                self.arrays[path] = self.arrays.get(path, -1) + 1
            if path in self.arrays:
                path = (*path, self.arrays[path])
        self.lines.setdefault(path, self.line)
        self._advance(self.text.index("]", self.at) + (2 if double else 1))
        return path

    def _keys(self) -> list[str]:
        """A dotted key; stands behind it afterwards."""
        keys: list[str] = []
        while True:
            self._skip_blank(newlines=False)
            char = self.text[self.at]
            if char in "'\"":
                end = self._string_end()
                keys.append(self.text[self.at + 1 : end - 1])
            else:
                match = _BARE.match(self.text, self.at)
                assert match is not None, "the text parsed before"
                keys.append(match.group())
                end = match.end()
            self._advance(end)
            self._skip_blank(newlines=False)
            if self.text[self.at] != ".":
                return keys
            self._advance(self.at + 1)

    def _pair(self, table: Path) -> None:
        line = self.line
        path = (*table, *self._keys())
        self.lines.setdefault(path, line)
        self._advance(self.text.index("=", self.at) + 1)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank(newlines=True)
        self.lines.setdefault(path, self.line)
        char = self.text[self.at]
        if char in "'\"":
            self._advance(self._string_end())
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline(path)
        else:
            match = re.compile(r"[^,\]}#\n]*").match(self.text, self.at)
            assert match is not None
            self._advance(match.end())

    def _array(self, path: Path) -> None:
        self._advance(self.at + 1)
        index = 0
        while self._skip_blank(newlines=True) and self.text[self.at] != "]":
            self._value((*path, index))
            index += 1
            self._skip_blank(newlines=True)
            if self.text[self.at] == ",":
                self._advance(self.at + 1)
        self._advance(self.at + 1)

    def _inline(self, path: Path) -> None:
        self._advance(self.at + 1)
        while self._skip_blank(newlines=True) and self.text[self.at] != "}":
            self._pair(path)
            self._skip_blank(newlines=True)
            if self.text[self.at] == ",":
                self._advance(self.at + 1)
        self._advance(self.at + 1)

    def _string_end(self) -> int:
        """Position behind the string that starts here."""
        quote = self.text[self.at]
        triple = quote * 3
        if self.text.startswith(triple, self.at):
            end = self.at + 3
            while not self.text.startswith(triple, end):
                end += 2 if self.text[end] == "\\" and quote == '"' else 1
            end += 3
            while self.text[end] == quote:  # up to two quotes may stand right before the closing ones
                end += 1
            return end
        end = self.at + 1
        while self.text[end] != quote:
            end += 2 if self.text[end] == "\\" and quote == '"' else 1
        return end + 1
