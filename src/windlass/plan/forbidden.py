"""Options that the computing centre forbids. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from windlass.base.centre import ForbiddenOption
from windlass.errors import UsageError
from windlass.model.origin import Argument
from windlass.model.request import Request

_OPTIONS = {
    "directives": "--directive",
    "launcher_args": "--arg",
    "container_args": "--container-arg",
    "binds": "--bind",
    "modules": "--module",
    "options": "--with",
    "hang_after_s": "--hang-after",
    "grace_s": "--grace",
}
"""Fields of a request whose name differs from their option."""


def refuse_forbidden(said: Iterable[tuple[str, str]], rules: tuple[ForbiddenOption, ...]) -> None:
    """Raise `UsageError` with the centre's reason for the first option that a rule names.

    `said` are the options with their values.
    """
    for name, value in said if rules else ():
        spelled = {name, f"{name}={value}", f"{name} {value}"}
        key, equals, _ = value.partition("=")
        spelled |= {f"{name}={key}", f"{name} {key}"} if equals else set()
        for rule in rules:
            for option in spelled & set(rule.options):  # the rule's spelling: a value may be a secret
                raise UsageError(f"{option} is forbidden at this centre: {rule.because}", hint=f"leave out {name}")


def request_options(request: Request) -> Iterator[tuple[str, str]]:
    """The options of a request that are not at their defaults."""
    for field, value in msgspec.to_builtins(request).items():
        name = _OPTIONS.get(field, "--" + field.replace("_", "-"))
        for item in value if isinstance(value, tuple) else (value,):
            yield name, "=".join(item) if isinstance(item, tuple) else "" if item is True else str(item)


def users_arguments(arguments: Iterable[Argument]) -> Iterator[tuple[str, str]]:
    """The scheduler and launcher arguments that come from the user's options and files."""
    for argument in arguments:
        if argument.origin.scope in ("user", "environment", "flag"):
            name, _, value = argument.words[0].partition("=")
            yield name, " ".join((value, *argument.words[1:])).strip()
