"""Quote text for a POSIX shell. No other module quotes arguments.

There are three kinds of argument. `quote` makes a literal one. `expandable` keeps `${NAME}` for the node to expand.
`fillable` keeps `{rank}`-like placeholders that the rank script fills in. All three preserve spaces, quotes, newlines,
`$(…)`, globs and bytes that are not UTF-8 (as surrogate escapes). An argument cannot contain a NUL, so NUL is an error.
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
"""Pattern of a variable's name."""


def quote(text: str) -> str:
    """Quote one argument for a shell. Safe text stays unquoted and readable. Other text gets single quotes."""
    if "\0" in text:
        raise UsageError(f"an argument holds a NUL character: {text[:40]!r}", hint="no command line can carry it")
    if _SAFE.match(text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def quote_words(words: tuple[str, ...]) -> str:
    """Quote several arguments, separated by spaces."""
    return " ".join(quote(word) for word in words)


def expandable(text: str) -> str:
    """Quote one argument but leave each `${NAME}` to the shell. An unset variable expands to the empty string."""
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
    """Return the names of each `${NAME}` in a text, with the pattern of `expandable`."""
    return tuple(match.group(1) for match in _VARIABLE.finditer(text))


def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    inner = "|".join(names)
    return re.compile(r"\{\{(" + inner + r")\}\}|\{(" + inner + r")\}")


_PLACEHOLDER = _pattern(PLACEHOLDERS)
_PLACEHOLDER_OR_DEVICE = _pattern((*PLACEHOLDERS, "device"))


def fillable(text: str, *, expand: bool = False) -> str:
    """Quote one argument and fill `{rank}` and the like from the rank script's variables `w_rank`, ….

    `{{rank}}` is a literal `{rank}`. Other braces do not change. With `expand`, the shell expands `${NAME}`, and
    `{device}` is a placeholder too.
    """
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
    """Double the placeholders of a text, so that `fillable` returns the original text."""
    return re.sub(r"\{(" + "|".join(PLACEHOLDERS) + r")\}", r"{{\1}}", text)


def comment(text: str) -> list[str]:
    """Format text as comment lines. Control characters are escaped, so that the shell can execute no line of it."""
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
