"""The code that ranks run: it travels whole, and needs nothing but the standard library until it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from looping import each
from windlass.bench.messages import messages
from windlass.bench.runner import put_code


def _bare_python(*words: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that sees no package of anybody: as in a container with Python and nothing else."""
    argv = [sys.executable, "-I", "-S", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/", env={})


@each("program", ["collectives", "io", "matmul", "train"])
def test_a_rank_program_is_imported_without_windlass_or_any_package(tmp_path: Path, program: str) -> None:
    code = put_code(tmp_path / "run folder")
    done = _bare_python(
        "-c", f"import sys; sys.path.insert(0, {str(code)!r}); import windlass.bench.{program}.rank as r"
    )
    assert done.returncode == 0, done.stderr


def test_options_that_cannot_be_are_told_as_a_message_with_their_exit_code(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    wrong = {"path": str(tmp_path), "samples": 0, "folder": str(tmp_path / "data" / "samples")}
    done = _bare_python(str(put_code(tmp_path)), "io", json.dumps(wrong))
    assert done.returncode == 2, done.stderr
    ((_, message),) = messages((0, line) for line in done.stdout.splitlines())
    assert message["kind"] == "error"
    assert "--samples must be 1 or more" in message["message"]


def test_one_rank_reads_its_samples_and_leaves_nothing(tmp_path: Path) -> None:
    values = {"path": str(tmp_path), "samples": 3, "sample_size": "1K", "formats": "files,tar"}
    done = _bare_python(str(put_code(tmp_path)), "io", json.dumps(values | {"folder": str(tmp_path / "samples")}))
    assert done.returncode == 0, done.stderr
    kinds = [message["kind"] for _, message in messages((0, line) for line in done.stdout.splitlines())]
    assert kinds.count("row") == 4, "two formats, cold and warm"
    assert kinds[-1] == "end"
    assert not (tmp_path / "samples").exists()


def test_compilers_find_the_source_of_a_function_in_the_file(tmp_path: Path) -> None:
    """Triton and torch read it with `inspect`."""
    text = "import inspect; from windlass.bench.rank import leave; print(inspect.getsource(leave))"
    done = _bare_python("-c", f"import sys; sys.path.insert(0, {str(put_code(tmp_path))!r}); {text}")
    assert done.stdout.startswith("def leave("), done.stderr
