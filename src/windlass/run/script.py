"""Read the user's script without running it: its imports, and whether its ranks would train as one job."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from windlass.model.request import Request
from windlass.node.sys.reading import read_bytes
from windlass.plan.inputs import ScriptFacts

_MAX_BYTES = 1 << 20
_MAX_MODULES = 50
_JOINS = re.compile(rb"distributed|rank|windlass|parallel|mpi|nccl|gloo", re.IGNORECASE)
"""A script that contains none of these does not check which of several processes it is."""
_LEAVES = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "PIL", "cv2", "tqdm"}
    | {"yaml", "wandb", "tensorboard", "einops", "rich", "click", "h5py", "datasets", "tokenizers", "tiktoken"}
)
"""Packages that do not join a process group."""
_USES_RAY = re.compile(
    rb"\bray\.(?:init|get|remote|train|tune|data)\b|^\s*from ray\.(?:train|tune|data)\b", re.MULTILINE
)
_OWN_GROUP = re.compile(rb"init_process_group|windlass\.init|\bAccelerator\(|jax\.distributed")


class Script(NamedTuple):
    packages: tuple[str, ...] | None = None
    """Top-level names of the packages that it imports, in order. None if unknown.

    Modules in the script's folder and in the standard library are left out.
    """
    imports: frozenset[str] = frozenset()
    """Top-level names of the imports of the script and of the modules in its folder."""
    trains_alone: bool = False
    """It trains with torch and certainly joins no process group."""
    statements: tuple[str, ...] = ()
    """Its imports and those of the modules in its folder, as `module` or `module:name`. Without those modules."""
    facts: ScriptFacts = ScriptFacts()
    starts_ray: bool = False
    """It starts or connects to a Ray cluster, and joins no process group by itself."""


def read_script(request: Request) -> Script:
    if request.kind == "module":
        name = request.command[0].split(".", 1)[0]
        return Script((name,), frozenset({name}))
    if request.kind != "script" or not request.command:
        return Script()
    path = Path(request.cwd or ".") / request.command[0]
    texts = [_read(path)]
    trees = [_parse(texts[0])]
    said = _statements(trees[0])
    if said is None:
        return Script()
    names = _top_names(said)
    beside = {entry.stem if entry.suffix == ".py" else entry.name for entry in path.parent.iterdir()}
    statements = list(said)
    modules = [file for name in sorted(names) if (file := path.parent / f"{name}.py").exists()][:_MAX_MODULES]
    for module in modules:
        texts.append(_read(module))
        trees.append(_parse(texts[-1]))
        statements += _statements(trees[-1]) or ()
    imports = set(_top_names(statements))
    known = _LEAVES | sys.stdlib_module_names | {module.stem for module in modules}
    text = b"\n".join(texts)
    alone = "torch" in imports and imports <= known and b".backward(" in text and not _JOINS.search(text)
    packages = tuple(name for name in names if name not in sys.stdlib_module_names and name not in beside)
    others = tuple(one for one in dict.fromkeys(statements) if _top_name(one) not in beside)
    ray = bool("ray" in names and _USES_RAY.search(texts[0]) and not _OWN_GROUP.search(texts[0]))
    return Script(packages, frozenset(imports), alone, others, _facts(trees), ray)


def _read(path: Path) -> bytes:
    """Return the content of a file. Empty if it cannot be read: the ranks will report the reason."""
    try:
        return read_bytes(path, _MAX_BYTES, follow=True)
    except (OSError, ValueError):
        return b""


def _parse(text: bytes) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _statements(tree: ast.Module | None) -> tuple[str, ...] | None:
    if tree is None:
        return None
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(dict.fromkeys(f"{node.module}:{alias.name}" for alias in node.names))
    return tuple(found)


def _top_names(statements: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_top_name, statements)))


def _top_name(statement: str) -> str:
    return statement.partition(":")[0].partition(".")[0]


def _facts(trees: list[ast.Module | None]) -> ScriptFacts:
    """Collect names, literal keyword arguments and options. The script comes after the modules, so that it wins."""
    names: set[str] = set()
    keywords: dict[str, str] = {}
    options: dict[str, str] = {}
    for node in (node for tree in reversed(trees) if tree for node in ast.walk(tree)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            options.setdefault(node.value, "")
        elif isinstance(node, ast.Call):
            given = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
            found = {name: str(value) for name, value in given.items() if name and isinstance(value, str | bool)}
            keywords.update(found)
            for word in node.args:
                if isinstance(word, ast.Constant) and str(word.value).startswith("--") and found.get("default"):
                    options[str(word.value)] = found["default"]
    return ScriptFacts(names=frozenset(names), keywords=keywords, options=options)
