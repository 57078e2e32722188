"""Read the user's settings from `WINDLASS_*` variables and from `config.toml`.

Only this module reads the `WINDLASS_*` variables, and it has the one list of them. `config.toml` is in the
configuration folder. All other code gets a `Settings` value. The variables that windlass passes *to* a rank
(`WINDLASS_RANK` and so on) are not settings. The rank script writes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from windlass.errors import ConfigError, UsageError, nearest
from windlass.node.sys.reading import read_text

if TYPE_CHECKING:
    from windlass.base.centre import Centre

_KNOWN = {
    "WINDLASS_SITE": "name of the site, as in --site",
    "WINDLASS_SITE_FILE": "your own site file, as in --site",
    "WINDLASS_SITE_CONFIG": "folder of the computing centre's files, set by its module (default: /etc/windlass)",
    "WINDLASS_CONFIG": "folder of the user's files (default: $XDG_CONFIG_HOME/windlass or ~/.config/windlass)",
    "WINDLASS_RUNS": "folder that contains the run folders (default: ./runs)",
    "WINDLASS_TRACES": "folder of the cache's recorded traces (default: $XDG_CACHE_HOME/windlass/traces)",
    "WINDLASS_STATE": "folder for state that is kept between runs (default: $XDG_STATE_HOME/windlass)",
    "WINDLASS_ALLOW_LOGIN": "1: let `windlass run` start ranks on a node that looks like a login node",
}


CONFIG_FILE = "config.toml"
SYSTEM_DIR = Path("/etc/windlass")
ConfigScope = Literal["centre", "user"]
ConfigFolders = Mapping[ConfigScope, Path]
"""Folders of site files by scope, lowest scope first."""
NO_FOLDERS: ConfigFolders = {}
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
    """Settings of windlass itself, from the environment and the user's configuration."""

    site: str | None = None
    site_file: Path | None = None
    config_dir: Path = Path("~/.config/windlass")
    runs_dir: Path = Path("runs")
    traces_dir: Path = Path("~/.cache/windlass/traces")
    state_dir: Path = Path("~/.local/state/windlass")
    allow_login: bool = False
    job: JobDefaults = JobDefaults()
    job_at: Mapping[str, JobDefaults] = field(default_factory=dict)
    """By site name. These values take precedence over `job`."""
    centre: Centre | None = None
    centre_job: JobDefaults = JobDefaults()
    centre_job_at: Mapping[str, JobDefaults] = field(default_factory=dict)

    @property
    def folders(self) -> ConfigFolders:
        used = self.centre is not None and not self.centre.why_not
        return {**({"centre": self.centre.folder} if self.centre and used else {}), "user": self.config_dir}

    def centre_default(self, site: str, key: str) -> str | None:
        """Return the centre's value for a job option that the user does not name."""
        return _first(key, self.centre_job_at.get(site), self.centre_job)

    def job_default(self, site: str, key: str) -> str | None:
        """Return the user's default for a job option, otherwise the centre's."""
        return _first(key, self.job_at.get(site), self.job) or self.centre_default(site, key)


def _first(key: str, *layers: JobDefaults | None) -> str | None:
    return next((value for each in layers if (value := getattr(each, key, None))), None)


def current_environ() -> dict[str, str]:
    """Return a copy of this process's environment. A command takes it once and passes it on as a value."""
    return dict(os.environ)


def read_settings(env: Mapping[str, str], *, system_dir: Path = SYSTEM_DIR) -> Settings:
    """Read the settings from an environment and from the configuration that it names.

    A variable takes precedence over the user's file, and the user's file over the centre's. Raises `UsageError` for an
    invalid variable and `ConfigError` for an invalid file.
    """
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
    centre, its = _read_centre(env.get("WINDLASS_SITE_CONFIG"), system_dir)
    file = read_config(config_dir / CONFIG_FILE)
    return Settings(
        site=env.get("WINDLASS_SITE") or file.get("site") or its.get("site"),
        site_file=Path(site_file).expanduser() if site_file else None,
        config_dir=config_dir,
        runs_dir=Path(env.get("WINDLASS_RUNS") or file.get("runs") or its.get("runs") or "runs").expanduser(),
        traces_dir=Path(traces).expanduser(),
        state_dir=Path(state).expanduser(),
        allow_login=allow == "1",
        job=_job(file),
        job_at={name: _job(table) for name, table in file.get("sites", {}).items()},
        centre=centre,
        centre_job=_job(its),
        centre_job_at={name: _job(table) for name, table in its.get("sites", {}).items()},
    )


def _job(table: Mapping[str, Any]) -> JobDefaults:
    return JobDefaults(**{key: table[key] for key in job_keys() if key in table})


def _read_centre(named: str | None, system_dir: Path) -> tuple[Centre | None, dict[str, Any]]:
    """Return the centre and its `config.toml`.

    Root must own the system's folder. A folder that a variable names may have another owner.
    """
    folder = Path(named) if named else system_dir
    if not named and not folder.is_dir():
        return None, {}
    # imported here: most machines have no such folder
    from windlass.base.centre import TABLES, Centre, read_centre, why_not_used

    why_not = why_not_used(folder, None if named else 0)
    if why_not:
        return Centre(folder=folder, why_not=why_not), {}
    file = folder / CONFIG_FILE
    table = read_config(file, TABLES)
    return read_centre(folder, table, file), table


def read_config(path: Path, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the tables of a `config.toml`, or an empty dict if there is no such file.

    The tables named in `more` are not checked.
    """
    try:
        text = read_text(path, follow=True).lstrip("\ufeff")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint="correct it, or move it away") from error
    # imported here: most users have no such file, and `--help` needs no parser
    from windlass.base.tables import tomllib

    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not TOML: {error}", hint="correct it, or move it away: `windlass init` writes a new one"
        ) from error
    _check_config(path, {key: value for key, value in table.items() if key not in more})
    return table


def job_keys() -> tuple[str, ...]:
    """Return the job options that `config.toml` may contain, for all sites and for each site."""
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
                raise ConfigError(f"{path}: {where}{key} is {value!r}", hint='give text, e.g. account = "abc123"')


def known_settings() -> dict[str, str]:
    """Return the name and meaning of every variable that this module reads."""
    return dict(_KNOWN)
