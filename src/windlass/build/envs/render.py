"""Write the plan of an environment as text for people and as a script for bash. Pure."""

from __future__ import annotations

import textwrap

from windlass.base.notation.shell import quote
from windlass.build.envs.plan import EnvPlan
from windlass.build.envs.step import EnvStep, shell_path
from windlass.build.images.render import comment_lines

_WIDTH = 110
STEP_MARK = "== step"
"""The mark in a script's output at the beginning of a step."""


def plan_text(plan: EnvPlan, findings: list[str], width: int = _WIDTH) -> str:
    """Return text for people with paragraphs of at most this width. The caller has rendered the plan's `findings`."""
    lines = [f"A Python environment for {plan.site}: {plan.kind} at {shell_path(plan.path)}"]
    lines += [*_wrapped(plan.because, "  ", width), f"  source: {plan.source}", ""]
    for number, step in enumerate(plan.steps, 1):
        lines += _step_lines(f"{number}. {step.name}", step, width)
    lines += ["How to use it:", ""]
    for step in plan.use:
        lines += _step_lines(f"- {step.name}", step, width)
    lines += [*findings, ""] if findings else []
    for note in plan.notes:
        lines += _wrapped(f"note: {note}", "  ", width)
    lines += [] if not plan.notes else [""]
    here = (
        "" if plan.kind == "conda" or plan.beneath == "image" else f"; on {plan.site} itself: windlass env create PATH"
    )
    lines.append(f"as a script for a login node: add --format script{here}")
    return "\n".join(lines)


def _step_lines(head: str, step: EnvStep, width: int) -> list[str]:
    lines = [head, *_wrapped(step.because, "     ", width)]
    lines += [f"     ({step.source})"] if step.source else []
    return [*lines, *_command_lines(step), ""]


def _command_lines(step: EnvStep) -> list[str]:
    return [f"       {line}" for line in step.shown or step.commands if not line.startswith("# shellcheck ")]


def command_lines(plan: EnvPlan) -> list[str]:
    """Return the lines of `plan_text` that people copy."""
    return [line for step in (*plan.steps, *plan.use) for line in _command_lines(step)]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, min(width, _WIDTH)), initial_indent=indent, subsequent_indent=indent)


def script_text(plan: EnvPlan) -> str:
    """Return the script for a login node of the site.

    It stops at the first failed step and prints what it leaves behind.
    """
    lines = ["#!/bin/bash", *comment_lines(f"A Python environment for {plan.site} ({plan.kind}), made by windlass.")]
    lines += comment_lines(f"{plan.because}. Source: {plan.source}")
    lines += comment_lines("Run it on a login node. ENV=/another/place bash FILE puts it elsewhere.")
    for finding in plan.findings:
        lines += comment_lines(f"{finding.severity}: {finding.text()}{'. ' + finding.advice if finding.advice else ''}")
    for note in plan.notes:
        lines += comment_lines(f"note: {note}")
    lines += ["set -eo pipefail  # no -u: the scripts of modules and conda read unset variables", ""]
    if plan.variables:
        lines += ['if [ -z "${ENV:-}" ]; then']
        lines += [f'  : "${{{name}:?{_ASK.get(name, "set it, or ENV")}}}"' for name in plan.variables]
        lines += ["fi"]
    where = shell_path(plan.path)
    lines += ["# shellcheck disable=SC2016"] if "'" in where and "$" in where else []
    lines += [f"ENV=${{ENV:-{where}}}", "# Packages in ~/.local would hide those that are installed here."]
    lines += ["export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1"]
    lines += ["# `python -m` imports from the current folder: use an empty one, so that no project file is imported."]
    lines += ["case $ENV in /*) ;; *) ENV=$PWD/$ENV ;; esac"]
    lines += ['[ ! -f "${IMAGE:-}" ] || IMAGE=$(readlink -f "$IMAGE")'] if plan.beneath == "image" else []
    lines += ["cd /", ""]
    lines += ["finished=no", f"trap {quote(_LEFT)} EXIT"]
    count = len(plan.steps)
    for number, step in enumerate(plan.steps, 1):
        lines += ["", *comment_lines(f"{number}. {step.name}: {step.because}")]
        lines += comment_lines(step.source) if step.source else []
        lines += [f"echo {quote(f'{STEP_MARK} {number} of {count}: {step.name}')}", *step.commands]
    lines += ["", "finished=yes", 'echo "made: $ENV"']
    for step in plan.use:
        lines += comment_lines(f"{step.name}: {'; '.join(step.commands)}")
    return "\n".join(lines) + "\n"


_ASK = {"ACCOUNT": "set it to your project, or set ENV"}
_LEFT = '[ "$finished" = yes ] || echo "not finished: remove $ENV, if it is there, and begin anew" >&2'
