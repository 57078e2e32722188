"""Editing a command line that has defaults: add words, replace an option, or take a default away with `~`. Pure."""

from __future__ import annotations

import shlex

from windlass.errors import UsageError, nearest
from windlass.model.origin import Argument, Origin
from windlass.model.site import argument_key


def edit_arguments(defaults: tuple[Argument, ...], edits: tuple[str, ...], *, flag: str) -> tuple[Argument, ...]:
    """`defaults` after the user's edits. `~--name` removes a default and is an error where there is none; an option
    that is there already is replaced in its place; anything else goes to the end."""
    out = list(defaults)
    origin = Origin(scope="flag", where=flag)
    for edit in edits:
        if edit.startswith("~"):
            _remove(out, edit[1:].strip(), flag)
            continue
        words = tuple(shlex.split(edit)) if " " in edit and not edit.count("=") else (edit,)
        words = _split_option(edit) or words
        made = Argument(words=words, because="you asked for it", origin=origin)
        key = argument_key(words)
        for at, old in enumerate(out):
            if argument_key(old.words) == key and at > 0:
                out[at] = made
                break
        else:
            out.append(made)
    return tuple(out)


def _split_option(edit: str) -> tuple[str, ...] | None:
    """`-l filesystems=home:flare` is two words; `--comment=two words` is one."""
    head, space, tail = edit.partition(" ")
    if space and head.startswith("-") and "=" not in head:
        return (head, tail.strip())
    return None


def _remove(out: list[Argument], name: str, flag: str) -> None:
    matching = [a for a in out[0:] if argument_key(a.words) == name or a.name == name]
    if not matching:
        known = [argument_key(a.words) for a in out]
        close = nearest(name, known)
        raise UsageError(
            f"{flag} ~{name}: no default of this name to remove",
            hint=(f"did you mean ~{close}? " if close else "") + f"there are: {', '.join(known)}",
        )
    for argument in matching:
        out.remove(argument)
