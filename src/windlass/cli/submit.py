"""Write the batch script for the site's scheduler, submit it, and print the job id."""

from __future__ import annotations

import argparse
import os
import sys

from windlass.cli.options import add_request_options, parse_with_command, request_from, warn
from windlass.cli.planning import plan_from
from windlass.cli.result import Result
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.inputs import Secrets
from windlass.plan.queues import refuse_incomplete
from windlass.plan.render.batch_script import batch_script, standalone_script
from windlass.plan.shape import run_name
from windlass.run.context import current_environ
from windlass.run.folder import folder_path, make_folder
from windlass.run.submit import submit_script
from windlass.settings import read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the batch script, submit and write nothing")
    parser.add_argument("--standalone", action="store_true", help="a script that needs no windlass in the job")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parse_with_command(parser, argv)


def main(args: argparse.Namespace) -> Result:
    request = request_from(args, current_environ())
    if args.standalone and request.supervised:
        raise UsageError(
            "--standalone with --restarts, --spares, --hang-after or --until-done: nobody would be there to do it",
            hint="leave --standalone out: windlass has to run in the job",
        )
    runs_dir, name = read_settings().runs_dir, run_name(request)
    if args.dry_run:
        where = folder_path(request.run_dir, runs_dir, name)
        plan, _ = _plan(args, request, str(where))
        return Result(text=_script(plan, str(where), "RUN_ID", args.standalone))
    _plan(args, request, str(folder_path(request.run_dir, runs_dir, name)))  # nothing is made for a wrong request
    folder = make_folder(request.run_dir, runs_dir, name)
    folder.claim()
    plan, secrets = _plan(args, request, str(folder.path))
    script = folder.write("batch.sh", _script(plan, str(folder.path), folder.run_id, args.standalone), mode=0o700)
    folder.save_plan(plan, secrets)
    for remark in plan.remarks:
        if remark.level == "warning":
            warn(f"windlass: warning: {remark.text}")
    try:
        job_id = submit_script(plan, str(script))
    except BaseException:
        folder.forget_secrets()  # no job will come for them
        raise
    folder.write("job_id", job_id + "\n")
    warn(f"windlass: {plan.name} is job {job_id} of {plan.scheduler}; run folder {folder.path}")
    return Result(text=job_id, data={"job_id": job_id, "run_dir": str(folder.path), "script": str(script)})


def _plan(args: argparse.Namespace, request: Request, run_dir: str) -> tuple[Plan, Secrets]:
    plan, secrets, around = plan_from(args, here=False, request=request, run_dir=run_dir)
    if plan.scheduler == "none":
        raise UsageError(
            f"{plan.site} has no scheduler to submit to", hint="use `windlass run`, or name the machine with --site"
        )
    refuse_incomplete(request, around.context.site)
    return plan, secrets


def _script(plan: Plan, run_dir: str, run_id: str, standalone: bool) -> str:
    if standalone:
        return standalone_script(plan, run_dir, os.getuid(), run_id)
    return batch_script(plan, run_dir, (sys.executable, "-m", "windlass"))
