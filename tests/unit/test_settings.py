"""What the environment may say to windlass itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.settings import known_settings, read_settings


def test_an_empty_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = read_settings({})
    assert settings.site is None
    assert settings.site_file is None
    assert settings.config_dir == Path("/home/ada/.config/windlass")
    assert settings.runs_dir == Path("runs")
    assert not settings.allow_login


def test_every_setting_can_be_given() -> None:
    settings = read_settings(
        {
            "WINDLASS_SITE": "lumi",
            "WINDLASS_SITE_FILE": "/x/mine.toml",
            "WINDLASS_CONFIG": "/x/config",
            "WINDLASS_RUNS": "/scratch/runs",
            "WINDLASS_ALLOW_LOGIN": "1",
        }
    )
    assert (settings.site, settings.site_file) == ("lumi", Path("/x/mine.toml"))
    assert (settings.config_dir, settings.runs_dir) == (Path("/x/config"), Path("/scratch/runs"))
    assert settings.allow_login


def test_the_desktop_standard_for_configuration_is_respected() -> None:
    assert read_settings({"XDG_CONFIG_HOME": "/x"}).config_dir == Path("/x/windlass")
    assert read_settings({"XDG_CONFIG_HOME": "/x", "WINDLASS_CONFIG": "/y"}).config_dir == Path("/y")


@pytest.mark.parametrize("name", ["WINDLASS_SITE", "WINDLASS_SITE_FILE", "WINDLASS_RUNS", "WINDLASS_ALLOW_LOGIN"])
def test_an_empty_value_is_no_value(name: str) -> None:
    assert read_settings({name: ""}) == read_settings({})


def test_a_value_that_cannot_be_understood_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(UsageError, match="WINDLASS_ALLOW_LOGIN is 'maybe'"):
        read_settings({"WINDLASS_ALLOW_LOGIN": "maybe"})


def test_every_known_setting_changes_something() -> None:
    values = {"WINDLASS_ALLOW_LOGIN": "1"}
    for name, meaning in known_settings().items():
        assert read_settings({name: values.get(name, "/somewhere/else")}) != read_settings({}), name
        assert meaning
