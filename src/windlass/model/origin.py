"""Where a decision comes from. Everything in a plan can say its reason and its source."""

from __future__ import annotations

from typing import Literal

import msgspec

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
    """The scope that decided, the place to look it up, and when somebody last looked."""

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


BUILTIN = Origin(scope="builtin", where="windlass")


class Argument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One or more words of a command line that belong together (`-n 8`), with the reason they are there."""

    words: tuple[str, ...]
    because: str
    origin: Origin = BUILTIN
    expand: bool = False
    """`${NAME}` in the words is filled in by the job's shell, after its modules; a variable that is not set is an
    error there."""

    @property
    def name(self) -> str:
        """The option's name without its value: `--cpu-bind` of `--cpu-bind=list:1:2`."""
        return self.words[0].split("=", 1)[0] if self.words else ""


def argv_of(arguments: tuple[Argument, ...]) -> tuple[str, ...]:
    """All words in order, as an argv tail."""
    return tuple(word for argument in arguments for word in argument.words)
