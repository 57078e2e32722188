"""The only reader of `WINDLASS_*` variables, and the one list of them.

Everything else gets a `Settings` value. Variables that windlass hands *to* a rank (`WINDLASS_RANK` and so on) are
written by the rank script and are not settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windlass.errors import UsageError

_KNOWN = {
    "WINDLASS_SITE": "name of the site, as --site",
    "WINDLASS_SITE_FILE": "a site file of yours, as --site-file",
    "WINDLASS_CONFIG": "folder of the user's files (default: $XDG_CONFIG_HOME/windlass or ~/.config/windlass)",
    "WINDLASS_RUNS": "folder under which run folders are made (default: ./runs)",
    "WINDLASS_TRACES": "folder of the cache's recorded traces (default: $XDG_CACHE_HOME/windlass/traces)",
    "WINDLASS_STATE": "folder for what is remembered between runs (default: $XDG_STATE_HOME/windlass)",
    "WINDLASS_ALLOW_LOGIN": "1: let `windlass run` start ranks on a node that looks like a login node",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the environment says to windlass itself."""

    site: str | None = None
    site_file: Path | None = None
    config_dir: Path = Path("~/.config/windlass")
    runs_dir: Path = Path("runs")
    traces_dir: Path = Path("~/.cache/windlass/traces")
    state_dir: Path = Path("~/.local/state/windlass")
    allow_login: bool = False


def current_environ() -> dict[str, str]:
    """A copy of this process's environment: taken once by a command, then handed on as a value."""
    return dict(os.environ)


def read_settings(env: Mapping[str, str]) -> Settings:
    """Settings from an environment; a value that cannot be understood is a `UsageError`."""
    config = env.get("WINDLASS_CONFIG") or (
        str(Path(env["XDG_CONFIG_HOME"]) / "windlass") if env.get("XDG_CONFIG_HOME") else "~/.config/windlass"
    )
    traces = env.get("WINDLASS_TRACES") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/windlass/traces"
    state = env.get("WINDLASS_STATE") or f"{env.get('XDG_STATE_HOME') or '~/.local/state'}/windlass"
    allow = env.get("WINDLASS_ALLOW_LOGIN", "0")
    if allow not in {"0", "1", ""}:
        raise UsageError(f"WINDLASS_ALLOW_LOGIN is {allow!r}", hint="set it to 1 or leave it unset")
    site_file = env.get("WINDLASS_SITE_FILE")
    return Settings(
        site=env.get("WINDLASS_SITE") or None,
        site_file=Path(site_file).expanduser() if site_file else None,
        config_dir=Path(config).expanduser(),
        runs_dir=Path(env.get("WINDLASS_RUNS") or "runs").expanduser(),
        traces_dir=Path(traces).expanduser(),
        state_dir=Path(state).expanduser(),
        allow_login=allow == "1",
    )


def known_settings() -> dict[str, str]:
    """Name and meaning of every variable that is read here."""
    return dict(_KNOWN)
