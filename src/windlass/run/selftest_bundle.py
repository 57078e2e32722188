"""The archive of a self-test, which is sent to strangers: of the user's own variables it holds no values, but for those
of the collective libraries."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import msgspec

import windlass
from windlass.errors import UsageError
from windlass.model.plan import Plan, Setting, plan_to_json
from windlass.model.secrets import MASK, is_secret, mask_text
from windlass.plan.render.variables import setting_lines
from windlass.run.folder import RunFolder, read_plan
from windlass.run.selftest import VARIABLES
from windlass.run.selftest_findings import reports
from windlass.sites.detect import detect_site
from windlass.topology.probe import probe_topology

_PARTS = ("result.json", "rank.sh", "launch.sh", "launcher.log")
_SHORT = 3
"""Values up to this length are hidden where the variable is set; elsewhere they could be anything."""


def write_bundle(
    bundle: Path,
    folder: RunFolder,
    findings: list[dict[str, object]],
    environ: Mapping[str, str],
    given: Iterable[tuple[str, str]] = (),
) -> None:
    """One archive with the plan, the scripts, what ranks said and what was made of it; it is sent to strangers, so of
    the user's own variables it has the values of `VARIABLES` only. Secrets of `environ` and `given` (--env) are nowhere
    in it, whoever said them: a library's error may hold any variable."""
    known = {value for name, value in (*environ.items(), *given) if is_secret(name, value)}
    plan = read_plan(folder.path)
    about = {
        "windlass": windlass.__version__,
        "findings": findings,
        "reports": reports(plan, folder),
        "detection": detect_site(environ=environ).lines(),
        "topology": json.loads(msgspec.json.encode(probe_topology())),
    }
    shown = _without_values(plan)
    files = {"report.json": json.dumps(about, indent=1), "plan.json": plan_to_json(shown).decode()}
    for name in _PARTS:
        if folder.part(name).exists():
            files[name] = _text(folder.part(name))
    for part in ("where", "comm"):
        files |= {f"{part}/{file.name}": _text(file) for file in sorted(folder.part(part).iterdir())}
    try:
        with tarfile.open(bundle, "w:gz") as archive:
            for name, text in files.items():
                data = _scrubbed(text, plan, shown, known).encode("utf-8", "surrogateescape")
                entry = tarfile.TarInfo(f"selftest/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise UsageError(
            f"cannot write the bundle {bundle}: {error.strerror}", hint="name another with --bundle"
        ) from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def _without_values(plan: Plan) -> Plan:
    """The plan without the values of the user's own variables, but for those that may be shown."""

    def users(setting: Setting) -> bool:
        return setting.origin.scope == "environment" or setting.origin.where == "--env"

    def shown(name: str) -> bool:
        return VARIABLES.match(name) is not None

    settings = tuple(
        setting
        if setting.value is None or not users(setting) or shown(setting.name)
        else msgspec.structs.replace(setting, value=MASK)
        for setting in plan.environment
    )
    env = tuple((name, value if shown(name) else MASK) for name, value in plan.request.env)
    return msgspec.structs.replace(plan, environment=settings, request=msgspec.structs.replace(plan.request, env=env))


def _scrubbed(text: str, plan: Plan, shown: Plan, known: Set[str]) -> str:
    """The text with what `shown` hides of `plan` hidden too, wherever a script, a launcher or a rank said it again, and
    with secrets that are `known`."""
    hidden = set(known)
    for setting, masked in zip(plan.environment, shown.environment, strict=True):
        if setting.value is not None and setting != masked:
            text = text.replace(setting_lines(setting)[-1], setting_lines(masked)[-1])
            hidden |= {setting.value}
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) > _SHORT:
            text = text.replace(value, MASK)
    return mask_text(text)
