"""Many cases in one test: every case runs, and the failure shows all cases that failed.

`@each` takes the arguments of `pytest.mark.parametrize`. A parametrized function is one test for each case, each with
its own fixtures and report. A looped function pays for these once. Use it for quick cases.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

_MAX_SHOWN = 20
_FOLDERS = ("tmp_path", "hostile_dir")


def each(names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Any = None) -> Callable[[Any], Any]:
    """Call the test with every case. Each case has a new `tmp_path`, an empty `capsys` and patches of its own."""
    argnames = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    values = [case if len(argnames) > 1 else (case,) for case in cases]
    labels = [_label(value, ids, number) for number, value in enumerate(values)]

    def decorate(test: Any) -> Any:
        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in argnames]

        @functools.wraps(test)
        def loop(*args: Any, **fixtures: Any) -> None:
            assert values, "no case"
            failed = []
            for number, (label, case) in enumerate(zip(labels, values, strict=True)):
                own = fixtures | _renewed(fixtures, number)
                try:
                    test(*args, **own, **dict(zip(argnames, case, strict=True)))
                except (Exception, SystemExit, pytest.fail.Exception):
                    failed.append(f"--- {label}\n{traceback.format_exc()}")
                finally:
                    if "monkeypatch" in fixtures:
                        fixtures["monkeypatch"].undo()
            if failed:
                raise AssertionError(f"{len(failed)} of {len(values)} cases:\n" + "\n".join(failed[:_MAX_SHOWN]))

        loop.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return loop

    return decorate


def _renewed(fixtures: dict[str, Any], number: int) -> dict[str, Any]:
    """What a case must not find as the case before has left it."""
    if "capsys" in fixtures:
        fixtures["capsys"].readouterr()
    folders: dict[str, Path] = {name: fixtures[name] / f"case{number}" for name in _FOLDERS if name in fixtures}
    for folder in folders.values():
        folder.mkdir()
    return folders


def _label(case: tuple[Any, ...], ids: Any, number: int) -> str:
    if callable(ids):
        return "-".join(str(ids(value)) for value in case)
    return str(ids[number]) if ids is not None else ", ".join(repr(value)[:100] for value in case)
