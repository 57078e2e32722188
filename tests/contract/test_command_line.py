"""The command line: commands, their options, exit codes, settings and the keys of `--json`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from contract.pinned import hold, key_paths
from unit.cli.typed import Ended, in_process, script
from windlass.base.settings import known_settings

SUB_COMMANDS = {
    "sites": ("list", "detect", "show", "check"),
    "runs": ("list", "show", "resume", "stop", "trust", "clean"),
    "nodes": ("list", "forgive"),
    "image": ("plan", "build", "lock", "check", "inject"),
    "cache": ("start", "status", "stop", "trace"),
    "bench": ("collectives", "matmul", "ddp", "llm", "io", "scale", "report", "compare", "reference"),
}
SITE = ("--site", "frontier", "--nodes", "2", "--account", "ACCOUNT", "--python", "python3")


def options(text: str) -> list[str]:
    """Options and arguments of a help text: each with the name of its value, without the words about it."""
    found = []
    for line in text.splitlines():
        match = re.match(r"  (\S.*?)(?:  |$)", line)
        if match is None or line.startswith("   ") or match[1] in {"-h, --help", "--help-all"}:
            continue
        spellings = match[1].split(", ") if match[1].startswith("-") else [match[1]]
        value = spellings[-1].partition(" ")[2]
        found += [f"{spelling.partition(' ')[0]} {value}".rstrip() for spelling in spellings]
    return found


def test_every_command_keeps_its_options(tmp_path: Path) -> None:
    usage = in_process("--help", cwd=tmp_path).stdout
    commands = re.findall(r"^  ([a-z-]+)  ", usage, re.MULTILINE)
    lines = {(command, *sub) for command in commands for sub in ((), *((s,) for s in SUB_COMMANDS.get(command, ())))}
    found = {"windlass": commands}
    for line in sorted(lines):
        done = in_process(*line, "--help-all", cwd=tmp_path)
        assert done.code == 0, done.stderr
        found[" ".join(line)] = options(done.stdout)
    hold("options", found)


def test_settings_keep_their_names() -> None:
    hold("settings", {"settings": list(known_settings())})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 0),
        (("--help",), 0),
        (("--version",), 0),
        (("rum",), 2),
        (("run",), 2),
        (("run", "--no-such-option", "x.py"), 2),
        (("run", "no-such-script.py"), 2),
        (("plan", "--site", "no-such-site", "--", "true"), 2),
        (("diff", "no.json", "no.json"), 2),
        (("logs", "no-such-run"), 2),
        (("submit", "--scheduler", "none", "--", "true"), 2),
        (("submit", *SITE, "--run-dir", "made", "--", "true"), 3),  # no sbatch here
        (("runs", "show", "no-such-run"), 2),
        (("sites", "show", "no-such-site"), 2),
        (("cache", "status"), 2),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else str(value),
)
def test_errors_have_their_exit_code(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done = in_process(*words, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert done.code == code, done.text
    assert "Traceback" not in done.text


def test_diff_tells_by_its_exit_code_whether_plans_differ(tmp_path: Path) -> None:
    script(tmp_path)
    for name, nodes in (("a", "2"), ("b", "2"), ("c", "4")):
        made = in_process("plan", "--json", *SITE[:2], *SITE[4:], "--nodes", nodes, "place.py", cwd=tmp_path)
        (tmp_path / f"{name}.json").write_text(made.stdout)
    codes = [in_process("diff", "a.json", other, cwd=tmp_path).code for other in ("b.json", "c.json")]
    assert codes == [0, 1]


def _keys(done: Ended) -> list[str]:
    assert done.code == 0, done.stderr
    return sorted(key_paths(json.loads(done.stdout)))


def _show_site(cwd: Path) -> Ended:
    return in_process("sites", "show", "--json", "frontier", cwd=cwd)


def test_json_of_commands_that_start_nothing_keeps_its_keys(tmp_path: Path) -> None:
    script(tmp_path)
    submit = tmp_path / "sbatch"
    submit.write_text("#!/bin/sh\necho 4711\n")
    submit.chmod(0o700)
    found = {
        "plan": _keys(in_process("plan", "--json", *SITE, "place.py", cwd=tmp_path)),
        "explain": _keys(in_process("explain", "OMP_NUM_THREADS", "--json", *SITE[:-2], cwd=tmp_path)),
        "sites list": _keys(in_process("sites", "list", "--json", cwd=tmp_path)),
        "sites show": [path for path in _keys(_show_site(tmp_path)) if path.count(".") < 2],
        "sites detect": _keys(in_process("sites", "detect", "--json", cwd=tmp_path)),
        "submit": _keys(in_process("submit", "--json", *SITE, "place.py", cwd=tmp_path, env={"PATH": str(tmp_path)})),
    }
    hold("json", found)
