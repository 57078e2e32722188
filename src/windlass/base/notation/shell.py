"""Text for a POSIX shell: the one place where words are quoted.

Three kinds of word: literal (`quote`), with `${NAME}` that the node expands (`expandable`), and with `{rank}`-like
placeholders that the rank script fills in (`fillable`). All three survive spaces, quotes, newlines, `$(…)`, globs and
bytes that are not UTF-8 (as surrogate escapes); a NUL cannot be in an argument at all and is refused.
"""

from __future__ import annotations

import re

from windlass.errors import UsageError

PLACEHOLDERS = (
    "rank",
    "local_rank",
    "node_rank",
    "world_size",
    "nodes",
    "ranks_per_node",
    "master_addr",
    "master_port",
    "job_id",
    "view",
)

_COMMENT_WIDTH = 116
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
"""What a variable's name looks like."""


def quote(text: str) -> str:
    """The word for a shell, as itself where that is safe and readable, else in single quotes."""
    if "\0" in text:
        raise UsageError(f"an argument holds a NUL character: {text[:40]!r}", hint="no command line can carry it")
    if _SAFE.match(text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def quote_words(words: tuple[str, ...]) -> str:
    """Several words, separated by spaces."""
    return " ".join(quote(word) for word in words)


def expandable(text: str) -> str:
    """The word with each `${NAME}` left for the shell; an unset variable expands to nothing."""
    out = []
    at = 0
    for match in _VARIABLE.finditer(text):
        if match.start() > at:
            out.append(quote(text[at : match.start()]))
        out.append(f'"${{{match.group(1)}-}}"')
        at = match.end()
    if at < len(text) or not out:
        out.append(quote(text[at:]))
    return "".join(out)


def variable_names(text: str) -> tuple[str, ...]:
    """Names of the `${NAME}` in a text, as `expandable` finds them."""
    return tuple(match.group(1) for match in _VARIABLE.finditer(text))


def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    inner = "|".join(names)
    return re.compile(r"\{\{(" + inner + r")\}\}|\{(" + inner + r")\}")


_PLACEHOLDER = _pattern(PLACEHOLDERS)
_PLACEHOLDER_OR_DEVICE = _pattern((*PLACEHOLDERS, "device"))


def fillable(text: str, *, expand: bool = False) -> str:
    """The word with `{rank}` and the like taken from the rank script's variables `w_rank`, …; `{{rank}}` is a literal
    `{rank}`. Other braces stay as they are. With `expand`, `${NAME}` is left for the shell and `{device}` is known."""
    pattern = _PLACEHOLDER_OR_DEVICE if expand else _PLACEHOLDER
    literal = expandable if expand else quote
    out = []
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            out.append(literal(text[at : match.start()]))
        out.append(quote("{" + match.group(1) + "}") if match.group(1) else f'"$w_{match.group(2)}"')
        at = match.end()
    if at < len(text) or not out:
        out.append(literal(text[at:]))
    return "".join(out)


def literal(text: str) -> str:
    """The text with its placeholders doubled: `fillable` gives it back as it is."""
    return re.sub(r"\{(" + "|".join(PLACEHOLDERS) + r")\}", r"{{\1}}", text)


def comment(text: str) -> list[str]:
    """Text as comment lines. Control characters are shown escaped, so that no line of it can ever be executed."""
    safe = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    lines: list[str] = []
    line = ""
    for word in safe.split(" "):
        if line and len(line) + len(word) + 3 > _COMMENT_WIDTH:
            lines.append(f"# {line}")
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(f"# {line}".rstrip())
    return lines
