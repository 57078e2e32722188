"""The pages for users of each site: they exist, name what the data has, and their examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from looping import each
from windlass.cli.main import main
from windlass.sites.catalog import load_site, site_names
from windlass.sites.check import check_text
from windlass.sites.folders import catalog_names

PAGES = Path(__file__).parents[3] / "docs" / "sites"
GENERIC = ("workstation", "generic-slurm", "generic-pbs", "generic-flux")
IMAGE = "/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif"


def page_of(name: str) -> str:
    return (PAGES / ("generic.md" if name in GENERIC else f"{name}.md")).read_text(encoding="utf-8")


@each("name", site_names())
def test_every_site_has_a_page_that_names_its_options_and_presets(name: str) -> None:
    file, page = load_site(name).file, page_of(name)
    arguments = (*file.scheduler.directives, *file.launcher.arguments)
    options = {spec.when.option for spec in (*file.settings, *arguments) if spec.when.option}
    missing = [option for option in options if not re.search(rf"`(--with )?{re.escape(option)}`", page)]
    assert not missing
    assert not [preset.name for preset in file.binding.presets if f"`{preset.name}`" not in page]


@each("name", [name for name in site_names() if name not in GENERIC])
def test_a_page_says_what_was_never_run(name: str) -> None:
    words = ("run on the machine", "run\non the machine", "was\nrun on the machine", "unconfirmed", "elcapitan.md")
    assert any(text in page_of(name) for text in words)


@each("name", [name for name in site_names() if name not in GENERIC])
def test_a_page_and_the_catalog_tell_what_makes_a_step_fast(name: str) -> None:
    told = [note for note in load_site(name).file.notes if note.topic == "precision and layout"]
    assert told and all(word in told[0].verdict for word in ("bf16", "channels_last"))
    assert all(word in page_of(name) for word in ("bf16", "channels_last"))


@each("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_site_files_in_the_pages_pass_the_check(path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    for block in (text for text in blocks if not text.startswith("# config.toml")):
        text = block if "[sources.guide]" in block else block.replace('source = "guide"', 'source = "own"')
        assert check_text(text, file=path.name, stem="x", known=catalog_names) == ()


def plan_lines() -> list[str]:
    lines = [line for path in sorted(PAGES.glob("*.md")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("windlass plan ")]


@each("line", plan_lines())
def test_the_plans_in_the_pages_can_be_made(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_CONFIG", str(tmp_path / "none"))
    words = shlex.split(line.replace("$IMG", IMAGE).replace("$SCRATCH", "/iopsstor/scratch/cscs/me"))[1:]
    code = main(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    assert ("train.py" in said.out) == ("train.py" in line)
