"""What the user says to windlass once: the only reader of `WINDLASS_*` variables, with the one list of them, and of
`config.toml` in the configuration folder.

Everything else gets a `Settings` value. Variables that windlass hands *to* a rank (`WINDLASS_RANK` and so on) are
written by the rank script and are not settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from windlass.errors import ConfigError, UsageError, nearest
from windlass.node.sys.reading import read_text

_KNOWN = {
    "WINDLASS_SITE": "name of the site, as --site",
    "WINDLASS_SITE_FILE": "a site file of yours, as --site",
    "WINDLASS_CONFIG": "folder of the user's files (default: $XDG_CONFIG_HOME/windlass or ~/.config/windlass)",
    "WINDLASS_RUNS": "folder under which run folders are made (default: ./runs)",
    "WINDLASS_TRACES": "folder of the cache's recorded traces (default: $XDG_CACHE_HOME/windlass/traces)",
    "WINDLASS_STATE": "folder for what is remembered between runs (default: $XDG_STATE_HOME/windlass)",
    "WINDLASS_ALLOW_LOGIN": "1: let `windlass run` start ranks on a node that looks like a login node",
}


CONFIG_FILE = "config.toml"
_CONFIG_KEYS = ("site", "runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDefaults:
    """Options of a job that the user does not want to repeat."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    time: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the environment and the user's configuration say to windlass itself."""

    site: str | None = None
    site_file: Path | None = None
    config_dir: Path = Path("~/.config/windlass")
    runs_dir: Path = Path("runs")
    traces_dir: Path = Path("~/.cache/windlass/traces")
    state_dir: Path = Path("~/.local/state/windlass")
    allow_login: bool = False
    job: JobDefaults = JobDefaults()
    job_at: Mapping[str, JobDefaults] = field(default_factory=dict)
    """By the site's name; what it says counts more than `job`."""


def current_environ() -> dict[str, str]:
    """A copy of this process's environment: taken once by a command, then handed on as a value."""
    return dict(os.environ)


def read_settings(env: Mapping[str, str]) -> Settings:
    """Settings from an environment and the configuration that it names. A variable that cannot be understood is a
    `UsageError`, a file a `ConfigError`; a variable counts more than the file."""
    config = env.get("WINDLASS_CONFIG") or (
        str(Path(env["XDG_CONFIG_HOME"]) / "windlass") if env.get("XDG_CONFIG_HOME") else "~/.config/windlass"
    )
    traces = env.get("WINDLASS_TRACES") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/windlass/traces"
    state = env.get("WINDLASS_STATE") or f"{env.get('XDG_STATE_HOME') or '~/.local/state'}/windlass"
    allow = env.get("WINDLASS_ALLOW_LOGIN", "0")
    if allow not in {"0", "1", ""}:
        raise UsageError(f"WINDLASS_ALLOW_LOGIN is {allow!r}", hint="set it to 1 or leave it unset")
    site_file = env.get("WINDLASS_SITE_FILE")
    config_dir = Path(config).expanduser()
    file = read_config(config_dir / CONFIG_FILE)
    sites = {name: JobDefaults(**table) for name, table in file.pop("sites", {}).items()}
    return Settings(
        site=env.get("WINDLASS_SITE") or file.pop("site", None),
        site_file=Path(site_file).expanduser() if site_file else None,
        config_dir=config_dir,
        runs_dir=Path(env.get("WINDLASS_RUNS") or file.pop("runs", None) or "runs").expanduser(),
        traces_dir=Path(traces).expanduser(),
        state_dir=Path(state).expanduser(),
        allow_login=allow == "1",
        job=JobDefaults(**{name: value for name, value in file.items() if name not in _CONFIG_KEYS}),
        job_at=sites,
    )


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a `config.toml`, checked; empty where there is no such file."""
    try:
        text = read_text(path, follow=True).lstrip("\ufeff")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint="mend it, or move it away") from error
    from windlass.base.tables import tomllib  # here: most users have no such file, and `--help` needs no parser

    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not TOML: {error}", hint="mend it, or move it away: `windlass init` writes a new one"
        ) from error
    _check_config(path, table)
    return table


def job_keys() -> tuple[str, ...]:
    """Options of a job that `config.toml` may hold, for all sites and for each."""
    return tuple(each.name for each in fields(JobDefaults))


def _check_config(path: Path, table: dict[str, Any]) -> None:
    sites = table.get("sites", {})
    if not isinstance(sites, dict) or not all(isinstance(each, dict) for each in sites.values()):
        raise ConfigError(f"{path}: sites is not a table of tables", hint="write [sites.NAME] above the keys of a site")
    top = {key: value for key, value in table.items() if key != "sites"}
    for where, keys, known in (
        ("", top, (*_CONFIG_KEYS, *job_keys(), "sites")),
        *((f"sites.{name}.", each, job_keys()) for name, each in sites.items()),
    ):
        for key, value in keys.items():
            if key not in known:
                close = nearest(key, known)
                hint = f"did you mean {close}?" if close else f"known are {', '.join(known)}"
                raise ConfigError(f"{path}: unknown key {where}{key}", hint=hint)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{path}: {where}{key} is {value!r}", hint='give text, as in account = "abc123"')


def known_settings() -> dict[str, str]:
    """Name and meaning of every variable that is read here."""
    return dict(_KNOWN)
