"""The source of a decision, so that a plan can show a reason and a source for each entry.

The module also defines arguments of launchers and batch directives in catalog files, and how they replace defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from windlass.model.condition import ALWAYS, Table, When

Scope = Literal["builtin", "hardware", "network", "site", "partition", "centre", "user", "environment", "flag"]
SCOPES: tuple[Scope, ...] = (
    "builtin",
    "hardware",
    "network",
    "site",
    "partition",
    "centre",
    "user",
    "environment",
    "flag",
)

Grade = Literal["site", "vendor", "community", "derived", "unconfirmed"]


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scope that decided, the place to look it up, and the date when it was last checked."""

    scope: Scope
    where: str = ""
    file: str = ""
    """Name of the catalog file or path of the user's file."""
    checked: str | None = None
    grade: Grade | None = None

    def text(self) -> str:
        who = f"{self.scope} {self.file}" if self.file else self.scope
        parts = [who if not self.where else f"{who}: {self.where}"]
        if self.checked:
            parts.append(f"checked {self.checked}")
        if self.grade in {"unconfirmed", "community"}:
            parts.append(self.grade.upper())
        return ", ".join(parts)


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An inherited entry that a file leaves out with `drop`."""

    name: str
    text: str
    because: str
    origin: Origin
    by: str
    """The file that leaves it out."""


BUILTIN = Origin(scope="builtin", where="windlass")


class Argument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One or more words of a command line that belong together (`-n 8`), with the reason for them."""

    words: tuple[str, ...]
    because: str
    origin: Origin = BUILTIN
    expand: bool = False
    """The job's shell expands `${NAME}` in the arguments, after it has loaded the modules. An unset variable is an
    error there."""

    @property
    def name(self) -> str:
        """The option's name without its value: `--cpu-bind` of `--cpu-bind=list:1:2`."""
        return self.words[0].split("=", 1)[0] if self.words else ""


def argv_of(arguments: tuple[Argument, ...]) -> tuple[str, ...]:
    """Return all words in order, as the tail of an argv."""
    return tuple(word for argument in arguments for word in argument.words)


_REPEATABLE = ("-l", "-W", "-o", "-x", "--env", "--genv", "-genv", "--mca", "--setattr", "--setopt", "--bind", "-B")


def argument_key(words: tuple[str, ...]) -> str:
    """Return the name of an option without its value. For a repeatable option, include the name in the value."""
    first, equals, value = words[0].partition("=") if words else ("", "", "")
    if first not in _REPEATABLE:
        return first
    if not equals:
        value = words[1] if len(words) > 1 else ""
    return f"{first} {value.split('=', 1)[0]}".strip()


class SourceSpec(Table, frozen=True, kw_only=True):
    """Where facts were read. `checked` is the date of the copy, `grade` is how far to trust it."""

    where: str
    checked: str
    grade: Grade = "site"


class ArgumentSpec(Table, frozen=True, kw_only=True):
    """Arguments of a batch directive or of the launcher's command line."""

    words: tuple[str, ...]
    because: str
    source: str
    when: When = ALWAYS
    note: str = ""
    origin: Origin | None = None

    @property
    def key(self) -> str:
        """The option that this sets: `--network`, `-l place`, `--setattr rdzv_get_en`. A higher scope replaces it."""
        return argument_key(self.words)


def with_site(defaults: Iterable[Argument], own: tuple[ArgumentSpec, ...]) -> tuple[Argument, ...]:
    """Return the defaults, followed by the site's arguments in the site's order.

    If both set the same option, only the site's remains. The reason: launchers accept a repeated option without a
    message, and not all of them use the last one. The planner has already removed the site's arguments whose condition
    does not hold.
    """
    said = {spec.key: spec for spec in own}  # if an option applies twice, the last one wins, as with variables
    return (
        *(argument for argument in defaults if argument_key(argument.words) not in said),
        *(
            Argument(
                words=spec.words, because=spec.because, origin=spec.origin or Origin(scope="site", where=spec.source)
            )
            for spec in said.values()
        ),
    )
