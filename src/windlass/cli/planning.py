"""From a parsed command line to a plan, for the commands that do not run it themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from windlass.cli.options import request_from
from windlass.launch.context import Surroundings, current_environ, look_around
from windlass.launch.plan import Secrets, make_plan
from windlass.model.plan import Plan
from windlass.settings import read_settings


def plan_from(args: argparse.Namespace, *, here: bool) -> tuple[Plan, Secrets, Surroundings]:
    """The plan that these arguments ask for, with the remarks made while looking around."""
    environ = current_environ()
    settings = read_settings(environ)
    request = request_from(args, environ)
    site_file = Path(args.site_file).expanduser() if args.site_file else None
    around = look_around(request, settings, environ=environ, site_file=site_file, here=here)
    plan, secrets = make_plan(request, around.context)
    return msgspec.structs.replace(plan, remarks=around.remarks + plan.remarks), secrets, around
