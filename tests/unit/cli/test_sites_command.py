"""windlass sites: the catalog, this machine, and the user's files."""

from __future__ import annotations

import json
from pathlib import Path

from looping import each
from unit.cli.typed import in_process
from windlass.sites.catalog import site_names


def test_the_list_has_every_site(tmp_path: Path) -> None:
    text = in_process("sites", "list", cwd=tmp_path).stdout
    assert [line.split()[0] for line in text.splitlines()] == list(site_names())
    rows = json.loads(in_process("sites", "list", "--json", cwd=tmp_path).stdout)
    assert {row["name"] for row in rows} == set(site_names())


@each("site", site_names())
def test_every_site_can_be_shown_with_its_sources(tmp_path: Path, site: str) -> None:
    ended = in_process("sites", "show", site, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith(f"{site}: ")
    assert "\nsources\n" in ended.stdout or site.startswith("generic") or site == "workstation"
    assert json.loads(in_process("sites", "show", site, "--json", cwd=tmp_path).stdout)


def test_an_unknown_machine_is_called_unknown_with_a_reason(tmp_path: Path) -> None:
    ended = in_process("sites", "detect", cwd=tmp_path)
    assert ended.code == 0
    assert ended.stdout.startswith("site: ")


def test_a_machine_is_known_by_its_evidence(tmp_path: Path) -> None:
    said = in_process(
        "sites", "detect", cwd=tmp_path, env={"SLURM_CLUSTER_NAME": "frontier", "LMOD_SYSTEM_NAME": "frontier"}
    )
    assert said.stdout.startswith("site: frontier")
    assert "SLURM_CLUSTER_NAME" in said.stdout or "LMOD_SYSTEM_NAME" in said.stdout


def test_a_users_file_is_listed_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "sites"
    folder.mkdir(parents=True)
    (folder / "bluebox.toml").write_text('name = "bluebox"\ntitle = "Our cluster"\nextends = "generic-slurm"\n')
    env = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    assert in_process("sites", "check", str(folder / "bluebox.toml"), cwd=tmp_path, env=env).stdout == "no problems\n"
    assert "bluebox" in in_process("sites", "list", cwd=tmp_path, env=env).stdout
    assert in_process("plan", "--site", "bluebox", "--", "true", cwd=tmp_path, env=env).code == 0


def test_problems_of_a_file_come_with_lines_and_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('name = "x"\ntitel = "typo"\n')
    ended = in_process("sites", "check", "x.toml", cwd=tmp_path)
    assert ended.code == 2
    assert "x.toml:2:" in ended.stdout and "title" in ended.stdout


@each("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_a_problem_and_no_crash(tmp_path: Path, name: str) -> None:
    ended = in_process("sites", "check", name, cwd=tmp_path)
    assert ended.code == 2
    assert "cannot be read" in ended.stdout


def test_a_machine_is_adopted_under_a_name_of_its_own(tmp_path: Path) -> None:
    env = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    made = in_process("sites", "adopt", "bluebox", cwd=tmp_path, env=env)
    assert made.code == 0, made.stderr
    file = tmp_path / "config" / "sites" / "bluebox.toml"
    assert f"written to {file}; use it with --site bluebox" in made.stdout
    assert in_process("sites", "check", str(file), cwd=tmp_path, env=env).stdout == "no problems\n"
    assert in_process("plan", "--site", "bluebox", "--", "true", cwd=tmp_path, env=env).code == 0
    again = in_process("sites", "adopt", "bluebox", cwd=tmp_path, env=env)
    assert again.code == 2 and "already exists" in again.stderr
    assert in_process("sites", "adopt", "bluebox", "--force", cwd=tmp_path, env=env).code == 0


@each(("name", "said"), [("frontier", "in the catalog already"), ("../x", "cannot be called")])
def test_a_name_that_cannot_be_adopted_is_refused(tmp_path: Path, name: str, said: str) -> None:
    ended = in_process("sites", "adopt", name, cwd=tmp_path, env={"WINDLASS_CONFIG": str(tmp_path)})
    assert ended.code == 2 and said in ended.stderr
