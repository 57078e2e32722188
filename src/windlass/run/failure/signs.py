"""What lines of logs and messages of the kernel mean: the table `data/signs.toml`, for supervision and for explain-log.

A sign names the kind of the cause and how sure it is. A line of a log that the script's own code can bring about never
condemns a node. Signs with `proves` can: only a fault of the hardware brings them about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from windlass.base.tables import packaged_table
from windlass.run.failure.last_lines import LOST_PEERS

Origin = Literal["script", "node", "device", "file system", "network", "job", "unknown"]
"""What is at fault. `job`: what the job asked for or was given (memory, time, disk space)."""

Confidence = Literal["certain", "likely", "possible"]

SignClass = Literal["cause", "slow", "follows", "harmless"]
"""`slow`: nothing fails by it, but it costs time. `follows`: a rank that lost its peers says so."""


class Sign(NamedTuple):
    """One row. The comments of the table say what each field means."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str = ""
    kind: SignClass = "cause"
    vendor: Literal["NVIDIA", "AMD", "Intel", "any"] = "any"
    origin: Origin = "unknown"
    confidence: Confidence = "possible"
    tells: Literal["strong", "", "weak"] = ""
    ends: Literal["", "memory", "disk"] = ""
    proves: bool = False
    kernel: bool = False
    words: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name if self.vendor == "any" else f"{self.name} ({self.vendor})"


@lru_cache(maxsize=1)
def all_signs() -> tuple[Sign, ...]:
    """Every row of the table, in its order. Read when the first log is."""
    table = packaged_table(__file__, "signs.toml")
    return tuple(_sign(row, table["remedies"]) for row in table["sign"])


def _sign(row: dict[str, Any], remedies: dict[str, str]) -> Sign:
    renamed = {"class": "kind", "sure": "confidence"}
    fields = {renamed.get(key, key): value for key, value in row.items()}
    source = fields["pattern"]
    fields["pattern"] = re.compile(source, re.IGNORECASE) if source else LOST_PEERS
    fields["remedy"] = remedies.get(fields.get("remedy", ""), fields.get("remedy", ""))
    return Sign(**{**fields, "words": tuple(fields.get("words", ()))})


@lru_cache(maxsize=1)
def log_signs() -> tuple[Sign, ...]:
    """The rows about lines of logs."""
    return tuple(sign for sign in all_signs() if not sign.kernel)


def sign_of(line: str) -> Sign | None:
    """The cause that an error line of a rank or of a launcher names; None where the table has none for it."""
    found = next((sign for sign in log_signs() if sign.pattern.search(line)), None)
    return found if found is not None and found.kind == "cause" and found.tells != "weak" else None


def first_sign_line(lines: Iterable[str]) -> str:
    """The first of these lines that names a cause; empty where none does."""
    return next((line.strip() for line in lines if sign_of(line)), "")


def kernel_proof(lines: Iterable[str]) -> tuple[Sign, str] | None:
    """The first kernel message that is evidence about the node itself, with its sign."""
    for line in lines:
        sign = next((sign for sign in all_signs() if sign.kernel and sign.pattern.search(line)), None)
        if sign is not None and sign.proves:
            return sign, line
    return None
