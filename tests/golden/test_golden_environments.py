"""Plans of Python environments as text, one file per site, and scripts. Reviewed by people; nothing of it was run on
the machines. Renew with WINDLASS_GOLDEN=write and read the diff."""

from __future__ import annotations

import subprocess
from pathlib import Path

from golden.reviewed import compare
from looping import each
from requirements import missing_programs, require
from windlass.build.envs.plan import EnvPlan, EnvRequest, MachineFacts, plan_env
from windlass.build.envs.render import plan_text, script_text
from windlass.model.finding import finding_lines
from windlass.sites.catalog import load_site, site_names

FOLDER = Path(__file__).with_name("environments")
DOCUMENTED = ("frontier", "aurora", "lumi", "perlmutter", "clariden", "polaris", "vista", "isambard-ai", "workstation")


def _planned(site: str, **chosen: str) -> EnvPlan:
    return plan_env(EnvRequest(extras=("mpi4py", "deepspeed"), **chosen), load_site(site), MachineFacts())


@each("site", DOCUMENTED)
def test_plans_of_environments_are_as_reviewed(site: str) -> None:
    compare(FOLDER, f"{site}.txt", plan_text(_planned(site), finding_lines(_planned(site).findings)) + "\n")


@each("site", ["frontier", "lumi", "aurora"])
def test_scripts_of_environments_are_as_reviewed(site: str) -> None:
    compare(FOLDER, f"{site}.sh", script_text(_planned(site)))


def test_frontiers_older_document_is_one_option_away() -> None:
    text = script_text(_planned("frontier", torch="2.2.2+rocm5.7", path="/path/to/my_env"))
    assert 'conda create --yes --prefix "$ENV" python=3.10' in text
    assert "pip install torch==2.2.2 --index-url https://download.pytorch.org/whl/rocm5.7" in text
    assert "MPICC='cc -shared' py -m pip install" in text
    assert "--no-cache-dir --no-binary=mpi4py mpi4py" in text


def test_shellcheck_has_nothing_to_say_about_any_script(tmp_path: Path) -> None:
    require("shellcheck", not missing_programs("shellcheck"), missing_programs("shellcheck"))
    files = []
    for site in site_names():
        files.append(tmp_path / f"{site}.sh")
        files[-1].write_text(script_text(_planned(site)))
        files.append(tmp_path / f"{site}-own.sh")
        files[-1].write_text(script_text(_planned(site, path='/a folder/it\'s "$(here)"/env')))
    # SC1090: the place of a site's module command is found by looking.
    done = subprocess.run(
        ["shellcheck", "-s", "bash", "-e", "SC1090", *map(str, files)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
