"""Every command that reads a run folder, with every file of the folder replaced by something hostile.

A run folder can belong to another user. Whatever it holds, a command ends with a result or an error message: no
traceback, no hang, no exhausted memory, and no file outside the folder is read through a link.

The product has three parts. Each file is replaced as a whole, for every command. All values of a file are replaced by
one hostile value, for every command. Single values are replaced one by one, for the commands that open the file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attacks.record import record
from unit.cli.typed import Ended, in_process, windlass
from windlass.cli.main import command_names, command_parser
from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.fold import JobFiles

SECRET = "the-content-of-a-private-file"
HANG_S = 60
"""Only a call that hangs takes so long, on the slowest machine too. The processor time is the measure."""
MAX_CPU_S = 5.0
MAX_BYTES = 500 << 20
SEED = 20
SHARDS = 24
"""Parts of the full product, which go to different workers."""
ENDED = "a result or a message"
RUN = "runs/theirs"
Case = tuple[Path, str, Callable[[Path], object], tuple[str, ...]]

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
    ("bugreport", RUN, "--without", "doctor", "-o", "report.zip"),
    ("diff", RUN, "runs/other"),
    ("bench", "report", RUN),
    ("exec", RUN, "--", "true"),
    ("cache", "status", RUN),
    ("cache", "status"),
    ("cache", "stop", RUN),
    ("cache", "stop"),
    ("completion", "words", "logs", ""),
    (),
    ("explain", RUN),
    ("explain", "OMP_NUM_THREADS", RUN),
    ("run", "--plan", RUN),
    ("runs", "resume", RUN),
    ("runs", "trust", RUN, "--yes"),
    ("diff", "runs/other", RUN),
    ("bench", "report", RUN, "--json"),
    ("bench", "compare", RUN, "runs/other"),
    ("watch", RUN, "--once", "--prometheus", "metrics"),
)
READ_NO_RUN = {
    *("submit", "alloc", "plan", "doctor", "nodes", "env", "image", "stage", "tune", "init", "sites"),
    "selftest",
}
"""Commands that take no run folder and list none."""


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
HOSTILE: tuple[object, ...] = (
    *(math.nan, math.inf, -math.inf, -1, -0.5, 2**63, 10**400),
    *("../../private", "\x1b[2J\udcff", "\ud800", [], {}, None, True),
)
"""In the place of a value: numbers that JSON does not have, negative and huge indices, and other types."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")


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


def replacements(run: Path) -> Iterator[tuple[Path, str, Callable[[Path], object]]]:
    """Every file and folder, replaced as a whole."""
    for path in sorted(run.rglob("*")):
        if path.is_dir():
            for kind in ("link", "device", "pipe", "empty"):
                yield path, f"folder is {kind}", functools.partial(_replace_folder, kind)
            continue
        old = path.read_bytes()
        for kind, act in WHOLE.items():
            yield path, kind, functools.partial(_act, act, old)


def changes(run: Path, *, single: bool) -> Iterator[tuple[Path, str, Callable[[Path], object]]]:
    """Every file with a hostile value in each of its places, one place at a time or all at once."""
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        old = path.read_bytes().decode("utf-8", "surrogateescape")
        where = places(old)
        for chosen in [{place} for place in where] if single else [set(where)]:
            for value in HOSTILE if chosen else ():
                name = next(iter(chosen)) if single else "every value"
                yield path, f"{name} is {str(value)[:20]!r}", functools.partial(_change, old, chosen, value)


def places(text: str) -> dict[str, None]:
    """Names of the places of a text: keys of JSON without the numbers of list items, or the beginnings of lines."""
    lines = _documents(text)
    if lines is not None:
        return dict.fromkeys(place for line in lines for place, _ in _leaves(line))
    return dict.fromkeys(_place_of(match) for match in _NUMBER.finditer(text))


def _documents(text: str) -> list[Any] | None:
    """A JSON document, or one in each line."""
    for parts in ([text], text.splitlines()):
        with contextlib.suppress(ValueError):
            found = [json.loads(part) for part in parts]
            if found and isinstance(found[0], dict):
                return found
    return None


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        yield place, value
        for key, inner in _items(value, place):
            yield from _leaves(inner, f"{place}.{key}")
    else:
        yield place, value


def _with(value: Any, chosen: set[str], hostile: object, place: str = "", *, every: bool) -> Any:
    """The value with a hostile one in the chosen places; of all places, only those without a value inside change."""
    if place in chosen and not (every and isinstance(value, dict | list)):
        return hostile
    if not isinstance(value, dict | list):
        return value
    new = [(key, _with(inner, chosen, hostile, f"{place}.{key}", every=every)) for key, inner in _items(value, place)]
    return dict(new) if isinstance(value, dict) else [inner for _, inner in new]


def _items(value: Any, place: str) -> Iterable[tuple[object, Any]]:
    """Columns of a row have their number, items of a list one common name."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if place.endswith("*") else (("*", inner) for inner in value)


def _place_of(match: re.Match[str]) -> str:
    line = match.string[: match.start()].rpartition("\n")[2]
    return f"the number behind {line[-12:]!r}"


def _change(old: str, chosen: set[str], hostile: object, path: Path) -> None:
    documents = _documents(old)
    if documents is not None:
        every = len(chosen) > 1
        text = "".join(json.dumps(_with(document, chosen, hostile, every=every)) + "\n" for document in documents)
    else:
        new = hostile if isinstance(hostile, str) else json.dumps(hostile)
        text = _NUMBER.sub(lambda match: new if _place_of(match) in chosen else match[0], old)
    path.write_bytes(text.encode("utf-8", "surrogatepass" if "\ud800" in text else "surrogateescape"))


def _act(act: Callable[[Path, bytes], object], old: bytes, path: Path) -> None:
    act(path, old)


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


class HangError(BaseException):
    """Not an `OSError`, which commands handle."""


def _hangs(*_: object) -> None:
    raise HangError(f"no end within {HANG_S} s")


def problem(command: tuple[str, ...], cwd: Path) -> str | None:
    """What is wrong with how a command ends, or None. No command finds a secret of ours, so none trusts the folder."""
    state = cwd / "private" if "trust" in command else cwd  # no folder: what is to be trusted is shown, and not signed
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, before[1]))
    old = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANG_S)
    began = time.process_time()
    try:
        ended = in_process(*command, cwd=cwd, env={"PATH": "/nowhere", "HOME": str(cwd), "WINDLASS_STATE": str(state)})
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


def check(template: Path, cases: Sequence[Case]) -> None:
    found: dict[str, str] = {}
    for path, kind, act, command in cases:
        with replaced(path, act):
            wrong = problem(command, template)
        if wrong is not None:
            found.setdefault(wrong, f"windlass {' '.join(command)}: {path.relative_to(template)}: {kind}")
    assert not found, "\n".join(f"{where}\n    {wrong}" for wrong, where in found.items())


def all_cases(template: Path) -> list[Case]:
    """The product that the text of this module describes."""
    runs = (template / RUN, template / "runs" / "staged")
    whole = [case for run in runs for case in (*replacements(run), *changes(run, single=False))]
    readers = {command: opened(command, template) for command in COMMANDS}
    return [
        *((*case, command) for case, command in itertools.product(whole, COMMANDS)),
        *(
            (*case, command)
            for run in runs
            for case in changes(run, single=True)
            for command in COMMANDS
            if case[0] in readers[command]
        ),
    ]


def opened(command: tuple[str, ...], template: Path) -> set[Path]:
    """The files that a command opens in the folder as it is."""
    found: set[Path] = set()
    real = os.open

    def noting(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        above = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").resolve()
        found.add(above / os.fsdecode(path))
        return real(path, flags, mode, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", noting)
        assert problem(command, template) is None, command
    return found


@pytest.fixture(autouse=True)
def nothing_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is signalled, whatever number a file names."""

    def refuse(*words: object) -> None:
        raise AssertionError(f"a command signals {words}")

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)


def test_every_command_is_tried_or_reads_no_run() -> None:
    tried = {" ".join(command[:length]) for command in COMMANDS for length in (1, 2)}
    for name in command_names():
        actions = [action for action in command_parser(name)[1]._actions if action.dest == "action" and action.choices]
        names = [f"{name} {choice}" for choice in actions[0].choices or ()] if actions else [name]
        if name in READ_NO_RUN:
            assert not any("RUN" in str(action.metavar) for action in command_parser(name)[1]._actions), name
        missing = [word for word in names if word not in tried and not {word, name} & READ_NO_RUN]
        assert not missing, missing


def test_a_sample_of_hostile_run_folders_ends_in_results_or_messages(template: Path) -> None:
    cases = random.Random(SEED).sample(all_cases(template), 500)
    check(template, cases)
    record("hostile files in run folders x commands", expected=ENDED, seen=ENDED, attempts=len(cases))


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_hostile_run_folder_ends_in_a_result_or_a_message(template: Path, shard: int) -> None:
    cases = all_cases(template)[shard::SHARDS]
    check(template, cases)
    record("hostile files in run folders x commands, in full", expected=ENDED, seen=ENDED, attempts=len(cases))
