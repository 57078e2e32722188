"""From a parsed command line to a plan, for the commands that do not run it themselves."""

from __future__ import annotations

import argparse

import msgspec

from windlass.cli.options import request_from
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.inputs import Secrets
from windlass.plan.plan import make_plan
from windlass.run.context import Surroundings, current_environ, look_around
from windlass.settings import read_settings


def plan_from(
    args: argparse.Namespace, *, here: bool, request: Request | None = None, run_dir: str | None = None
) -> tuple[Plan, Secrets, Surroundings]:
    """The plan that these arguments ask for, with the remarks made while looking around."""
    environ = current_environ()
    settings = read_settings(environ)
    request = request or request_from(args, environ)
    around = look_around(request, settings, environ=environ, here=here)
    context = around.context if run_dir is None else msgspec.structs.replace(around.context, run_dir=run_dir)
    plan, secrets = make_plan(request, context)
    return msgspec.structs.replace(plan, remarks=around.remarks + plan.remarks), secrets, around
