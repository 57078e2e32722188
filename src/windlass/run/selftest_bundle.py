"""The archive of a self-test, which is sent to strangers: of the user's own variables it holds no values, but for those
of the collective libraries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

import windlass
from windlass.model.finding import Finding
from windlass.model.plan import plan_to_json
from windlass.node.sys.reading import read_text
from windlass.run.bundle import plan_for_strangers, scrubber, write_archive
from windlass.run.folder import RunFolder, read_plan
from windlass.run.selftest_findings import reports
from windlass.sites.detect import detect_site
from windlass.sites.topology.probe import probe_topology

_PARTS = ("result.json", "rank.sh", "launch.sh", "launcher.log")


def write_bundle(
    bundle: Path,
    folder: RunFolder,
    findings: list[Finding],
    environ: Mapping[str, str],
    given: Iterable[tuple[str, str]] = (),
) -> None:
    """One archive with the plan, the scripts, what ranks said and what was made of it. Secrets of `environ` and `given`
    (--env) are nowhere in it, whoever said them: a library's error may hold any variable."""
    plan = read_plan(folder.path)
    about = {
        "windlass": windlass.__version__,
        "findings": msgspec.to_builtins(findings),
        "reports": reports(plan, folder),
        "detection": detect_site(environ=environ).lines(),
        "topology": json.loads(msgspec.json.encode(probe_topology())),
    }
    files = {
        "report.json": json.dumps(about, indent=1),
        "plan.json": plan_to_json(plan_for_strangers(plan)).decode(),
    }
    for name in _PARTS:
        if folder.part(name).exists():
            files[name] = _text(folder.part(name), folder.path)
    for part in ("where", "comm"):
        files |= {f"{part}/{file.name}": _text(file, folder.path) for file in sorted(folder.part(part).iterdir())}
    write_archive(bundle, "selftest", files, scrubber(environ, given, plan), option="--bundle")


def _text(path: Path, within: Path) -> str:
    return read_text(path, within=within, errors="surrogateescape")
