"""The page of what a training script may import, made from its signatures and docstrings. Pure."""

from __future__ import annotations

import dataclasses
import inspect

from markdown_table import table
from windlass.runtime import RESUME_ME, ResumeLater, Run, Snapshot, init, step

_HEAD = f"""# Reference: in a training script

`import windlass` in a script costs nothing until something is called, and works with no launcher at all: the same
script runs under windlass, `srun`, `mpiexec`, `torchrun` or alone. The script's environment needs windlass installed
(`pip install .`); torch is imported where it is first needed. How to use it: [save and resume](../howto/snapshots.md).

A rank that has saved and leaves early ends with exit code {RESUME_ME}: start it again and it goes on.
"""


def runtime_page() -> str:
    """The whole page."""
    run_fields = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(Run)]
    blocks = [
        _HEAD,
        _described("windlass.init", init),
        _section("What init returns: Run", inspect.getdoc(Run) or "", "", *table(("attribute", "type"), run_fields)),
        *(_described(f"Run.{name}", getattr(Run, name)) for name in ("barrier", "shutdown")),
        _section("Run.is_main", inspect.getdoc(Run.is_main.fget) or ""),
        _described("windlass.Snapshot", Snapshot),
        *(_described(f"Snapshot.{name}", getattr(Snapshot, name)) for name in ("resume", "step")),
        _described("windlass.step", step),
        _section("windlass.runtime.ResumeLater", inspect.getdoc(ResumeLater) or ""),
    ]
    return "\n".join(blocks)


def _described(name: str, thing: object) -> str:
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)  # type: ignore[misc, arg-type]
    kept = [parameter for key, parameter in signature.parameters.items() if key != "self"]
    back = "" if inspect.isclass(thing) else f" -> {signature.return_annotation}"
    words, star = [], False
    for parameter in kept:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        words.append(_parameter_text(parameter))
    text = f"{name}({', '.join(words)}){back}"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"
    return _section(name, "```python", text, "```", "", inspect.getdoc(thing) or "")


def _parameter_text(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {parameter.annotation}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"


def _section(title: str, *lines: str) -> str:
    return "\n".join((f"## {title}", "", *lines, ""))
