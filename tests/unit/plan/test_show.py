"""A plan as text, and two plans compared."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from looping import each
from planning import plan_for
from windlass.model.condition import When
from windlass.model.finding import Finding
from windlass.model.origin import Origin
from windlass.model.plan import Plan, Setting
from windlass.plan.explain import diff_lines
from windlass.plan.show import OWN_PATHS, headline, plan_text, setting_line


def test_the_headline_counts_in_words() -> None:
    assert headline(plan_for("workstation", "train")[0]) == "train on workstation: 1 node x 1 rank = 1 rank, local"
    assert headline(plan_for("lumi", "train", nodes=2)[0]) == "train on lumi: 2 nodes x 8 ranks = 16 ranks, srun"


@each(
    ("setting", "line"),
    [
        (Setting(name="A", value="b c", because=""), "A='b c'"),
        (Setting(name="A", value=None, because=""), "unset A"),
        (Setting(name="A", value="/x", because="", prepend=True), "A=/x:$A"),
        (Setting(name="A", value="${B}/c", because="", prepend=True, expand=True), 'A="${B-}"/c:$A'),
        (Setting(name="A", value="1", because="", origin=Origin(scope="flag")), "A=1   # yours"),
        (
            Setting(name="A", value="1", because="", origin=Origin(scope="site", grade="unconfirmed")),
            "A=1   # unconfirmed",
        ),
        (Setting(name="A", value="1", because="", when=When(exists="/dev/x")), "A=1   # if /dev/x exists on the node"),
    ],
)
def test_a_setting_in_one_line(setting: Setting, line: str) -> None:
    assert setting_line(setting) == line


def test_the_rank_script_names_the_port_that_only_the_job_knows() -> None:
    assert 'w_master_port="${WINDLASS_MASTER_PORT:?' in plan_text(plan_for("lumi", nodes=2)[0], script=True)
    assert "w_master_port=29500" in plan_text(plan_for("lumi", nodes=2, master_port=29500)[0], script=True)


def test_paths_of_this_machine_are_marked_and_the_script_stays_one(tmp_path: Path) -> None:
    plan, _ = plan_for("lumi", "/opt/mine/python", "a.py")
    finding = Finding(OWN_PATHS, "note", facts={"paths": ["/opt/mine/python", "/home/user"]})
    text = plan_text(msgspec.structs.replace(plan, remarks=(finding,)), script=True)
    shown, _, script = text.partition("\nrank script\n")
    assert "in /home/user/project   # a path of this machine" in shown
    assert "# a path of this machine:\n  set -- \\\n    /opt/mine/python \\\n" in script
    (tmp_path / "rank.sh").write_text(script)
    subprocess.run(["sh", "-n", str(tmp_path / "rank.sh")], check=True, timeout=10)


def test_control_characters_of_a_command_stay_visible_words() -> None:
    plan, _ = plan_for("workstation", "printf", "a\nb")
    assert "printf 'a\n" in plan_text(plan)  # a shell would read it back


def test_equal_plans_have_no_differences() -> None:
    assert diff_lines(plan_for("aurora", nodes=3)[0], plan_for("aurora", nodes=3)[0]) == []


@each("field", [name for name in Plan.__struct_fields__ if name in {"grace_s", "keep_caches", "cache_root"}])
def test_fields_that_no_section_shows_are_compared_too(field: str) -> None:
    plan, _ = plan_for("lumi")
    changed = msgspec.structs.replace(plan, **{field: 77.0 if field == "grace_s" else "/elsewhere"})
    assert diff_lines(plan, changed)[0] == "the rest"


def test_a_removed_and_an_added_variable_have_their_signs() -> None:
    plan, _ = plan_for("lumi")
    more = Setting(name="NEW", value="1", because="x")
    changed = msgspec.structs.replace(plan, environment=(*plan.environment[1:], more))
    lines = diff_lines(plan, changed)
    assert "  + NEW=1" in lines
    assert f"  - {setting_line(plan.environment[0])}" in lines
