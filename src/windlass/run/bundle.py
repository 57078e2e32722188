"""Archives for people outside the project (a self-test, a bug report): how they are redacted and written.

Secrets are redacted by the rules of `model.secrets`. Values of secret variables that are known here are redacted in
every encoding in which programs repeat them. The values of the user's variables in a plan are redacted too, except
those of the collective libraries.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import tarfile
import time
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from windlass.base.notation.shell import quote
from windlass.errors import UsageError, os_errors
from windlass.model.plan import Plan, Setting
from windlass.model.secrets import MASK, is_secret, mask_text
from windlass.node.checks.selftest import VARIABLES
from windlass.node.sys.atomic import replacing
from windlass.node.sys.reading import open_plain
from windlass.plan.render.variables import SECRETS_FILE, setting_lines
from windlass.run.folder import RunFolder

_SECRETS_BYTES = 4 << 20
_SHORT = 3
"""Values up to this length are redacted only where the variable is set. In other places they could mean anything."""
_LONG_LINE = 12
"""Minimum length of a line of a multi-line secret that is redacted alone. Logs insert labels between such lines."""
_KEY_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrubber:
    """Redacts secrets in texts."""

    known: frozenset[str] = frozenset()
    lines: Mapping[str, str] = field(default_factory=dict)
    """Whole lines of scripts that set a redacted variable, and their replacements."""
    home: str = ""
    """The user's home folder, shown as `~`."""

    def clean(self, text: str) -> str:
        for line, masked in self.lines.items():
            text = text.replace(line, masked)
        for value in sorted(self.known, key=len, reverse=True):
            text = text.replace(value, MASK)
        end = _KEY_END.search(text)
        if end and "-----BEGIN" not in text[: end.start()]:  # the text starts inside a key
            text = MASK + text[end.end() :]
        text = mask_text(text)
        return re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text) if len(self.home) > _SHORT else text


def scrubber(
    environ: Mapping[str, str],
    given: Iterable[tuple[str, str]] = (),
    plan: Plan | None = None,
    folder: RunFolder | None = None,
    *,
    home: str = "",
) -> Scrubber:
    """Create a scrubber for the secrets of an environment, of options (`--env`), and of the user's variables in a plan.

    It also covers the secrets that a run stores for ranks that have not started yet.
    """
    values = {value for name, value in (*environ.items(), *given) if is_secret(name, value)}
    lines: dict[str, str] = {}
    if plan is not None:
        for setting, masked in zip(plan.environment, plan_for_strangers(plan).environment, strict=True):
            if setting.value is not None and setting != masked:
                lines[setting_lines(setting)[-1]] = setting_lines(masked)[-1]
                values.add(setting.value)
    if folder is not None:
        values |= set(_kept_secrets(folder))
    forms = {form for value in values if value != MASK for form in _forms(value)}
    return Scrubber(known=frozenset(form for form in forms if len(form) > _SHORT), lines=lines, home=home)


def _kept_secrets(folder: RunFolder) -> Iterator[str]:
    try:
        words = shlex.split(tail_text(folder.part(SECRETS_FILE), _SECRETS_BYTES), comments=True)
    except (OSError, ValueError):
        return
    for word in words:
        value = word.partition("=")[2]
        yield value
        yield from (mask for mask in value.split("=")[1:] if mask)  # `--token=X`, and X alone


def _forms(value: str) -> Iterator[str]:
    """Yield the encodings in which programs repeat a value.

    These are: unchanged, JSON, shell-quoted, URL-encoded and base64. A multi-line value also yields each line alone.
    """
    yield value
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        yield text[1:-1]
    yield quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", "'\\''")
    yield repr(value)[1:-1]
    yield urllib.parse.quote(value, safe="", errors="replace")
    if len(value) > _LONG_LINE:
        yield base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) > _LONG_LINE)


def plan_for_strangers(plan: Plan) -> Plan:
    """Return the plan without the values of the user's variables, except those that may be shown."""

    def users(setting: Setting) -> bool:
        return setting.origin.scope == "environment" or setting.origin.where == "--env"

    def shown(name: str) -> bool:
        return VARIABLES.match(name) is not None

    settings = tuple(
        setting
        if setting.value is None or not users(setting) or shown(setting.name)
        else msgspec.structs.replace(setting, value=MASK)
        for setting in plan.environment
    )
    env = tuple((name, value if shown(name) else MASK) for name, value in plan.request.env)
    return msgspec.structs.replace(plan, environment=settings, request=msgspec.structs.replace(plan.request, env=env))


def tail_text(path: Path, max_bytes: int, *, within: Path | None = None) -> str:
    """Return the last bytes of a file as text, starting at the beginning of a line.

    Raises `OSError` unless the path is a regular file: a link may point anywhere, and reading a pipe may block forever.
    """
    with open_plain(path, within=within) as file:
        skipped = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        file.seek(skipped)
        data = file.read(max_bytes)
    if skipped:  # half a line may contain half a secret, which no rule recognises
        data = b"[%d bytes before this are left out]\n" % skipped + data.partition(b"\n")[2]
    return data.decode("utf-8", "surrogateescape")


def write_archive(path: Path, top: str, files: Mapping[str, str], scrub: Scrubber, *, option: str) -> None:
    """Write the files to one archive, each of them redacted. Only the user can read the archive.

    The format is zip if the name ends so, otherwise a gzipped tar. `option` is the option that sets another path.
    """
    data = {f"{top}/{name}": scrub.clean(text).encode("utf-8", "surrogateescape") for name, text in files.items()}
    explained = os_errors(f"write the bundle {path}", hint=f"name another with {option}", kind=UsageError)
    with explained, replacing(path) as stream:
        (_write_zip if path.suffix == ".zip" else _write_tar)(stream, data)


def _write_tar(stream: BinaryIO, files: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _write_zip(stream: BinaryIO, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
