"""Every command that reads a run folder, with every file of the folder replaced by something hostile.

A run folder can belong to another user. Whatever it holds, a command ends with a result or an error message: no
traceback, no hang, no exhausted memory, and no file outside the folder is read through a link.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attacks.record import record
from unit.cli.typed import Ended, in_process, windlass
from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.fold import JobFiles

SECRET = "the-content-of-a-private-file"
HANG_S = 60
"""Only a call that hangs takes so long, on the slowest machine too. The processor time is the measure."""
MAX_CPU_S = 5.0
MAX_BYTES = 500 << 20
SEED = 20
RUN = "runs/theirs"

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("logs", RUN, "--rank", "all"),
    ("logs", RUN, "--rank", "all", "--attempt", "1"),
    ("logs", RUN, "--where"),
    ("logs", RUN, "--json"),
    ("watch", RUN, "--once"),
    ("watch", RUN, "--json"),
    ("runs", "list"),
    ("runs", "list", "--json"),
    ("runs", "show", RUN),
    ("runs", "show", RUN, "--json"),
    ("runs", "clean", "--failed"),
    ("runs", "stop", RUN),
    ("report", RUN, "--output", "page.html"),
    ("report", RUN, "--format", "jobreport"),
    ("report", RUN, "--json"),
    ("report", "runs/other", "--against", RUN, "--format", "text"),
    ("explain-log", RUN),
    ("bugreport", RUN, "--no-doctor", "-o", "report.zip"),
    ("diff", RUN, "runs/other"),
    ("bench", "report", RUN),
    ("exec", RUN, "--", "true"),
    ("cache", "status", RUN),
    ("cache", "status"),
    ("completion", "words", "logs", ""),
)


def path_of(path: Path) -> Path:
    """The working folder above `runs`."""
    return path if (path / "runs").is_dir() else path_of(path.parent)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


WHOLE: dict[str, Callable[[Path, bytes], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "link": lambda path, _: path.symlink_to(path_of(path) / "private"),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "folder": lambda path, _: path.mkdir(),
    "empty": lambda path, _: path.touch(),
    "sparse": lambda path, _: sparse(path),
    "not UTF-8": lambda path, old: path.write_bytes(b"\xff\xfe" + old + b"\xc3"),
    "cut": lambda path, old: path.write_bytes(old[: len(old) // 2]),
    "deep": lambda path, _: path.write_bytes(b"[" * 200_000),
    "list": lambda path, _: path.write_bytes(b"[1, 2]"),
    "string": lambda path, _: path.write_bytes(b'"x"'),
    "object": lambda path, _: path.write_bytes(b'{"version": 1}'),
    "digits": lambda path, _: path.write_bytes(b"9" * 6000),
    "escapes": lambda path, _: path.write_bytes(b"\x1b[2J\0\r\n" * 100),
}
NUMBERS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"4294967296",
    b"%d" % 2**63,
    b"9" * 400,
    b"-0.5",
    b"nan",
)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a run that has every file that commands read."""
    cwd = tmp_path_factory.mktemp("hostile")
    (cwd / "private").write_text(SECRET)
    program = "import sys; print('Traceback (most recent call last):'); print('ValueError: x'); sys.exit(3)"
    (cwd / "train.py").write_text(program)
    words = ("--restarts", "1", "--python", sys.executable, "--run-dir", RUN, "train.py")
    assert windlass("run", *words, cwd=cwd).code == 3
    run = cwd / RUN
    files = JobFiles(run, every_s=1.0)
    for at in range(12):
        files.write(demo_job(2, 1_000_000.0 + at * 60))
    (run / "job_id").write_text("4711\n")
    (run / "exit_code").write_text("3\n")
    (run / "snapshots.tsv").write_text("1000000.5\tsaved\t12\t/scratch/ckpt\n1000001.5\tloaded\t12\t/scratch/ckpt\n")
    (run / "cache.json").write_text(json.dumps({"nodes": [{"node": 0, "read": 1.5}], "total": {"read": 1.5}}))
    step = {"host": "h", "pid": 1, "started": "1", "run_id": "ab", "uid": 1, "what": "cache"}
    (run / "agents.json").write_text(json.dumps(step))
    (run / "flight").mkdir()
    (run / "flight" / "rank_0").write_bytes(pickle.dumps({"entries": [{"collective_seq_id": 3, "state": "started"}]}))
    (run / "profile").mkdir()
    (run / "profile" / "rank-0.json").write_text(json.dumps({"steps": 3, "seconds": 1.5, "kernels": []}))
    (run / "evidence" / "stack-rank-0.txt").write_text('Thread "MainThread"\n    f (train.py:1)\n')
    (run / "comm" / "rank-0.log").write_text("n:1:1 [0] NCCL INFO Using network Socket\n")
    (run / "launcher.log").write_text("srun: error: n: task 0: Exited with exit code 3\n")
    (run / "job.log").write_text("slurmstepd: error: *** JOB 4711 CANCELLED ***\n")
    shutil.copytree(run, cwd / "runs" / "other")
    (cwd / "runs" / "staged").mkdir()
    use = {"command": "stage", "process": ["h", 1, "1", "b"], "outcome": "done"}
    (cwd / "runs" / "staged" / "command.json").write_text(json.dumps(use))
    return cwd


def hostile_cases(run: Path, rng: random.Random, numbers: int) -> Iterator[tuple[Path, str, Callable[[Path], object]]]:
    """Every file with every replacement, and so many of the numbers in it with each hostile number."""
    for path in sorted(run.rglob("*")):
        if path.is_dir():
            for kind in ("link", "device", "pipe", "empty"):
                yield path, f"folder is {kind}", functools.partial(_replace_folder, kind)
            continue
        old = path.read_bytes()
        for kind, act in WHOLE.items():
            yield path, kind, functools.partial(_act, act, old)
        found = list(_NUMBER.finditer(old))
        for match in rng.sample(found, min(numbers, len(found))):
            for number in NUMBERS:
                data = old[: match.start()] + number + old[match.end() :]
                yield path, f"{match[0].decode()} at {match.start()} is {number.decode()[:20]}", _writer(data)


def _act(act: Callable[[Path, bytes], object], old: bytes, path: Path) -> None:
    act(path, old)


def _writer(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _replace_folder(kind: str, path: Path) -> None:
    """A link leads to a private folder with files of the same names."""
    if kind != "link":
        WHOLE[kind](path, b"")
        return
    private = Path(shutil.copytree(path_of(path) / "aside", path_of(path) / "private.d", dirs_exist_ok=True))
    for file in private.rglob("*"):
        if file.is_file():
            file.write_bytes(re.sub(rb"[A-Za-z]{4,}", SECRET.encode(), file.read_bytes()))
    path.symlink_to(private)


@contextlib.contextmanager
def replaced(path: Path, act: Callable[[Path], object]) -> Iterator[None]:
    """`path` replaced for a while."""
    aside = path_of(path) / "aside"
    path.rename(aside)
    try:
        act(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)
        shutil.rmtree(path_of(path) / "private.d", ignore_errors=True)


def _hangs(*_: object) -> None:
    raise TimeoutError(f"it hangs: no end within {HANG_S} s")


def problem(command: tuple[str, ...], cwd: Path) -> str | None:
    """What is wrong with how a command ends, or None."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, before[1]))
    old = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANG_S)
    began = time.process_time()
    try:
        ended = in_process(*command, cwd=cwd, env={"PATH": "/nowhere", "HOME": str(cwd), "WINDLASS_STATE": str(cwd)})
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]} {_place(error)}"
    finally:
        spent = time.process_time() - began
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, before)
    return _wrong(ended, spent, cwd)


def _wrong(ended: Ended, spent: float, cwd: Path) -> str | None:
    if spent > MAX_CPU_S:
        return f"{spent:.1f} s of the processor"
    if ended.code not in (0, 1, 2, 3, 4):
        return f"exit code {ended.code}: {ended.stderr[-300:]}"
    if "Traceback" in ended.stderr:
        return ended.stderr[-300:]
    if SECRET in ended.text:
        return "it shows a private file through a link"
    archive = cwd / "report.zip"
    if archive.exists():
        import zipfile

        with zipfile.ZipFile(archive) as file:
            shown = any(SECRET.encode() in file.read(name) for name in file.namelist())
        archive.unlink()
        return "the archive holds a private file" if shown else None
    return None


def _place(error: BaseException) -> str:
    trace, frames = error.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        if "windlass" in code.co_filename:
            frames.append(f"{Path(code.co_filename).name}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " < ".join(frames[::-1][:4])


def check(template: Path, cases: list[tuple[Path, str, Callable[[Path], object], tuple[str, ...]]]) -> None:
    found: dict[str, str] = {}
    for path, kind, act, command in cases:
        with replaced(path, act):
            wrong = problem(command, template)
        if wrong is not None:
            found.setdefault(wrong, f"windlass {' '.join(command)}: {path.relative_to(template)}: {kind}")
    assert not found, "\n".join(f"{where}\n    {wrong}" for wrong, where in found.items())


def all_cases(
    template: Path, rng: random.Random, numbers: int
) -> list[tuple[Path, str, Callable[[Path], object], tuple[str, ...]]]:
    cases = hostile_cases(template / RUN, rng, numbers)
    staged = hostile_cases(template / "runs" / "staged", rng, numbers)
    return [(*case, command) for case, command in itertools.product((*cases, *staged), COMMANDS)]


@pytest.fixture(autouse=True)
def nothing_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is signalled, whatever number a file names."""

    def refuse(*words: object) -> None:
        raise AssertionError(f"a command signals {words}")

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)


def test_commands_work_with_the_folder_as_it_is(template: Path) -> None:
    for command in COMMANDS:
        assert problem(command, template) is None, command


def test_a_sample_of_hostile_run_folders_ends_in_results_or_messages(template: Path) -> None:
    rng = random.Random(SEED)
    cases = all_cases(template, rng, 3)
    check(template, rng.sample(cases, 400))
    record("hostile files in run folders (sample)", expected="a result or a message", seen="a result or a message")


@pytest.mark.slow
def test_every_hostile_run_folder_ends_in_a_result_or_a_message(template: Path) -> None:
    cases = all_cases(template, random.Random(SEED), 8)
    check(template, cases)
    record(
        "hostile files in run folders x commands",
        expected="a result or a message",
        seen="a result or a message",
        attempts=len(cases),
    )
