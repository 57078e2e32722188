"""Who may know whom. Reads every import of the package, those inside functions and for type checkers too.

The tables below are the single statement of the rule; `docs/` and the design say it in words.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "windlass"

# A part imports only parts of a lower layer. Parts of one layer do not import each other.
LAYERS = {
    "node": 0,
    "errors": 1,
    "base/centre": 1,
    "base/settings": 1,
    "base/notation": 1,
    "base/pages": 1,
    "base": 1,
    "base/procs": 2,
    "model": 2,
    "sites": 3,
    "sites/topology": 3,
    "backends": 4,
    "backends/schedulers": 4,
    "backends/launchers": 4,
    "backends/containers": 4,
    "plan/environment": 4,
    "build/images": 5,
    "plan": 5,
    "run/failure": 5,
    "diagnose/watch": 6,
    "run/trust": 5,
    "run/folder": 6,
    "agents": 7,
    "run": 8,
    "run/sidecars": 9,
    "run/stage": 10,
    "run/supervise": 10,
    "diagnose/doctor": 10,
    "build": 11,
    "build/envs": 11,
    "diagnose": 11,
    "diagnose/report": 11,
    "diagnose/bugreport": 11,
    "api": 11,
    "bench": 12,
    "bench/tune": 13,
    "cli": 14,
    "__main__": 15,
    "start": 15,
}
SAME_LAYER = {
    ("base/pages", "base"),
    ("base/settings", "base"),
    ("base/centre", "errors"),
    ("base/settings", "base/centre"),
    ("base/settings", "errors"),
    ("base/notation", "errors"),
}

# Outside the layers: what a user's script imports (it works without a launcher), and the package itself.
OUTSIDE = {"runtime": {"errors", "base/notation", "node"}, "__init__": {"runtime"}}

TRAVELS = "node/"
"""This tree is sent to the nodes as one zip file and runs with whatever Python is there."""
TRAVELS_PYTHON = (3, 9)

# Heavy libraries cost seconds (and a file system storm); only programs that are ranks themselves import them at once.
HEAVY = {"torch", "numpy", "mpi4py", "matplotlib", "prometheus_client", "rich"}
HEAVY_AT_IMPORT = ("bench/train/",)

# The environment is read at the edge and handed on as a value.
READS_ENVIRONMENT = (
    "base/settings.py",  # the one copy of the environment that a command works with
    "runtime/",  # lives in the user's process: the environment is its input
    "bench/rank.py",  # programs that are ranks themselves: who they are
    "node/",  # runs on compute nodes
)

# Commands are run in one place, which gives each a deadline; long-lived children have a few places of their own.
STARTS_PROCESSES = (
    "base/procs/command.py",
    "base/procs/children.py",
    "run/signals.py",  # a fork that outlives a windlass which was killed
    "run/jobs.py",
    "run/sidecars/ahead.py",  # a recording that goes on after `submit`
    "agents/step.py",  # a step that goes on beside the ranks
    "node/",  # runs on compute nodes
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One imported module, as an absolute dotted name."""

    file: str
    line: int
    name: str
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"


def _files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def _rel(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def _imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(), filename=str(path))
    package = ("windlass", *path.relative_to(SRC).parts[:-1])
    yield from _walk(tree, _rel(path), package, True)


def _walk(node: ast.AST, file: str, package: tuple[str, ...], live: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file=file, line=child.lineno, name=alias.name, at_import_time=live)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else ()
            module = ".".join((*base, *filter(None, [child.module])))
            for alias in child.names:
                yield Import(file=file, line=child.lineno, name=f"{module}.{alias.name}", at_import_time=live)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(ast.Module(body=child.body, type_ignores=[]), file, package, False)
            yield from _walk(ast.Module(body=child.orelse, type_ignores=[]), file, package, live)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, file, package, live and not inside)


ALL_IMPORTS = [found for path in _files() for found in _imports(path)]


def _part(file: str) -> str:
    """The entry of the table that a file belongs to: its folder, or the nearest folder above that has an entry."""
    path = file.removesuffix(".py").removesuffix("/__init__")
    while path not in LAYERS and "/" in path:
        path = path.rpartition("/")[0]
    return path


def _target(name: str) -> str | None:
    """The part that an import names; None outside the package, `__init__` for the package's own names."""
    pieces = name.split(".")
    if pieces[0] != "windlass":
        return None
    second = pieces[1] if len(pieces) > 1 else "__init__"
    if len(pieces) == 1 or (not (SRC / second).is_dir() and not (SRC / f"{second}.py").is_file()):
        return "__init__"
    return _part("/".join(pieces[1:]))


def _allowed(part: str, target: str) -> bool:
    if part == target or (target == "__init__" and part != "runtime"):
        return True  # the package itself holds only the version
    if part in OUTSIDE:
        return target in OUTSIDE[part]
    if target in OUTSIDE:
        return False
    return LAYERS[target] < LAYERS[part] or (part, target) in SAME_LAYER


def test_every_part_has_its_layer() -> None:
    parts = {_part(_rel(path)) for path in _files()}
    assert parts <= set(LAYERS) | set(OUTSIDE), "add the new part to the table, and to the design"


def test_parts_import_only_what_stands_lower() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if (target := _target(found.name)) is not None and not _allowed(_part(found.file), target)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(("windlass", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in _files()
    }
    names = {_rel(path): name for name, path in modules.items()}
    known: dict[str, set[str]] = {name: set() for name in modules}
    for found in ALL_IMPORTS:
        if found.at_import_time:
            target = found.name if found.name in modules else found.name.rpartition(".")[0]
            if target in modules and target != names[found.file]:
                known[names[found.file]].add(target)
    # A package's own __init__ may gather its modules; a circle is one that remains when nothing free is left.
    left = dict(known)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"circle among: {', '.join(sorted(left))}"


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.at_import_time and found.name.split(".")[0] in HEAVY and not found.file.startswith(HEAVY_AT_IMPORT)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_runtime_needs_nothing_but_the_standard_library_to_be_imported() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.file.startswith("runtime/")
        and found.at_import_time
        and found.name.split(".")[0] not in {*sys.stdlib_module_names, "windlass"}
    ]
    assert not wrong, "\n".join(wrong)


def test_node_code_imports_the_standard_library_and_itself() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.file.startswith(TRAVELS)
        and found.name.split(".")[0] not in sys.stdlib_module_names
        and not found.name.startswith("windlass.node")
    ]
    assert not wrong, "\n".join(wrong)


def test_node_code_parses_with_an_old_python() -> None:
    for path in sorted((SRC / TRAVELS).rglob("*.py")):
        ast.parse(path.read_text(), filename=str(path), feature_version=TRAVELS_PYTHON)


def _uses(path: Path, names: set[str]) -> Iterator[int]:
    """Lines that use `module.attribute` of the given dotted names, or import them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            said = {ast.unparse(node)}
        elif isinstance(node, ast.ImportFrom):
            said = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            said = {alias.name for alias in node.names}
        else:
            continue
        if said & names:
            yield node.lineno


def test_the_environment_is_read_at_the_edge() -> None:
    names = {"os.environ", "os.getenv", "os.environb", "os.putenv"}
    wrong = [
        f"{_rel(path)}:{line} reads the environment"
        for path in _files()
        if not _rel(path).startswith(READS_ENVIRONMENT)
        for line in _uses(path, names)
    ]
    assert not wrong, "\n".join(wrong)


def test_processes_are_started_in_few_places() -> None:
    names = {"subprocess", "multiprocessing", "os.fork", "os.system", "os.popen", "os.posix_spawn", "os.execv"}
    wrong = [
        f"{_rel(path)}:{line} starts a process"
        for path in _files()
        if not _rel(path).startswith(STARTS_PROCESSES)
        for line in _uses(path, names)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_sees_imports_in_functions_and_for_type_checkers(tmp_path: Path) -> None:
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import windlass.cli.main\n"
        "def f():\n    from ..plan import shape\n"
        "class C:\n    import torch\n"
    )
    found = list(_walk(ast.parse(text), "sites/x.py", ("windlass", "sites"), True))
    assert [(f.name, f.at_import_time) for f in found] == [
        ("typing.TYPE_CHECKING", True),
        ("windlass.cli.main", False),
        ("windlass.plan.shape", False),
        ("torch", True),
    ]
    assert not _allowed("sites", "cli")
    assert not _allowed("sites", "sites/topology")
    assert not _allowed("plan", "runtime")
    assert _allowed("base/notation", "errors")
    assert not _allowed("errors", "base/notation")
