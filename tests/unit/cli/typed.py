"""Commands as a person types them: in a process of their own, or (where nothing is started) in this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from leftovers import MARK_VARIABLE
from windlass.cli.main import main

SRC = Path(__file__).parents[3] / "src"
PLACE = "import os,sys; print('rank', os.environ['RANK'], sys.argv[1:])"
"""A script that says its rank and its arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Nothing of the user who runs the tests has a say; runs go to `folder`/runs."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "WINDLASS_STATE", MARK_VARIABLE)
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": str(SRC),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WINDLASS_RUNS": str(folder / "runs"),
        "WINDLASS_CONFIG": str(folder / "no-config"),
        **more,
    }


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "windlass", *words]


def windlass(*words: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ended:
    """`windlass WORDS` in a process of its own, to its end."""
    done = subprocess.run(
        argv(*words),
        cwd=cwd,
        env=environment(cwd, **(env or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
    )
    return Ended(code=done.returncode, stdout=_text(done.stdout), stderr=_text(done.stderr))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def run_here(*words: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ended:
    """`windlass run` with the interpreter of the tests."""
    return windlass("run", "--python", sys.executable, *words, cwd=cwd, env=env, timeout_s=timeout_s)


@contextlib.contextmanager
def running(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`windlass run`, going on while the test watches; killed at the end of the block if it is still there."""
    child = subprocess.Popen(
        argv("run", "--python", sys.executable, *words),
        cwd=cwd,
        env=environment(cwd, **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def in_process(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    """A command that starts nothing, in this process: quick. Works in `cwd` with an environment of its own."""
    old_cwd, old_env = Path.cwd(), dict(os.environ)
    out, err = io.StringIO(), io.StringIO()
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ["WINDLASS_STATE"] = old_env["WINDLASS_STATE"]
        os.environ.update(environment(cwd, **(env or {})))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(list(words))
            except SystemExit as ended:  # argparse
                code = int(ended.code or 0)
    finally:
        os.chdir(old_cwd)
        os.environ.clear()
        os.environ.update(old_env)
    return Ended(code=code, stdout=out.getvalue(), stderr=err.getvalue())


def trust(path: str | Path, cwd: Path) -> None:
    """Trust a plan or a run folder that the test made by hand, as a user does."""
    done = in_process("runs", "trust", str(path), "--yes", cwd=cwd)
    assert done.code == 0, done.text


def script(folder: Path, text: str = PLACE, name: str = "place.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def only_run(folder: Path) -> Path:
    """The one run folder below `folder`."""
    (path,) = (folder / "runs").iterdir()
    return path
