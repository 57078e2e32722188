"""The size of what pip will download for an environment, asked before the work starts.

pip resolves the packages without installing them. The servers then give the size of each file.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from windlass.base.procs.command import run_command
from windlass.build.envs.plan import EnvPlan
from windlass.errors import WindlassError

_RESOLVE_S = 300.0
_SIZES_S = 30.0
_REPLY_S = 5.0


class Download(NamedTuple):
    """Number and size of the files. `unknown` files have no known size, or pip could not resolve them."""

    files: int
    size_bytes: int
    unknown: int


def measure_download(plan: EnvPlan, environ: Mapping[str, str]) -> Download | None:
    """Ask for the size. None if a module provides packages, or if the base Python has no pip or cannot resolve."""
    commands = list(_installs(plan))
    if plan.beneath != "nothing" or not commands:
        return None
    python = next((shlex.split(line)[0] for step in plan.steps for line in step.commands if " -m venv" in line), "")
    urls: dict[str, None] = {}
    unresolved = 0
    for arguments in commands:
        argv = (python, "-I", "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
        try:
            done = run_command((*argv, *arguments), timeout_s=_RESOLVE_S, env=environ)
            urls.update(dict.fromkeys(_urls(json.loads(done.stdout))))
        except (WindlassError, ValueError, KeyError, TypeError, AttributeError):
            unresolved += 1
    sizes = list(_sizes(tuple(urls)))
    if not urls:
        return None
    return Download(len(urls), sum(sizes), len(urls) - len(sizes) + unresolved)


def _installs(plan: EnvPlan) -> Iterator[tuple[str, ...]]:
    """Yield pip's arguments, without packages that are compiled: pip would have to build them."""
    plain: list[str] = []
    for line in (line for step in plan.steps for line in step.commands):
        before, install, after = line.partition("py -m pip install ")
        if install and "--no-" not in after and not before.strip():
            words = [word for word in shlex.split(after) if word not in ("-c", "$ENV/constraints.txt")]
            if any(word.startswith("-") for word in words):
                yield tuple(words)
            else:
                plain += words
    if plain:
        yield tuple(plain)


def _urls(report: dict[str, Any]) -> Iterator[str]:
    for entry in report["install"]:
        yield str(entry["download_info"]["url"])


def _sizes(urls: tuple[str, ...]) -> Iterator[int]:
    end = time.monotonic() + _SIZES_S
    for url in urls:
        with contextlib.suppress(OSError, ValueError):
            parts = urllib.parse.urlsplit(url)
            if parts.scheme == "file":
                yield Path(urllib.parse.unquote(parts.path)).stat().st_size
            elif parts.scheme in ("http", "https") and time.monotonic() < end:
                request = urllib.request.Request(url, method="HEAD")
                with urllib.request.urlopen(request, timeout=_REPLY_S) as reply:
                    yield int(reply.headers["Content-Length"])
