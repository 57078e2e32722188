"""The one tree of errors. Every error says what is wrong and where; `hint` says what to do about it.

Library code raises these; the command line prints them without a traceback and exits with `exit_code`. Anything else
that reaches the top is a bug in windlass and is shown as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


class WindlassError(Exception):
    """Base of all expected failures. `transient` is true where trying again later may help."""

    exit_code = 1
    transient = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """With the hint: in a traceback of the user's script it is all that there is to see."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(WindlassError):
    """The request is wrong: an option, a value, or two that contradict each other."""

    exit_code = 2


class ConfigError(WindlassError):
    """A file of the catalog or of the user is wrong."""

    exit_code = 2


class MachineError(WindlassError):
    """The machine is not as the request needs it: a missing command, folder, device or permission."""

    exit_code = 3


class CommandError(WindlassError):
    """A command that windlass ran failed. Keeps what ran and what it said."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        argv: tuple[str, ...],
        code: int | None,
        output: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.argv = argv
        self.code = code
        self.output = output


class DeadlineError(CommandError):
    """A wait reached its deadline."""

    transient = True


class VersionError(WindlassError):
    """A plan, record or message was written by a newer windlass than this one."""

    exit_code = 2


@contextlib.contextmanager
def os_errors(action: str, *, hint: str, kind: type[WindlassError] = MachineError) -> Iterator[None]:
    """Raise what the operating system refuses as `kind`: `cannot write FILE: No space left on device`."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot {action}: {error.strerror or error}", hint=hint) from error


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one, or None where nothing is close."""
    from difflib import get_close_matches  # here: only mistakes need it

    spelled = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def unknown_name(kind: str, name: str, known: Iterable[str], *, where: str = "") -> UsageError:
    """The error for a name that is not in a closed set; names the nearest one and lists the set."""
    names = sorted(known)
    close = nearest(name, names)
    place = f"{where}: " if where else ""
    hint = f"did you mean {close!r}? " if close else ""
    return UsageError(f"{place}unknown {kind} {name!r}", hint=f"{hint}known: {', '.join(names)}")
