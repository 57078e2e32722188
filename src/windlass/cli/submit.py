"""Write the batch script for the site's scheduler, submit it, and print the job id."""

from __future__ import annotations

import argparse

from windlass.backends.schedulers import get_scheduler
from windlass.base.notation.shell import quote_words
from windlass.base.settings import current_environ
from windlass.cli.option_groups import add_request_options
from windlass.cli.options import parse_with_command, request_from
from windlass.cli.show import Result, say
from windlass.model.plan import Plan
from windlass.run.sidecars.ahead import record_ahead
from windlass.run.submit import prepare_submission, print_submission, submit, why_never_starts

PROGRESS = "submitting"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the batch script; do not submit, do not write")
    parser.add_argument("--standalone", action="store_true", help="a script that needs no windlass in the job")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parse_with_command(parser, argv)


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    request = request_from(args, environ)
    if args.dry_run:
        plan, text = print_submission(request, environ, standalone=args.standalone)
        _warn(plan)
        return Result(text=text, foreign=True)
    prepared = prepare_submission(request, environ, standalone=args.standalone)
    plan, folder = prepared.plan, prepared.folder
    _warn(plan)
    submitted = submit(prepared, environ)
    job_id = submitted.job_id
    say(f"windlass: {plan.name} is job {job_id} of {plan.scheduler}; run folder {folder.path}")
    if record_ahead(plan, environ) == "":
        say("windlass: cache: recording what the imports of the script read, in the background, for the first start")
    if why := why_never_starts(submitted, environ):
        cancel = quote_words(get_scheduler(plan.scheduler).cancel_argv(job_id or ""))
        say(f"windlass: warning: never-starts: job {job_id} will not start: {why} (cancel it: {cancel})")
    return Result(
        text=str(job_id), data={"job_id": job_id, "run_dir": str(folder.path), "script": str(prepared.script)}
    )


def _warn(plan: Plan) -> None:
    for remark in plan.remarks:
        say(f"windlass: {remark.severity}: {remark.line()}")
