"""Arguments of a launcher or of a batch directive in a catalog file, and how they replace defaults."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.model.condition import ALWAYS, Table, When
from windlass.model.origin import Argument, Origin

_REPEATABLE = ("-l", "-W", "-o", "-x", "--env", "--genv", "-genv", "--mca", "--setattr", "--setopt", "--bind", "-B")


def argument_key(words: tuple[str, ...]) -> str:
    """The name of an option without its value; for options that may be given many times, with the name in the value."""
    first, equals, value = words[0].partition("=") if words else ("", "", "")
    if first not in _REPEATABLE:
        return first
    if not equals:
        value = words[1] if len(words) > 1 else ""
    return f"{first} {value.split('=', 1)[0]}".strip()


class ArgumentSpec(Table, frozen=True, kw_only=True):
    """Words of a batch directive or of the launcher's command line."""

    words: tuple[str, ...]
    because: str
    source: str
    when: When = ALWAYS
    note: str = ""
    origin: Origin | None = None

    @property
    def key(self) -> str:
        """What this is a value of: `--network`, `-l place`, `--setattr rdzv_get_en`. A higher scope replaces by it."""
        return argument_key(self.words)


def with_site(defaults: Iterable[Argument], own: tuple[ArgumentSpec, ...]) -> tuple[Argument, ...]:
    """The defaults and then the site's own words, in its order. Where both say the same option, the site's counts:
    launchers take an option that is given twice in silence, and not all take the last one. The planner has already
    left out those of the site whose condition does not hold."""
    said = {spec.key: spec for spec in own}  # of an option that holds twice the last, as with variables
    return (
        *(argument for argument in defaults if argument_key(argument.words) not in said),
        *(
            Argument(
                words=spec.words, because=spec.because, origin=spec.origin or Origin(scope="site", where=spec.source)
            )
            for spec in said.values()
        ),
    )
