"""Runs a wrapped command as a rank script does: host settings exported by a real shell, then the words in front."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import leftovers
from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import OptionalArgument, WrapSpec
from windlass.base.notation.shell import expandable, fillable, quote
from windlass.model.plan import ContainerPlan, Setting

STANDIN = Path(__file__).with_name("standin.py")

NOT_UTF8 = os.fsdecode(b"not utf-8 \xff\xfe")

HOSTILE = (
    "two words",
    "",
    "it's",
    'say "hi"',
    "$HOME ${HOME} $(touch /tmp/windlass-was-here) `id`",
    "*?[a]~",
    "back\\slash",
    "new\nline\n",
    "--gpu",
    "--help",
    "--",
    "-e",
    "ünï",
    "#;&|<>!%",
)
"""Words that careless quoting changes."""

SHOW = 'printf "%s\\0" "$PWD" "$#" "$@"; env -0'
"""Inner program: the folder, the number of arguments, the arguments, the environment, all ended by NUL."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the command found inside."""

    code: int
    cwd: str = ""
    arguments: tuple[bytes, ...] = ()
    environ: dict[str, bytes]
    stderr: str = ""
    report: dict[str, object]


def standin_executable(kind: str, folder: Path) -> str:
    """A program of that kind in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("srun" if kind in {"edf", "pyxis"} else kind)
    path.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} {quote(str(STANDIN))} {kind} "$@"\n')
    path.chmod(0o755)
    return str(path)


def script_text(spec: WrapSpec, command: tuple[str, ...], exports: Mapping[str, str]) -> str:
    """The part of a rank script that matters here: variables, the command, the container around it."""
    runtime = get_runtime(spec.container.runtime)
    lines = ["#!/bin/sh"]
    for setting in spec.settings:
        lines += _setting_lines(setting)
    lines += [f"export {name}={quote(value)}" for name, value in exports.items()]
    lines += ["set -- " + " ".join(quote(word) for word in command)]
    for setting in runtime.host_settings(spec):
        lines += _setting_lines(setting)
    for argument in reversed(runtime.wrap(spec)):
        put = "set -- " + " ".join(expandable(word) for word in argument.words) + ' "$@"'
        if isinstance(argument, OptionalArgument):
            put = f"if [ -e {expandable(argument.exists)} ]; then {put}; fi"
        lines.append(put)
    return "\n".join([*lines, 'exec "$@"', ""])


def _setting_lines(setting: Setting) -> list[str]:
    if setting.value is None:
        action = f"unset {setting.name}"
    else:
        value = fillable(setting.value, expand=True) if setting.expand else quote(setting.value)
        tail = f'"${{{setting.name}:+:${setting.name}}}"' if setting.prepend else ""
        head = f'"${{{setting.name}:+${setting.name}:}}"' if setting.append else ""
        action = f"export {setting.name}={head}{value}{tail}"
    if setting.when.exists:
        return [f"if [ -e {expandable(setting.when.exists)} ]; then {action}; fi"]
    return [action]


def run_wrapped(
    spec: WrapSpec,
    command: tuple[str, ...],
    *,
    work: Path,
    host: Mapping[str, str] | None = None,
    image_env: Mapping[str, str] | None = None,
    exports: Mapping[str, str] | None = None,
) -> Seen:
    """Run `command`, which has to end in the output of `SHOW`, and read what it saw."""
    runtime = get_runtime(spec.container.runtime)
    script = work / "rank.sh"
    script.write_bytes(os.fsencode(script_text(spec, command, exports or {})))
    argv = ["sh", str(script)]
    if runtime.starts_task:
        for name, text in runtime.files(spec).items():
            (Path(spec.run_dir) / name).write_text(text)
        launcher = [word for argument in runtime.launcher_arguments(spec) for word in argument.words]
        argv = [spec.container.executable, *launcher, *argv]
    report = work / "report.json"
    env = {"PATH": os.environ["PATH"], "USER": "tester", "HOME": str(work), **(host or {})}
    env[leftovers.MARK_VARIABLE] = os.environ.get(leftovers.MARK_VARIABLE, "")
    env |= {"STANDIN_REPORT": str(report), "STANDIN_IMAGE_ENV": json.dumps(dict(image_env or {}))}
    done = subprocess.run(argv, capture_output=True, timeout=60, env=env, cwd="/")
    return Seen(
        code=done.returncode,
        stderr=done.stderr.decode(errors="replace"),
        report=json.loads(report.read_text()) if report.exists() else {},
        **_parsed(done.stdout),
    )


def _parsed(output: bytes) -> dict[str, object]:
    parts = output.split(b"\0")[:-1]
    if len(parts) < 2:
        return {"environ": {}}
    count = int(parts[1])
    pairs = (part.partition(b"=") for part in parts[2 + count :])
    return {
        "cwd": os.fsdecode(parts[0]),
        "arguments": tuple(parts[2 : 2 + count]),
        "environ": {os.fsdecode(name): value for name, _, value in pairs},
    }


def show(*arguments: str) -> tuple[str, ...]:
    """A command that shows these arguments and everything else."""
    return ("sh", "-c", SHOW, "sh", *arguments)


def hostile(runtime: str) -> tuple[str, ...]:
    """Hostile words, with bytes that are not UTF-8 where the runtime can carry them."""
    return (*HOSTILE, NOT_UTF8) if get_runtime(runtime).carries_bytes else HOSTILE


def container(runtime: str, executable: str, **fields: object) -> ContainerPlan:
    image = {"edf": "nvcr.io#x/y:1", "pyxis": "nvcr.io#x/y:1", "charliecloud": "/images/x"}.get(runtime, "name:1")
    if runtime in {"apptainer", "singularity"}:
        image = "/images/x.sif"
    return ContainerPlan(runtime=runtime, executable=executable, **{"image": image, **fields})  # type: ignore[arg-type]
