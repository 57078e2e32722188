"""`sites check` refuses what a plan would refuse, with the line to change."""

from __future__ import annotations

from pathlib import Path

from looping import each
from unit.cli.typed import in_process

SITE = """
name = "bluebox"

[scheduler]
kind = "slurm"

[launcher]
kind = "srun"

[node]
arch = "x86_64"
cores = 8
reserved = "0"

[[node.domains]]
cpus = "0-3"
devices = [0]

[[node.domains]]
cpus = "4-7"
devices = [1]

[devices]
vendor = "nvidia"
visibility = "CUDA_VISIBLE_DEVICES"

[binding]
comm_cpus = "7"

[[binding.presets]]
name = "pairs"
ranks_per_node = 2
cpus = "2-3:4-5"
because = "as measured"
source = "own"
"""


def checked(folder: Path, text: str) -> tuple[int, str]:
    (folder / "x.toml").write_text(text)
    ended = in_process("sites", "check", "x.toml", cwd=folder)
    assert "Traceback" not in ended.stderr
    return ended.code, ended.stdout


def test_a_site_that_plans_has_no_problem(tmp_path: Path) -> None:
    assert checked(tmp_path, SITE) == (0, "no problems\n")


@each(
    ("old", "new", "said"),
    [
        ('"2-3:4-5"', '"0-1:4-5"', "reserved"),
        ('"2-3:4-5"', '"2-3:8-9"', "the node has no CPU 8-9"),
        ('comm_cpus = "7"', 'comm_cpus = "9"', "the node has no CPU 9"),
        ('reserved = "0"', 'reserved = "0-7"', "reserves every core"),
        ("devices = [1]", "devices = [2]", "not numbered from 0 without a gap"),
        (
            '"CUDA_VISIBLE_DEVICES"',
            '"ROCR_VISIBLE_DEVICES"',
            "does not choose nvidia devices (write 'CUDA_VISIBLE_DEVICES')",
        ),
        ('vendor = "nvidia"', 'vendor = "amd"', "does not choose amd devices (write 'ROCR_VISIBLE_DEVICES')"),
        ('reserved = "0"', 'reserved = "0"\ntiles_per_card = 0', "at least one tile"),
    ],
)
def test_what_a_plan_would_refuse_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SITE
    code, text = checked(tmp_path, SITE.replace(old, new, 1))
    assert code == 2 and said in text, text
    assert text.startswith("x.toml:"), "with a line"


def test_tiles_that_make_no_whole_card_are_refused(tmp_path: Path) -> None:
    odd = SITE.replace('"0"', '"0"\ntiles_per_card = 2').replace("devices = [1]", "devices = [1, 2]")
    odd = odd.replace('vendor = "nvidia"', 'vendor = "intel"\nunit = "tile"').replace(
        "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
    )
    code, text = checked(tmp_path, odd)
    assert code == 2 and "list 3 tiles, which do not make whole cards of 2" in text


@each(
    ("words", "said"),
    [
        ('"--cpu-bind=list:1-3:3-5"', "gives CPUs 3 to local ranks 0 and 1"),
        ('"--cpu-bind", "map_cpu:1,1"', "gives CPUs 1 to local ranks 0 and 1"),
        ('"--cpu-bind=mask_cpu:0x2,0x100"', "the node has no CPU 8"),
        ('"--cpu-bind=list:0:4"', "CPUs 0 are reserved"),
    ],
)
def test_a_list_of_cpus_in_the_launchers_words_is_checked_too(tmp_path: Path, words: str, said: str) -> None:
    code, text = checked(
        tmp_path, f'{SITE}\n[[launcher.arguments]]\nwords = [{words}]\nbecause = "as the page says"\nsource = "own"\n'
    )
    assert code == 2 and said in text, text


def test_hardware_of_another_file_counts(tmp_path: Path) -> None:
    """Frontier reserves the first core of each cache: a preset of an overlay may not take it."""
    preset = SITE[SITE.index("[[binding.presets]]") :].replace("2-3:4-5", "0-1:2-3")
    code, text = checked(tmp_path, f'kind = "overlay"\nextends = "frontier"\n{preset}')
    assert code == 2 and "reserved" in text, text


def test_hardware_of_the_config_folder_is_seen_by_check_and_plan(tmp_path: Path) -> None:
    head, _, rest = SITE.partition("[node]")
    node = rest[: rest.index("[binding]")]
    folder = tmp_path / "config" / "hardware"
    folder.mkdir(parents=True)
    (folder / "bluenode.toml").write_text(f'kind = "hardware"\nname = "bluenode"\n[node]{node}')
    (tmp_path / "x.toml").write_text(head.replace('"bluebox"', '"bluebox"\nhardware = "bluenode"'))
    env = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    for file in ("x.toml", "config/hardware/bluenode.toml"):
        ended = in_process("sites", "check", file, cwd=tmp_path, env=env)
        assert (ended.code, ended.stdout) == (0, "no problems\n"), ended.stderr
    ended = in_process("plan", "--site", "x.toml", "--", "true", cwd=tmp_path, env=env)
    assert ended.code == 0, ended.stderr
    assert "2 ranks" in ended.stdout
