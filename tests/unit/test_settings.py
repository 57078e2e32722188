"""What the environment may say to windlass itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windlass.base.settings import known_settings, read_settings
from windlass.errors import ConfigError, UsageError


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('acount = "x"', "unknown key acount"),
        ("account = 7", "account is 7"),
        ('account = ""', "account is ''"),
        ('sites = "lumi"', "sites is not a table"),
        ("[sites]\nlumi = 3", "sites is not a table"),
        ('[sites.lumi]\nruns = "x"', "unknown key sites.lumi.runs"),
        ("[" * 5000, "not TOML"),
        ("account = 'x", "not TOML"),
    ],
)
def test_a_wrong_configuration_is_an_error_that_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        read_settings({"WINDLASS_CONFIG": str(tmp_path)})
    assert str(tmp_path / "config.toml") in caught.value.message
    assert caught.value.hint


def test_variables_count_more_than_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('\ufeffsite = "lumi"\nruns = "/file"\n', encoding="utf-8")
    file = read_settings({"WINDLASS_CONFIG": str(tmp_path)})
    assert (file.site, file.runs_dir) == ("lumi", Path("/file"))
    both = read_settings({"WINDLASS_CONFIG": str(tmp_path), "WINDLASS_SITE": "frontier", "WINDLASS_RUNS": "/variable"})
    assert (both.site, both.runs_dir) == ("frontier", Path("/variable"))
