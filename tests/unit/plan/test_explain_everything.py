"""`explain` has an answer to every name that a plan shows or leaves out."""

from __future__ import annotations

import re
from pathlib import Path

from looping import each
from unit.cli.typed import in_process
from windlass.model.plan import plan_from_json
from windlass.plan.explain import find_name
from windlass.sites.catalog import load_site, site_names

_EXPORT = re.compile(r"\bexport ([A-Za-z_]\w*)=")
_GIVEN = ("--account", "abc123", "--time", "10")


def _plans(site: str) -> list[tuple[str, ...]]:
    several = (*_GIVEN, "--nodes", "2") if load_site(site).file.scheduler.kind != "none" else ()
    default = next((c.runtime for c in load_site(site).file.containers if c.default), None)
    image = "/images/own.sif" if default in {"apptainer", "singularity"} else "docker.io/library/debian:12"
    presets = [("--cpu-bind", preset.name) for preset in load_site(site).file.binding.presets]
    return [
        several,
        *([(*several, "--container", image)] if default else ()),
        *((*several, *preset, "--ranks-per-node", str(_ranks(site, preset[1]))) for preset in presets[:1]),
    ]


def _ranks(site: str, preset: str) -> int:
    return next(p.ranks_per_node for p in load_site(site).file.binding.presets if p.name == preset)


@each("site", site_names())
def test_every_name_of_a_plan_is_explained(site: str, tmp_path: Path) -> None:
    entry = load_site(site)
    known = {setting.name for setting in entry.file.settings} | {gone.name for gone in entry.dropped}
    known |= {setting.name for preset in entry.file.binding.presets for setting in preset.settings}
    known |= {setting.name for container in entry.file.containers for setting in container.settings}
    for options in _plans(site):
        shown = in_process("plan", "--script", "--site", site, *options, "--", "true", cwd=tmp_path)
        made = in_process("plan", "--json", "--site", site, *options, "--", "true", cwd=tmp_path)
        assert (shown.code, made.code) == (0, 0), shown.text + made.text
        plan = plan_from_json(made.stdout)
        names = known | set(_EXPORT.findall(shown.stdout)) | {setting.name for setting in plan.environment}
        names |= {setting.name for setting in plan.container.settings} if plan.container else set()
        names |= {argument.name for argument in (*plan.launch, *plan.directives) if argument.name}
        assert len(names) > 30
        for name in names:
            found = find_name(name, plan, entry)
            assert any(one.because or one.note for one in found), name


@each(
    "name, site, state",
    [
        ("HOROVOD_THREAD_AFFINITY", "aurora", "with --cpu-bind three-cores"),
        ("ZEX_NUMBER_OF_CCS", "aurora", "with --cpu-bind four-ccs"),
        ("CCL_ZE_IPC_EXCHANGE", "aurora", "in a container (apptainer)"),
        ("MASTER_ADDR", "aurora", "rank variable, in this plan"),
        ("RANK", "lumi", "rank variable, in this plan"),
        ("HIP_VISIBLE_DEVICES", "lumi", "when    --device cpu"),
        ("NCCL_CROSS_NIC", "lumi", "lumi leaves it out"),
        ("SINGULARITYENV_RANK", "lumi", "variable for the container, in this plan"),
    ],
)
def test_what_is_asked_for_or_left_out_is_said(name: str, site: str, state: str, tmp_path: Path) -> None:
    image = ("--container", "own.sif") if name.startswith("SINGULARITYENV") else ()
    said = in_process("explain", name, "--site", site, "--nodes", "2", *image, cwd=tmp_path)
    assert said.code == 0, said.text
    assert state in said.stdout
