"""`windlass tune`: spaces, overlays, and real trials of a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unit.cli.typed import in_process, windlass
from windlass.bench.tune.overlay import overlay_text, write_overlay
from windlass.bench.tune.space import default_space, read_space
from windlass.errors import ConfigError, MachineError
from windlass.sites.catalog import load_site

SPACE = '[[setting]]\nname = "KNOB"\nvalues = ["unset", "slow", "fast", "broken"]\n'
SLEEPS = """
import os, sys, time
knob = os.environ.get("KNOB")
if knob == "broken":
    sys.exit("this value cannot be")
time.sleep({None: 1.6, "slow": 1.9, "fast": 0.05}[knob])
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "setting"),
        ("setting = []", "nothing to try"),
        ('[[setting]]\nname = "A"', "values"),
        ('[[setting]]\nname = "A"\nvalues = ["1"]', "2 to 64"),
        ('[[setting]]\nname = "A"\nvalues = ["1", "1"]', "different"),
        ('[[setting]]\nname = "A B"\nvalues = ["1", "2"]', "not the name of a variable"),
        ('[[setting]]\nname = "A"\nvalues = ["1", "2"]\nargument = "--a"', "no {value}"),
        ('[[setting]]\nname = "A"\nvalues = ["1", "2"]\nfoo = 1', "foo"),
        (SPACE + SPACE, "twice"),
        ("[", "s.toml"),
    ],
)
def test_a_wrong_space_is_an_error_that_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_space(tmp_path / "s.toml")
    assert said.lower() in caught.value.message.lower()
    assert "s.toml" in caught.value.message


def test_a_missing_space_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_space(tmp_path / "none.toml")


def test_the_default_space_fits_the_devices() -> None:
    names = [setting.name for setting in default_space("nvidia", "slingshot-11", 8)]
    assert {"NCCL_ALGO", "FI_CXI_RX_MATCH_MODE", "OMP_NUM_THREADS"} <= set(names)
    assert all(setting.name.startswith("CCL_") for setting in default_space("intel", None, 1))
    with pytest.raises(ConfigError, match="no settings to try"):
        default_space(None, None, 1)


def test_the_winner_is_an_overlay_that_the_next_plan_uses_and_explains(tmp_path: Path) -> None:
    path = write_overlay(
        {"user": tmp_path}, "frontier", {"NCCL_ALGO": "Tree"}, "tuned: 9 ms -> 7 ms", several_nodes=True
    )
    write_overlay({"user": tmp_path}, "frontier", {"NCCL_CROSS_NIC": "unset"}, "tuned again", several_nodes=True)
    assert path.read_text().count("[[settings]]") == 2
    assert load_site("frontier", folders={"user": tmp_path})
    env = {"WINDLASS_CONFIG": str(tmp_path)}
    said = in_process("explain", "NCCL_ALGO", "--site", "frontier", "--nodes", "4", cwd=tmp_path, env=env).stdout
    assert "NCCL_ALGO=Tree" in said
    assert "9 ms -> 7 ms" in said
    alone = in_process("plan", "--site", "frontier", "--nodes", "1", cwd=tmp_path, env=env).stdout
    assert "NCCL_ALGO" not in alone


def test_an_overlay_keeps_what_is_there_and_refuses_a_broken_file(tmp_path: Path) -> None:
    old = 'kind = "overlay"\nextends = "lumi"\n# mine\ndrop = ["NCCL_DEBUG"]\n'
    assert overlay_text(old, "lumi", {"A": "1"}, "b", several_nodes=False).startswith(old)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "lumi.toml").write_text("kind = ")
    with pytest.raises(MachineError, match="cannot take the settings"):
        write_overlay({"user": tmp_path}, "lumi", {"A": "1"}, "b", several_nodes=False)
    assert (tmp_path / "sites" / "lumi.toml").read_text() == "kind = "


@pytest.mark.slow  # compares seconds of trials, which other tests disturb
def test_real_trials_find_the_planted_value_and_keep_it(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    (tmp_path / "train.py").write_text(SLEEPS)
    env = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    words = (
        "tune",
        "--objective",
        "seconds",
        "--space",
        "space.toml",
        "--repeats",
        "2",
        "--run-dir",
        "t",
        "--keep",
        "-r",
        "1",
    )
    done = windlass(*words, "train.py", cwd=tmp_path, env=env, timeout_s=240)
    assert done.code == 0, done.text
    assert "use KNOB=fast" in done.stdout
    assert "this value cannot be" in done.stdout
    record = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert record["winner"] == {"KNOB": "fast"}
    plan = in_process("plan", cwd=tmp_path, env=env).stdout
    assert "KNOB=fast" in plan


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune",), "nothing to run"),
        (("tune", "--objective", "busbw", "x.py"), "its own benchmark"),
        (("tune", "--repeats", "1", "x.py"), "--repeats 1"),
        (("tune", "--restarts", "2", "--", "true"), "does not use --restarts"),
        (("tune", "--space", "no.toml", "--", "true"), "cannot read no.toml"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    done = in_process(*words, cwd=tmp_path)
    assert done.code == 2, done.text
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
