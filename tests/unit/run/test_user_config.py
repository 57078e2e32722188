"""The user's config.toml: written in place, read as defaults of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.base.settings import JobDefaults, Settings, read_settings
from windlass.errors import ConfigError, MachineError
from windlass.model.request import Request
from windlass.run.adopt import with_keys, write_config
from windlass.run.context import choose_site
from windlass.run.planning import plan_request

OLD = """# mine
account = "old"  # who pays

[sites.lumi]
partition = "small-g"

[sites."generic-slurm"]
time = "1h"
"""


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "config.toml").write_text(text)
    return read_settings({"WINDLASS_CONFIG": str(tmp_path)})


def test_keys_are_set_in_place_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(OLD)
    write_config(tmp_path, None, {"account": "new", "runs": "/x"})
    write_config(tmp_path, "lumi", {"partition": "standard-g", "account": "p"})
    write_config(tmp_path, "generic-slurm", {"time": "2h"})
    write_config(tmp_path, "frontier", {"account": "q"})
    text = (tmp_path / "config.toml").read_text()
    assert text.startswith("# mine\n")
    got = read_settings({"WINDLASS_CONFIG": str(tmp_path)})
    assert (got.job.account, got.runs_dir) == ("new", Path("/x"))
    assert got.job_at == {
        "lumi": JobDefaults(partition="standard-g", account="p"),
        "generic-slurm": JobDefaults(time="2h"),
        "frontier": JobDefaults(account="q"),
    }


@pytest.mark.parametrize("value", ['a"b', "a\\b", "ä", "a\tb", "#no comment"])
def test_any_text_comes_back_as_it_was_written(tmp_path: Path, value: str) -> None:
    write_config(tmp_path / "new" / "folder", None, {"account": value})
    assert read_settings({"WINDLASS_CONFIG": str(tmp_path / "new" / "folder")}).job.account == value


def test_a_new_table_is_set_apart_from_what_is_there() -> None:
    assert with_keys("a = 1\n", "sites.x", {"time": "1h"}) == 'a = 1\n\n[sites.x]\ntime = "1h"\n'
    assert with_keys("", "sites.x", {"time": "1h"}) == '[sites.x]\ntime = "1h"\n'


def test_a_file_that_is_wrong_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("account = ")
    with pytest.raises(ConfigError, match="not TOML"):
        write_config(tmp_path, None, {"account": "new"})
    assert (tmp_path / "config.toml").read_text() == "account = "


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"cannot write .*file"):
        write_config(tmp_path / "file", None, {"account": "new"})


def test_the_site_s_own_defaults_win_over_the_general_ones_and_options_over_both(tmp_path: Path) -> None:
    got = settings(tmp_path, 'account = "a"\ntime = "1h"\n[sites.lumi]\naccount = "b"\n')
    request = Request(command=("true",), site="lumi")
    found = choose_site(request, got, {})[0]
    assert (found.account, found.time, found.partition) == ("b", "1h", None)
    said = choose_site(Request(command=("true",), site="lumi", account="c"), got, {})[0]
    assert said.account == "c"
    assert choose_site(Request(command=("true",), site="frontier"), got, {})[0].account == "a"


def test_inside_a_job_and_without_a_scheduler_nothing_is_filled_in(tmp_path: Path) -> None:
    got = settings(tmp_path, 'account = "a"\npartition = "p"\n')
    request = Request(command=("true",), site="lumi")
    assert choose_site(request, got, {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"})[0] == request
    for local in (Request(command=("true",), site="workstation"), Request(command=("true",), scheduler="none")):
        assert choose_site(local, got, {})[0] == local


def test_directives_of_a_plan_hold_them(tmp_path: Path) -> None:
    settings(tmp_path, '[sites.lumi]\naccount = "project_1"\n')
    request = Request(command=("true",), site="lumi", cwd="/")
    plan = plan_request(request, {"WINDLASS_CONFIG": str(tmp_path)}, here=False).plan
    assert ("--account=project_1",) in [argument.words for argument in plan.directives]
