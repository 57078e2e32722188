"""The words that start an agent on a node. Pure.

A shell looks for a Python that the node has itself, so that no agent's start reads an interpreter from the shared file
system; that Python reads the travelled file once, from a copy in memory takes the agent, and goes on from there.
"""

from __future__ import annotations

from windlass.base.notation.shell import expandable, quote

OLDEST = (3, 9)
NODE_PYTHONS = (
    "/usr/bin/python3",
    *(f"/usr/bin/python3.{minor}" for minor in range(14, 8, -1)),
    "/usr/local/bin/python3",
    "/opt/python/bin/python3",
)

_CHOOSE = (
    'boot=$1 last=$2; shift 2; for p in {pythons} "$last"; do '
    '[ -x "$p" ] && "$p" -I -S -c \'import sys; sys.exit(sys.version_info < {oldest})\' 2>/dev/null && '
    'exec "$p" -I -S -c "$boot" "$@"; done; {otherwise}'
    'echo "{{\\"node\\":-1,\\"failed\\":\\"no Python from {first} on at $(uname -n)\\"}}"; exit 1'
)

# An interpreter that travelled: unpacked into a folder of ours, which the agent removes again.
_TRAVELS = (
    'd={folder}; mkdir -p -m 700 "$d"; [ -O "$d" ] && [ ! -L "$d" ] && d=$(mktemp -d "$d/py.$$.XXXXXX") && '
    'tar -x -z -f {archive} -C "$d" && exec "$d/bin/python3" -I -S -c "$boot" "$@" "$d"; '
)

# One open, one read to the end. The memory file lets zipimport work without a place on disk that is not ours yet.
_BOOT = """\
import io, json, os, sys, zipfile
with open(sys.argv[1], "rb", 0) as file:
    data = file.readall()
held = os.memfd_create("windlass-agent")
os.write(held, data)
sys.path.insert(0, "/proc/self/fd/%d" % held)
with zipfile.ZipFile(io.BytesIO(data)) as archive:
    manifest, key = json.loads(archive.read("manifest.json")), archive.read("key")
from windlass.node.agent.host import main
sys.exit(main(data, manifest, key, *sys.argv[2:]))
"""


def agent_argv(
    bundle: str,
    last_python: str,
    *,
    archive: str | None = None,
    folder: str = "",
    pythons: tuple[str, ...] = NODE_PYTHONS,
) -> tuple[str, ...]:
    """What each node runs. Where the node has no Python that is new enough, the one in `archive` is unpacked below
    `folder`, the folder of agents; without an archive `last_python` is taken."""
    otherwise = "" if archive is None else _TRAVELS.format(folder=expandable(folder), archive=quote(archive))
    choose = _choose(pythons, otherwise)
    return ("/bin/sh", "-c", choose, "windlass-agent", _BOOT, "" if archive else last_python, bundle)


def _choose(pythons: tuple[str, ...] = NODE_PYTHONS, otherwise: str = "") -> str:
    first = ".".join(str(part) for part in OLDEST)
    return _CHOOSE.format(pythons=" ".join(pythons), oldest=repr(OLDEST), first=first, otherwise=otherwise)


# Modules that a program imports, from their text: `import` finds them among those that are loaded.
_PROGRAM = """\
import sys, types
for name, text in {modules!r}:
    sys.modules[name] = types.ModuleType(name)
    exec(text, sys.modules[name].__dict__)
exec({source!r})
"""


def program_text(source: str, modules: tuple[tuple[str, str], ...]) -> str:
    """The text of a program with those of the modules that it imports beside the standard library, by their names."""
    return _PROGRAM.format(modules=modules, source=source)


def script_argv(
    source: str, last_python: str, *arguments: str, modules: tuple[tuple[str, str], ...] = ()
) -> tuple[str, ...]:
    """Runs the text of a program on a node, with the node's own Python; no file of a shared file system is read.
    `modules`: names and texts of those that it imports beside the standard library."""
    program = program_text(source, modules)
    return ("/bin/sh", "-c", _choose(), "windlass-agent", program, last_python, *arguments)


_STOP = (
    'f={folder}; n=; for v in {names}; do eval n=\\${{$v-}}; [ -n "$n" ] && break; done; '
    'p=$(cat "$f.$n/pid" 2>/dev/null) || exit 0; kill -TERM "$p" 2>/dev/null || exit 0; '
    't=0; while kill -0 "$p" 2>/dev/null && [ $t -lt 200 ]; do sleep 0.1; t=$((t + 1)); done; '
    '! kill -0 "$p" 2>/dev/null'
)


def stop_argv(folder: str, run_id: str, node_variables: tuple[str, ...]) -> tuple[str, ...]:
    """Asks the agent of this run on the node where it runs to end, and waits until it has. Fine where there is none."""
    text = _STOP.format(names=" ".join(node_variables), folder=expandable(f"{folder}/a/{run_id}"))
    return ("/bin/sh", "-c", text, "windlass-agent")


def tool_argv(folder: str, run_id: str, node: int, entry: str, *arguments: str) -> tuple[str, ...]:
    """Runs `package.module:function(arguments)` from the copy of the file that a living agent keeps on its node."""
    boot = (
        "import importlib, os, re, sys; sys.path.insert(0, re.sub(r'[$][{](\\w+)[}]', "
        "lambda m: os.environ.get(m[1], ''), sys.argv[1])); m, _, f = sys.argv[2].partition(':'); "
        "sys.exit(getattr(importlib.import_module(m), f)(sys.argv[3:]))"
    )
    bundle = f"{folder}/a/{run_id}.{node}/agent.pyz"
    return ("/bin/sh", "-c", _choose(), "windlass-agent", boot, "/usr/bin/python3", bundle, entry, *arguments)
