"""windlass plan: everything that would happen, for any machine, from any machine."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from looping import each
from unit.cli.typed import in_process, script
from windlass.model.plan import plan_from_json
from windlass.sites.catalog import site_names

SECRET = "correct-horse-battery"


@each(
    ("site", "nodes"), [(site, nodes) for site in site_names() for nodes in ((1,) if site == "workstation" else (1, 2))]
)
def test_every_site_can_be_planned_anywhere(tmp_path: Path, site: str, nodes: int) -> None:
    words = ("plan", "--site", site, "--nodes", str(nodes))
    ended = in_process(*words, "--script", "--", "true", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "rank script" in ended.stdout
    plan = plan_from_json(in_process(*words, "--json", "--", "true", cwd=tmp_path).stdout.encode())
    assert (plan.site, plan.nodes) == (site, nodes)


def test_the_text_has_a_section_for_each_part(tmp_path: Path) -> None:
    script(tmp_path)
    words = ("plan", "--site", "aurora", "--nodes", "2", "--script", "place.py", "--lr", "0.1")
    text = in_process(*words, cwd=tmp_path).stdout
    for title in ("command of each rank", "launch", "batch directives", "variables", "limits", "node", "rank script"):
        assert f"\n{title}\n" in text
    assert "place.py --lr 0.1" in text
    assert not (tmp_path / "runs").exists()


def test_warnings_come_first_and_the_rank_script_only_on_request(tmp_path: Path) -> None:
    text = in_process("plan", "--site", "lumi", "--nodes", "2", "--", "true", cwd=tmp_path).stdout
    assert text.startswith("warnings\n  warning  tcp-fallback: ")
    assert "\nrank script\n" not in text
    gone = in_process("plan", "--no-script", "--", "true", cwd=tmp_path)
    assert gone.code == 2 and "was removed" in gone.stderr and "--script" in gone.stderr


@each("words", ["place.py --lr 1 --explain", "missing.py --explain --lr 1"])
def test_an_option_of_plan_behind_the_script_is_an_error_with_the_line_to_type(tmp_path: Path, words: str) -> None:
    script(tmp_path)
    done = in_process("plan", "--nodes", "1", *words.split(), cwd=tmp_path)
    assert done.code == 2
    assert f"windlass plan --nodes 1 --explain {words.split()[0]} --lr 1" in done.stderr


def test_an_option_that_the_script_reads_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys\nprint('--explain' in sys.argv)\n")
    assert in_process("plan", "own.py", "--explain", cwd=tmp_path).code == 0


def test_explain_gives_each_line_its_reason_and_source(tmp_path: Path) -> None:
    words = ("plan", "--site", "frontier", "--nodes", "2")
    plain = in_process(*words, "--", "true", cwd=tmp_path).stdout
    explained = in_process(*words, "--explain", "--", "true", cwd=tmp_path).stdout
    plan = plan_from_json(in_process(*words, "--json", "--", "true", cwd=tmp_path).stdout.encode())
    for entry in (*plan.environment, *plan.launch, *plan.directives, *plan.limits):
        assert entry.because in explained
        assert entry.origin.text() in explained
    assert plan.environment[0].because not in plain


def test_a_plan_hides_secrets_in_every_form(tmp_path: Path) -> None:
    script(tmp_path)
    words = ("--env", f"API_TOKEN={SECRET}", "place.py", "--password", SECRET, f"--api-key={SECRET}")
    for form in ((), ("--json",), ("--explain",)):
        text = in_process("plan", *form, *words, cwd=tmp_path, env={"HF_TOKEN": SECRET}).text
        assert "place.py" in text
        assert SECRET not in text


def test_the_same_plan_is_the_same_text(tmp_path: Path) -> None:
    words = ("plan", "--site", "lumi", "--nodes", "3", "--json", "--", "true")
    assert in_process(*words, cwd=tmp_path).stdout == in_process(*words, cwd=tmp_path).stdout


def test_ten_thousand_nodes_are_planned_without_naming_them(tmp_path: Path) -> None:
    ended = in_process("plan", "--site", "aurora", "--nodes", "10000", "--json", "--", "true", cwd=tmp_path)
    plan = json.loads(ended.stdout)
    assert plan["world_size"] == 120_000
    assert len(ended.stdout) < 200_000


def test_a_value_of_the_user_is_shown_as_theirs(tmp_path: Path) -> None:
    words = ("plan", "--site", "lumi", "--nodes", "2", "--", "true")
    assert "FI_MR_CACHE_MONITOR=userfaultfd\n" in in_process(*words, cwd=tmp_path).stdout
    mine = in_process(*words, cwd=tmp_path, env={"FI_MR_CACHE_MONITOR": "kdreg2"}).stdout
    assert "FI_MR_CACHE_MONITOR=kdreg2   # yours\n" in mine


def test_a_site_file_of_the_user_overlays_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'kind = "overlay"\nextends = "lumi"\n\n[[settings]]\nname = "MY_SWITCH"\nvalue = "on"\n'
        'because = "our model wants it"\nsource = "own"\n'
    )
    ended = in_process("plan", "--site", "mine.toml", "--explain", "--", "true", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "MY_SWITCH=on" in ended.stdout
    assert "our model wants it" in ended.stdout


def test_a_plan_can_be_encoded_whatever_the_words(tmp_path: Path) -> None:
    ended = in_process("plan", "--json", "--", "printf", "\udcff\n\t\x7f", cwd=tmp_path)
    assert plan_from_json(ended.stdout.encode()).command[-1] == "\udcff\n\t\x7f"
    with pytest.raises(UnicodeEncodeError):
        msgspec.json.encode(plan_from_json(ended.stdout.encode()))  # why `plan --json` cannot do just this


def test_picture_writes_the_map_of_a_node_and_says_what_is_missing(tmp_path: Path) -> None:
    done = in_process("plan", "--site", "lumi", "--nodes", "2", "--picture", "node.svg", cwd=tmp_path)
    assert done.code == 0, done.text
    assert "GCD 4: local rank 4" in (tmp_path / "node.svg").read_text()
    unknown = in_process("plan", "--site", "generic-slurm", "--picture", "none.svg", cwd=tmp_path)
    assert (unknown.code, (tmp_path / "none.svg").exists()) == (2, False)
    assert "are not known here" in unknown.text
    nowhere = in_process("plan", "--site", "lumi", "--picture", "no/such/folder.svg", cwd=tmp_path)
    assert nowhere.code == 2
    assert "cannot be written" in nowhere.text


def test_a_path_that_cannot_be_looked_at_is_not_here(tmp_path: Path) -> None:
    script(tmp_path)
    odd = "/" + "x" * 300  # longer than a name may be: refused as a folder is that the user may not enter
    named = ("--activate", f"{odd}/env", "--cache", odd, "--container", f"{odd}/a.sif")
    ended = in_process("plan", "--site", "frontier", *named, "place.py", cwd=tmp_path)
    assert ended.code == 0, ended.text
    assert f"path-missing: --cache {odd} does not exist here" in ended.stdout


def test_what_is_named_for_another_machine_need_not_be_here(tmp_path: Path) -> None:
    script(tmp_path)
    named = ("--activate", "/lustre/no-such/env", "--cache", "/lustre/no-such/data")
    ended = in_process("plan", "--site", "frontier", *named, "place.py", cwd=tmp_path)
    assert ended.code == 0, ended.text
    assert "path-missing: --activate /lustre/no-such/env does not exist here" in ended.stdout
    assert "path-missing: --cache /lustre/no-such/data does not exist here" in ended.stdout
    assert f"in {tmp_path}   # a path of this machine" in ended.stdout
    assert "no-such/env/bin/python: of the environment that --activate names\n" in ended.stdout, "that is there"
    for words in (named[:2], named[2:]):
        here = in_process("plan", *words, "place.py", cwd=tmp_path)
        assert here.code == 2 and "does not exist" in here.stderr, "this machine can be looked at"
    wrong = in_process("plan", "--site", "frontier", "--activate", "/etc", "place.py", cwd=tmp_path)
    assert wrong.code == 2 and "neither a virtual environment nor a conda" in wrong.stderr


@each("folder", ["/mnt/bb/me/no-such-env", "/tmp/no-such-env"])
def test_an_environment_on_the_nodes_themselves_can_be_planned_and_submitted(tmp_path: Path, folder: str) -> None:
    script(tmp_path)
    words = ("--account", "ABC", "--time", "10", "--nodes", "2", "--with", "nvme", "--activate")
    site = {"WINDLASS_SITE": "frontier"}  # as on its login node
    for command in (("plan",), ("plan", "--site", "frontier"), ("submit", "--dry-run", "--standalone")):
        ended = in_process(*command, *words, folder, "place.py", cwd=tmp_path, env=site)
        assert ended.code == 0, (command, ended.text)
        assert f"|| . {folder}/bin/activate" in ended.stdout, "looked at in the job"
        assert f"--activate {folder} does not exist here" not in ended.text
    refused = in_process("submit", "--dry-run", *words, "/lustre/no-such-env", "place.py", cwd=tmp_path, env=site)
    assert refused.code == 2 and "--activate /lustre/no-such-env: does not exist here" in refused.stderr
    machine = in_process("plan", "--activate", folder, "place.py", cwd=tmp_path)
    assert machine.code == 2, "a machine without a scheduler is the node"
