"""The layer of a computing centre: whose files count, which values win, what it refuses, whom it is believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from looping import each
from windlass.base.settings import Settings, read_settings
from windlass.cli.main import main
from windlass.cli.sites import site_text
from windlass.errors import ConfigError, UsageError
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.run.bad_nodes import FILE, avoided_nodes, bad_hosts, remember_node
from windlass.run.planning import PlannedRequest, plan_request, plan_to_run
from windlass.sites.catalog import load_site

SITE = """
kind = "overlay"
extends = "frontier"
[storage]
scratch = "/centre/scratch"
source = "own"
[[settings]]
name = "NCCL_CROSS_NIC"
value = "2"
because = "faster here"
source = "own"
"""
CONFIG = """
partition = "batch"
[sites.frontier]
account = "abc123"

[[forbidden]]
options = ["--until-done", "--qos=premium", "--exclusive", "--env=NCCL_ALGO", "--allow-login", "--partition"]
because = "see https://centre.example/rules"
[[forbidden]]
options = ["--watch"]
because = "not on this machine"
site = "lumi"
[[bad_nodes]]
site = "frontier"
hosts = "frontier[00001-00002]"
because = "ECC errors, ticket 4711"
until = 2099-01-01
[[bad_nodes]]
site = "frontier"
hosts = "frontier00009"
because = "repaired"
until = 2020-01-01
"""
REQUEST = Request(command=("true",), cwd="/", site="frontier", nodes=2, time="10")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return _environ(tmp_path)


def _environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a user at a centre with this layer."""
    folder = tmp_path / "centre"
    (folder / "sites").mkdir(parents=True)
    (folder / "sites" / "frontier.toml").write_text(SITE)
    (folder / "config.toml").write_text(CONFIG)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    names = {name: str(tmp_path / name) for name in ("WINDLASS_CONFIG", "WINDLASS_STATE")}
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "WINDLASS_SITE_CONFIG": str(folder), **names}


def _plan(environ: dict[str, str], **changes: object) -> PlannedRequest:
    return plan_request(msgspec.structs.replace(REQUEST, **changes), environ)


def _site(environ: dict[str, str]) -> Site:
    return load_site("frontier", folders=read_settings(environ).folders)


def _users_file(environ: dict[str, str], text: str) -> None:
    path = Path(environ["WINDLASS_CONFIG"]) / "sites" / "frontier.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'kind = "overlay"\nextends = "frontier"\n{text}')


def test_the_centres_site_file_counts_more_than_the_catalog_and_less_than_the_users(environ: dict[str, str]) -> None:
    site = _site(environ)
    assert site.file.storage.scratch == "/centre/scratch"
    assert site.origin_of("storage.scratch").scope == "centre"
    (setting,) = [each for each in site.file.settings if each.name == "NCCL_CROSS_NIC"]
    file = Path(environ["WINDLASS_SITE_CONFIG"]) / "sites" / "frontier.toml"
    assert setting.value == "2"
    assert setting.origin is not None and setting.origin.text() == f"centre {file}: the centre's choice"
    _users_file(environ, '[storage]\nscratch = "/mine"\nsource = "own"\n')
    site = _site(environ)
    assert (site.file.storage.scratch, site.origin_of("storage.scratch").scope) == ("/mine", "user")
    assert next(each for each in site.file.settings if each.name == "NCCL_CROSS_NIC").value == "2"


def test_the_users_defaults_count_more_than_the_centres(environ: dict[str, str]) -> None:
    assert _plan(environ).request.account == "abc123"
    config = Path(environ["WINDLASS_CONFIG"])
    config.mkdir()
    (config / "config.toml").write_text('account = "mine"\n')
    planned = _plan(environ)
    assert (planned.request.account, planned.request.partition) == ("mine", "batch")


def test_sites_show_names_the_layer_of_each_value(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    _users_file(environ, '[storage]\nhome = "/mine"\nsource = "own"\n')
    assert main(["sites", "show", "frontier"]) == 0
    text = capsys.readouterr().out
    centre, mine = environ["WINDLASS_SITE_CONFIG"], environ["WINDLASS_CONFIG"]
    assert f"scratch    /centre/scratch  [centre {centre}/sites/frontier.toml]" in text
    assert f"home       /mine  [user {mine}/sites/frontier.toml]" in text
    assert "staging    /mnt/bb/${USER}  [site frontier]" in text
    assert "account = abc123  [centre]" in text
    assert "forbidden: --until-done" in text and "--watch" not in text.partition("\ncentre\n")[2]
    assert "not used until 2099-01-01: frontier[00001-00002]: ECC errors, ticket 4711" in text
    assert main(["nodes", "list"]) == 0
    assert "ECC errors, ticket 4711 [centre]" in capsys.readouterr().out
    assert main(["nodes", "forgive", "frontier00001"]) == 2


@each("name", ["frontier", "aurora", "hpe-gh200", "generic-slurm"])
def test_every_value_that_sites_show_prints_has_its_layer(name: str) -> None:
    """Two sections are no values of the site: the map of a node and the sources themselves."""
    section, bare = "", []
    lines = site_text(load_site(name)).splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        section = line if line and not line.startswith(" ") else section
        value = line.startswith("  ") and not line.startswith("   ") and section not in {"node", "sources", lines[0]}
        told = f"{line} {after}" if after.startswith("     ") else line
        told += lines[lines.index(line) + 2] if section == "binding presets" and value else ""
        if value and "  [" not in told and not line.startswith("  all steps"):
            bare.append(line)
    assert bare == []


@each(
    ("changes", "option"),
    [
        ({"until_done": True}, "--until-done"),
        ({"qos": "premium"}, "--qos=premium"),
        ({"directives": ("--exclusive",)}, "--exclusive"),
        ({"directives": ("--qos=premium",)}, "--qos=premium"),
        ({"launcher_args": ("--exclusive",)}, "--exclusive"),
        ({"env": (("NCCL_ALGO", "Ring"),)}, "--env=NCCL_ALGO"),
        ({"partition": "extended"}, "--partition"),
    ],
)
def test_a_forbidden_option_is_refused_with_the_centres_reason(
    environ: dict[str, str], changes: dict[str, object], option: str
) -> None:
    with pytest.raises(UsageError, match="is forbidden at this centre: see https://centre") as raised:
        _plan(environ, **changes)
    assert raised.value.message.startswith(f"{option} is")


def test_what_the_centre_does_not_forbid_is_planned(environ: dict[str, str]) -> None:
    planned = _plan(environ, qos="debug", watch=True, env=(("NCCL_DEBUG", "INFO"),))
    assert planned.plan.partition == "batch", "the centre's own default is no choice of the user"


def test_a_forbidden_directive_of_the_users_site_file_is_refused(environ: dict[str, str]) -> None:
    words = 'words = ["--exclusive"]\nbecause = "mine"\nsource = "own"\n'
    _users_file(environ, f"[[scheduler.directives]]\n{words}")
    with pytest.raises(UsageError, match="--exclusive is forbidden"):
        _plan(environ)


def test_an_override_of_the_login_nodes_guard_can_be_forbidden(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--allow-login is forbidden"):
        plan_to_run(REQUEST, environ, allow_login=True)


def test_the_centres_bad_nodes_are_left_out_until_their_day(environ: dict[str, str]) -> None:
    directives = [" ".join(argument.words) for argument in _plan(environ).plan.directives]
    assert "--exclude=frontier[00001-00002]" in directives
    assert bad_hosts(read_settings(environ), "lumi") == ()
    assert [node.by for node in avoided_nodes(read_settings(environ))] == ["centre", "centre"]


def test_an_entry_without_evidence_or_end_is_refused(environ: dict[str, str]) -> None:
    file = Path(environ["WINDLASS_SITE_CONFIG"]) / "config.toml"
    file.write_text('[[bad_nodes]]\nsite = "frontier"\nhosts = "frontier00001"\nuntil = 2099-01-01\n')
    with pytest.raises(ConfigError, match=r"config.toml: Object missing required field `because`"):
        read_settings(environ)


def test_the_documented_file_is_read(environ: dict[str, str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sites" / "writing-a-site-file.md").read_text()
    text = page.partition("```toml\n# config.toml\n")[2].partition("```")[0]
    (Path(environ["WINDLASS_SITE_CONFIG"]) / "config.toml").write_text(text)
    settings = read_settings(environ)
    assert settings.centre is not None and settings.centre.forbidden and settings.centre.bad_nodes
    assert settings.centre_default("bluebox", "time") == "2h"


def test_a_user_cannot_forbid_for_the_centre(environ: dict[str, str]) -> None:
    config = Path(environ["WINDLASS_CONFIG"])
    config.mkdir()
    (config / "config.toml").write_text('[[forbidden]]\noptions = ["--watch"]\nbecause = "no"\n')
    with pytest.raises(ConfigError, match="unknown key forbidden"):
        read_settings(environ)


def _others_can_write(folder: Path) -> None:
    (folder / "sites" / "frontier.toml").chmod(0o664)


def _folder_is_open(folder: Path) -> None:
    (folder / "sites").chmod(0o777)


def _link(folder: Path) -> None:
    (folder / "sites" / "lumi.toml").symlink_to(folder / "config.toml")


def _gone(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


@each(
    ("change", "why"),
    [
        (_others_can_write, "frontier.toml can be changed by other users"),
        (_folder_is_open, "sites can be changed by other users"),
        (_link, "lumi.toml is a link"),
        (_gone, "No such file or directory"),
    ],
)
def test_files_that_others_could_have_changed_are_not_used_and_the_plan_says_so(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    environ = _environ(tmp_path)
    change(Path(environ["WINDLASS_SITE_CONFIG"]))
    planned = _plan(environ, until_done=True)
    assert planned.context.site.file.storage.scratch != "/centre/scratch"
    (found,) = [remark for remark in planned.plan.remarks if remark.kind == "centre-unused"]
    assert why in found.evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_second_user_cannot_add_to_the_centres_folder(environ: dict[str, str]) -> None:
    folder = Path(environ["WINDLASS_SITE_CONFIG"])
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 1234, 1234)
    folder.parent.chmod(0o755)
    assert _site(environ).file.storage.scratch == "/centre/scratch", "a folder of the centre's software account"
    os.chown(folder / "config.toml", 4321, 4321)
    settings = read_settings(environ)
    assert settings.centre is not None and settings.centre.why_not.endswith("config.toml belongs to uid 4321")
    assert "centre" not in settings.folders and settings.centre_job.partition is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_systems_folder_must_be_roots(environ: dict[str, str]) -> None:
    folder = Path(environ.pop("WINDLASS_SITE_CONFIG"))
    settings = read_settings(environ, system_dir=folder)
    assert settings.folders["centre"] == folder
    os.chown(folder, 1234, 1234)
    settings = read_settings(environ, system_dir=folder)
    assert settings.centre is not None and settings.centre.why_not.endswith("centre belongs to uid 1234")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_bad_nodes_that_another_user_found_are_not_believed(tmp_path: Path) -> None:
    remember_node(tmp_path, site="x", host="n1", reason="lost")
    settings = Settings(state_dir=tmp_path)
    assert bad_hosts(settings, "x") == ("n1",)
    os.chown(tmp_path / FILE, 1234, 1234)
    assert bad_hosts(settings, "x") == ()
