"""Run a small job through windlass and bundle what the machine really did: topology, binding, transport.

Run it inside an allocation of two nodes (or on this machine), then send the bundle to the catalog's maintainers: it is
how an entry that was written from documentation becomes one that was seen to work."""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import time
from pathlib import Path

import msgspec

import windlass
from windlass import api
from windlass.cli.option_groups import add_request_options
from windlass.cli.options import join_values, request_from
from windlass.cli.result import Result
from windlass.errors import UsageError
from windlass.failure.ends import read_seats
from windlass.failure.rank_logs import rank_logs
from windlass.model.plan import Plan, Setting, plan_to_json
from windlass.model.secrets import MASK, mask_text
from windlass.notation.cpulist import format_cpulist, parse_cpulist
from windlass.plan.render.rank_script import setting_lines
from windlass.run import selftest
from windlass.run.folder import RunFolder, make_folder, read_plan
from windlass.settings import current_environ, read_settings
from windlass.sites.detect import detect_site
from windlass.topology.probe import probe_topology

_PARTS = ("result.json", "rank.sh", "launch.sh", "launcher.log")
_SHORT = 3
"""Values up to this length are hidden where the variable is set; elsewhere they could be anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.usage = f"{parser.prog} [options of run] [--bundle FILE]"
    parser.add_argument(
        "--bundle", metavar="FILE", help="where to write it (default: windlass-selftest-SITE-TIME.tar.gz)"
    )
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parser.parse_args(join_values(argv))


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    folder = make_folder(args.run_dir, read_settings(environ).runs_dir, "selftest")
    args.run_dir = str(folder.path)
    script = folder.write("selftest.py", Path(selftest.__file__).read_text())  # a container sees the run folder
    args.comm_log = args.comm_log or "0"
    args.name = args.name or "selftest"
    args.kind, args.command = "script", [str(script)]
    view = api.terminal_view("none", sys.stdout, sys.stderr)
    ended = api.run(request_from(args, environ), environ=environ, view=view)
    plan = read_plan(folder.path)
    findings = judge(plan, folder)
    bundle = Path(args.bundle or f"windlass-selftest-{plan.site}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    write_bundle(bundle, folder, findings)
    lines = [f"{'ok  ' if row['ok'] else 'BAD '} {row['what']}: {row['seen']}" for row in findings]
    text = "\n".join(
        [*lines, "", f"bundle: {bundle}", "It holds no values of variables beyond those of the collective libraries."]
    )
    bad = ended.exit_code or (1 if any(not row["ok"] for row in findings) else 0)
    return Result(text=text, data={"bundle": str(bundle), "findings": findings}, exit_code=bad)


def reports(plan: Plan, folder: RunFolder) -> list[dict[str, object]]:
    """What the ranks said, by rank."""
    lines = rank_logs(plan, folder.path).lines()
    found = [json.loads(text[len(selftest.MARK) :]) for _, text in lines if text.startswith(selftest.MARK)]
    return sorted(found, key=lambda report: int(report["rank"]))


def judge(plan: Plan, folder: RunFolder) -> list[dict[str, object]]:
    """The plan held against what the ranks saw."""
    said = reports(plan, folder)
    rows: list[dict[str, object]] = [
        {"what": "ranks that reported", "ok": len(said) == plan.world_size, "seen": f"{len(said)} of {plan.world_size}"}
    ]
    planned = {rank.local_rank: rank.cpus for rank in plan.binding.ranks}
    seats = sorted(read_seats(folder.part("where")))
    wrong = [
        f"rank {seat.rank}: {seat.cpus} instead of {format_cpulist(planned[seat.rank % plan.ranks_per_node])}"
        for seat in seats
        if planned.get(seat.rank % plan.ranks_per_node)
        and set(parse_cpulist(seat.cpus)) != set(planned[seat.rank % plan.ranks_per_node])
    ]
    rows.append({"what": "binding as planned", "ok": not wrong, "seen": "; ".join(wrong[:4]) or "every rank"})
    torch_said = [report["torch"] for report in said if isinstance(report["torch"], dict)]
    right = [answer for answer in torch_said if answer.get("all_reduce_right")]
    missing = [answer for answer in torch_said if "missing" in answer]
    if torch_said and not missing:
        failed = next((answer.get("failed") for answer in torch_said if answer.get("failed")), None)
        rows.append(
            {"what": "all-reduce", "ok": len(right) == len(said), "seen": failed or f"right on {len(right)} ranks"}
        )
        rows.append({"what": "transport", "ok": True, "seen": transport(folder, torch_said)})
    else:
        rows.append(
            {"what": "all-reduce", "ok": True, "seen": "not tried: torch is not installed for this interpreter"}
        )
    return rows


def transport(folder: RunFolder, answers: list[dict[str, object]]) -> str:
    """What moved the bytes, from the collective library's own log where there is one."""
    for file in sorted(folder.part("comm").iterdir()):
        for line in file.read_text(errors="replace").splitlines():
            if "Using network" in line:
                return line.split("Using network", 1)[1].strip()
    return str(answers[0].get("backend"))


def write_bundle(bundle: Path, folder: RunFolder, findings: list[dict[str, object]]) -> None:
    """One archive with the plan, the scripts, what ranks said and what was made of it; it is sent to strangers, so of
    the user's own variables it has the values of `selftest.VARIABLES` only."""
    plan = read_plan(folder.path)
    about = {
        "windlass": windlass.__version__,
        "findings": findings,
        "reports": reports(plan, folder),
        "detection": detect_site(environ=current_environ()).lines(),
        "topology": json.loads(_encode(probe_topology())),
    }
    shown = without_values(plan)
    files = {"report.json": json.dumps(about, indent=1), "plan.json": plan_to_json(shown).decode()}
    for name in _PARTS:
        if folder.part(name).exists():
            files[name] = _text(folder.part(name))
    for part in ("where", "comm"):
        files |= {f"{part}/{file.name}": _text(file) for file in sorted(folder.part(part).iterdir())}
    try:
        with tarfile.open(bundle, "w:gz") as archive:
            for name, text in files.items():
                data = scrubbed(text, plan, shown).encode("utf-8", "surrogateescape")
                entry = tarfile.TarInfo(f"selftest/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise UsageError(
            f"cannot write the bundle {bundle}: {error.strerror}", hint="name another with --bundle"
        ) from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def without_values(plan: Plan) -> Plan:
    """The plan without the values of the user's own variables, but for those that may be shown."""

    def users(setting: Setting) -> bool:
        return setting.origin.scope == "environment" or setting.origin.where == "--env"

    def shown(name: str) -> bool:
        return selftest.VARIABLES.match(name) is not None

    settings = tuple(
        setting
        if setting.value is None or not users(setting) or shown(setting.name)
        else msgspec.structs.replace(setting, value=MASK)
        for setting in plan.environment
    )
    env = tuple((name, value if shown(name) else MASK) for name, value in plan.request.env)
    return msgspec.structs.replace(plan, environment=settings, request=msgspec.structs.replace(plan.request, env=env))


def scrubbed(text: str, plan: Plan, shown: Plan) -> str:
    """The text with what `shown` hides of `plan` hidden too, wherever a script, a launcher or a rank said it again."""
    hidden: set[str] = set()
    for setting, masked in zip(plan.environment, shown.environment, strict=True):
        if setting.value is not None and setting != masked:
            text = text.replace(setting_lines(setting)[-1], setting_lines(masked)[-1])
            hidden |= {setting.value}
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) > _SHORT:
            text = text.replace(value, MASK)
    return mask_text(text)


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)
