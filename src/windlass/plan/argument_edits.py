"""Editing a command line that has defaults: add words, replace an option, or take a default away with `~`. Pure."""

from __future__ import annotations

from windlass.errors import UsageError, nearest
from windlass.model.argument import argument_key
from windlass.model.origin import Argument, Origin


def edit_arguments(defaults: tuple[Argument, ...], edits: tuple[str, ...], *, flag: str) -> tuple[Argument, ...]:
    """`defaults` after the user's edits. `~--name` removes a default and is an error where there is none; an option
    that is there already is replaced in its place; anything else goes to the end."""
    out = list(defaults)
    origin = Origin(scope="flag", where=flag)
    for edit in edits:
        if edit.startswith("~"):
            _remove(out, edit[1:].strip(), flag)
            continue
        words = _words(edit, flag)
        made = Argument(words=words, because="you asked for it", origin=origin)
        key = argument_key(words)
        for index, old in enumerate(out):
            if argument_key(old.words) == key and _is_option(old):
                out[index] = made
                break
        else:
            out.append(made)
    return tuple(out)


def _words(edit: str, flag: str) -> tuple[str, ...]:
    """`-l filesystems=home:flare` is two words; `--comment=two words` and whatever is no option is one."""
    if not edit.strip():
        raise UsageError(f"{flag} has an empty value", hint="give an option as in --name=value or '-x value'")
    if flag == "--directive" and "\n" in edit:
        raise UsageError(f"--directive {edit!r} has a line break", hint="a directive of a batch script is one line")
    head, space, tail = edit.partition(" ")
    if space and head.startswith("-") and "=" not in head:
        return (head, tail.strip())
    return (edit,)


def _is_option(argument: Argument) -> bool:
    """The program at the front of a command line is none: it cannot be replaced or removed."""
    return argument.words[0].startswith("-")


def _remove(out: list[Argument], name: str, flag: str) -> None:
    matching = [a for a in out if _is_option(a) and name in {argument_key(a.words), a.name}]
    if not matching:
        known = [argument_key(a.words) for a in out if _is_option(a)]
        close = nearest(name, known)
        raise UsageError(
            f"{flag} ~{name}: no default of this name to remove",
            hint=(f"did you mean ~{close}? " if close else "") + f"there are: {', '.join(known)}",
        )
    for argument in matching:
        out.remove(argument)
