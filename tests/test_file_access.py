"""Files are read and written by three modules: bounded, never through a link of another user.

Reads every call of the package. A path that another user can write to must not reach `open`, `Path.write_text` and the
like. Calls that stay are listed one by one, each with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "windlass"

DOORS = {"node/sys/reading.py", "node/sys/atomic.py", "run/trust.py"}
"""The bounded reader, the safe writer and the trust decision."""

NODE = "node/"
"""Code for nodes also reads files of the kernel and of its own private folders, with `open(path)`."""

_SAMPLES = "the benchmark measures plain reads of samples that it wrote into its own new folder"
_ALONE = "travels without node/sys, and writes into a folder of this run that only we can enter"
_UNNAMED = "an unnamed file: no other user can reach it"
ALLOWED: dict[tuple[str, str], str] = {
    ("bench/io/rank.py", "import tempfile"): "only the folder where temporary files go",
    ("bench/io/rank.py", "path.write_bytes((number.to_bytes(8, 'little') + block)[:size])"): _SAMPLES,
    ("bench/io/rank.py", "tarfile.open(folder / 'samples.tar', 'w')"): _SAMPLES,
    ("bench/io/rank.py", "path.open('rb+')"): _SAMPLES,
    ("bench/io/rank.py", "(folder / 'tree' / sample_path(number)).read_bytes()"): _SAMPLES,
    ("bench/io/rank.py", "(folder / 'samples.tar').open('rb')"): _SAMPLES,
    ("bench/io/rank.py", "(root / sample_path(number)).read_bytes()"): _SAMPLES,
    ("bench/io/rank.py", "tarfile.open(archive)"): _SAMPLES,
    ("build/images/oci.py", "tarfile.open(path, tarinfo=BoundedMember)"): "the image that the user named, with bounds",
    (
        "node/agent/diagnostics.py",
        "open(os.path.join(folder, 'stack-rank-%d.txt' % rank), 'w', encoding='utf-8')",
    ): _ALONE,
    (
        "node/agent/diagnostics.py",
        "open(os.path.join(folder, 'nccl-ras-node-%s.txt' % node), 'w', encoding='utf-8')",
    ): _ALONE,
    ("node/checks/space.py", "import tempfile"): _UNNAMED,
    ("node/libs/place.py", "open(os.path.join(partial, ENVIRONMENT), 'w', encoding='utf-8')"): _ALONE,
    ("node/libs/place.py", "shutil.copyfile(source, target)"): _ALONE,
    ("node/libs/place.py", "json.load(stream)"): "the file that the same run wrote for this program",
    ("node/sampler/profiler.py", "open(base + '.json', 'w', encoding='utf-8')"): _ALONE,
    ("node/sampler/profiler.py", "open(base + '.txt', 'w', encoding='utf-8')"): _ALONE,
    ("node/stage/unpacking.py", "import tempfile"): _UNNAMED,
    ("node/sys/folders.py", "import tempfile"): "new folders with a random name and mode 0700 alone",
}
"""File and call, and why this call is safe. At most 20."""

_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
_SHUTIL = {"copy", "copy2", "copyfile", "copytree", "move"}
_MODES = set("rwaxbt+")


def test_files_are_opened_by_the_readers_and_writers_alone() -> None:
    found = {(name, call) for name, _, call in calls()}
    new = sorted(f"{name}:{line}: {call}" for name, line, call in calls() if (name, call) not in ALLOWED)
    assert not new, "use windlass.node.sys.reading and windlass.node.sys.atomic:\n" + "\n".join(new)
    assert not set(ALLOWED) - found, "these are gone: take them out of the list"
    assert len(ALLOWED) <= 20


def test_the_rule_sees_every_way_to_open_a_file() -> None:
    text = """
import tempfile
open(path, "w"); open(path); path.open("rb"); path.open(); path.open(mode="ab"); Path(x).write_text("x")
path.write_bytes(data); path.read_text(encoding="utf-8"); path.read_bytes(); os.replace(a, b)
json.load(file); shutil.copyfile(a, b); tarfile.open(path, "w"); path.replace(target)
os.open(path, os.O_WRONLY | os.O_CREAT)
"""
    assert len(list(_in_text(text))) == 16
    fine = """
open(descriptor_of(path), "wb", closefd=True) if 0 else open(1, "w"); open(os.open(x, y), "rb")
folder.write_bytes(NAME, data); self._links.open(node); text.replace("a", "b"); json.loads(text)
open(path, "w", opener=open_closed)
open("/proc/self/status"); open("/proc/%d/stat" % pid, "rb"); os.open(path, os.O_RDONLY)
os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600); tarfile.open(fileobj=file); read_text(path)
"""
    assert [call for _, call in _in_text(fine)] == ["open(descriptor_of(path), 'wb', closefd=True)"]


def calls() -> Iterator[tuple[str, int, str]]:
    for path in sorted(SRC.rglob("*.py")):
        name = str(path.relative_to(SRC))
        if name not in DOORS:
            found = _in_text(path.read_text())
            yield from ((name, line, call) for line, call in found if not (name.startswith(NODE) and _only_reads(call)))


def _only_reads(call: str) -> bool:
    mode = re.search(r", (?:mode=)?'([rwaxbt+]+)'", call)
    return call.startswith("open(") and (mode is None or not set(mode[1]) & set("wax+"))


def _in_text(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if (isinstance(node, ast.Import) and any(alias.name == "tempfile" for alias in node.names)) or (
            isinstance(node, ast.ImportFrom) and node.module == "tempfile"
        ):
            yield node.lineno, "import tempfile"
        elif isinstance(node, ast.Call) and _opens(node):
            yield node.lineno, ast.unparse(node)


def _opens(call: ast.Call) -> bool:
    words = [ast.unparse(arg) for arg in call.args]
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and bool(words) and not _is_harmless(call)
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    if name in _METHODS:
        return len(words) <= 1 and owner not in {"reading", "self"}
    if owner == "os":
        creates = name == "open" and any("O_CREAT" in word for word in words)
        return name == "replace" or (
            creates and not any("O_EXCL" in w or "O_NOFOLLOW" in w or "_FLAGS" in w for w in words)
        )
    if owner == "json":
        return name == "load"
    if owner == "shutil":
        return name in _SHUTIL
    if owner in {"tarfile", "zipfile", "gzip"}:
        return name == "open" and bool(words) and words[0] != "None"
    if name == "replace":  # of a path: a text takes two words
        return len(words) == 1 and not call.keywords
    return name == "open" and _names_a_mode(call)


def _names_a_mode(call: ast.Call) -> bool:
    """`path.open("rb")` and `path.open()`, unlike `links.open(node)`."""
    first = call.args[0] if call.args else None
    if first is None:
        return not call.keywords or any(word.arg in {"mode", "encoding", "errors"} for word in call.keywords)
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= _MODES


def _is_harmless(call: ast.Call) -> bool:
    """A descriptor that is open already, a file of the kernel, and a file of an opener that follows no link."""
    path = call.args[0]
    if any(word.arg == "opener" for word in call.keywords):
        return True
    if isinstance(path, ast.BinOp):
        path = path.left
    if isinstance(path, ast.Constant):
        return isinstance(path.value, int) or str(path.value).startswith(("/proc/", "/sys/"))
    return isinstance(path, ast.Call) and ast.unparse(path.func) == "os.open"
