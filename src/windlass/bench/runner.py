"""Run the parts of a benchmark, each as one launch of ranks like `windlass run`, and collect their messages."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec

import windlass
from windlass import api
from windlass.agents.ship import tree_bytes
from windlass.base.procs.command import run_command
from windlass.bench.messages import ResultReader, messages
from windlass.bench.options import as_values
from windlass.bench.record import BenchRecord, Measurement, RankLocation, Where, new_record
from windlass.errors import MachineError, WindlassError
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.model.request import Request
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_bytes
from windlass.run.failure.ends import read_seats
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import RunFolder, make_folder
from windlass.run.output import OutputView
from windlass.run.planning import plan_to_run
from windlass.run.progress import Progress

_STEP = re.compile(r"\A(?:warm-up|step) \d+/\d+\Z")


class BenchView(OutputView):
    """Show the progress of the first rank. The complete output is in the run directory."""

    def __init__(self, err: TextIO, progress: Progress) -> None:
        super().__init__(frozenset({0}), err, err)
        self._progress = progress
        self._reader = ResultReader()
        self._held: list[str] = []

    def shows(self, rank: int | None) -> bool:
        return False  # so that the last lines of a failed rank are repeated

    def line(self, rank: int, text: str) -> None:
        if rank != 0:
            return
        message = self._reader.read_line(text)
        if message is not None and message["kind"] == "progress":
            of = f" ({message['done'] + 1}/{message['total']})" if message.get("total") else ""
            self._progress.show(f"{message['text']}{of}")
        elif _STEP.match(text):
            self._progress.show(text)

    def note(self, text: str) -> None:
        """Show messages about an interrupt at once.

        Hold messages about the end, because ranks may report it in more detail.
        """
        if text.startswith("windlass: SIG"):
            self._progress.clear()
            super().note(text)
        else:
            self._held.append(text)

    def release(self) -> None:
        """Show the held messages."""
        self._progress.clear()
        for text in self._held:
            super().note(text)
        self._held.clear()


_TOP = Path(windlass.__file__).parent
_PACKAGES = ("base/procs", "bench", "bench/collectives", "bench/io", "bench/matmul", "bench/train")
_MAIN = b"""\
import json
import sys

from windlass.bench.rank import leave, run_program

leave(run_program(sys.argv[1], json.loads(sys.argv[2])))
"""


def put_code(folder: Path) -> Path:
    """Write the code to `folder` and return the file to run as `FILE PROGRAM OPTIONS`. Raises `MachineError`."""
    members = {f"windlass/{name}": read_bytes(_TOP / name, follow=True) for name in ("__init__.py", "errors.py")}
    packages = {f"windlass.{name.replace('/', '.')}": _TOP / name for name in _PACKAGES}
    path = folder / "ranks.pyz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, tree_bytes({"__main__.py": _MAIN, **members}, packages, compressed=False))
    except OSError as error:
        raise MachineError(
            f"cannot write the ranks' code to {path}: {error.strerror}", hint="choose another place with --run-dir"
        ) from error
    return path


T = TypeVar("T")
MAX_LOCATIONS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One launch: a rank program with its options as JSON, at a size (None: the size of the request)."""

    name: str
    program: str
    argument: str
    nodes: int | None = None
    ranks_per_node: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    """The result of a part: the plan, the run record, and the messages of its ranks."""

    part: Part
    plan: Plan
    run: RunRecord
    folder: RunFolder
    sent: tuple[tuple[int, dict[str, Any]], ...]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [message for _, message in self.sent if message["kind"] == kind]

    @property
    def about(self) -> dict[str, Any]:
        return next(iter(self.of_kind("about")), {})

    @property
    def complete(self) -> bool:
        return self.run.outcome == "ok"


@dataclass(kw_only=True)
class Bench:
    """One benchmark while it runs."""

    case: str
    request: Request
    environ: Mapping[str, str]
    allow_login: bool
    folder: Path
    exact_folder: bool
    command: tuple[str, ...]
    asked: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=lambda: Progress(sys.stderr))
    started: float = field(default_factory=time.time)
    results: list[PartResult] = field(default_factory=list)
    interrupted: bool = False
    failed: list[str] = field(default_factory=list)

    def options_as(self, kind: type[T]) -> T:
        """Return the given values as the options of a case. They are part of the record. Raises `UsageError`."""
        options = kind(**self.asked)
        self.options |= as_values(options)
        return options

    def size(self, *, nodes: int | None = None, ranks_per_node: int | None = None) -> tuple[int, int]:
        """Return nodes and ranks per node that a plan would choose now. Raises an error if the size is not possible."""
        request = self.request
        asked = {"nodes": nodes or request.nodes, "ranks_per_node": ranks_per_node or request.ranks_per_node}
        request = msgspec.structs.replace(request, **asked)
        plan = plan_to_run(request, self.environ, allow_login=self.allow_login).plan
        return plan.nodes, plan.ranks_per_node

    def run(self, part: Part, *, alone: bool = True) -> PartResult | None:
        """Run one part. Return None if it was interrupted before it began.

        An error that a rank sent is raised here with the message of the rank. If one of several parts (`alone` false)
        fails, the failure is kept as a remark instead.
        """
        if not self.results:
            self._claim_folder()
        path = self.folder if alone else self.folder / part.name
        folder = make_folder(str(path), path.parent, part.name)
        try:
            script = put_code(folder.path)
            request = msgspec.structs.replace(
                self.request,
                kind="script",
                command=(str(script), part.program, part.argument),
                name=self.request.name or f"bench-{self.case}",
                run_dir=str(folder.path),
                nodes=part.nodes or self.request.nodes,
                ranks_per_node=part.ranks_per_node or self.request.ranks_per_node,
                placeholders=False,
            )
            self.progress.what = part.name
            self.progress.show("starting ranks")
            view = BenchView(sys.stderr, self.progress)
            ready = api.new_run(
                request, environ=self.environ, view=lambda _: view, allow_login=self.allow_login, quiet=True
            )
            plan, run = ready.plan, api.start(ready)
        except KeyboardInterrupt:
            self.interrupted = True
            return None
        except WindlassError:
            shutil.rmtree(folder.path, ignore_errors=True)
            with suppress(OSError):
                self.folder.rmdir()  # only if it is empty
            raise
        finally:
            self.progress.clear()
        result = PartResult(part=part, plan=plan, run=run, folder=folder, sent=tuple(_sent(plan, folder)))
        self.results.append(result)
        self.interrupted = self.interrupted or run.outcome == "stopped"
        if not result.of_kind("error"):
            view.release()
        self._complain(result, alone=alone)
        return result

    def _claim_folder(self) -> None:
        """Create a separate directory, also for two benchmarks that begin in the same second."""
        if self.exact_folder:
            return
        first = self.folder
        for number in range(1, 100):
            self.folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                self.folder.mkdir(mode=0o700, parents=True)
                return
            except FileExistsError:
                continue
            except OSError as error:
                raise MachineError(
                    f"cannot make the folder {self.folder}: {error.strerror}", hint="choose another with --run-dir"
                ) from error

    def _complain(self, result: PartResult, *, alone: bool) -> None:
        errors = result.of_kind("error")
        if errors and not result.of_kind("row") and alone:
            first = errors[0]
            raise RankError(first["message"], hint=first.get("hint"), code=int(first.get("code", 1)))
        if errors:
            self.failed.append(f"{result.part.name}: {errors[0]['message']}")
        elif not result.complete and result.run.outcome != "stopped":
            self.failed.append(f"{result.part.name}: ended with code {result.run.exit_code}; {result.folder.path}")

    @property
    def exit_code(self) -> int:
        codes = [result.run.exit_code for result in self.results if result.run.exit_code]
        return codes[0] if codes else 130 if self.interrupted else 1 if self.failed else 0

    def record(self, rows: Sequence[Measurement], *, remarks: Sequence[str] = ()) -> BenchRecord:
        """Return the record of the measurements so far."""
        largest = max(self.results, key=lambda o: o.plan.world_size, default=None)
        about = largest.about if largest else {}
        skipped = [message["text"] for result in self.results for message in result.of_kind("skipped")]
        software = dict(about.get("software", {}))
        software["backend"] = about.get("backend")
        return new_record(
            self.case,
            command=("windlass", "bench", *self.command),
            windlass=windlass.__version__,
            commit=checkout_commit(),
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.started)),
            seconds=round(time.time() - self.started, 3),
            complete=not self.interrupted and not self.failed and all(o.complete for o in self.results),
            where=_where(largest) if largest else Where(),
            device=about.get("device", {}),
            software={name: value for name, value in software.items() if value},
            environment=about.get("environment", {}),
            options={name: value for name, value in self.options.items() if value is not None},
            rows=tuple(rows),
            skipped=tuple(dict.fromkeys(skipped)),
            remarks=(*remarks, *self.failed),
        )


class RankError(WindlassError):
    """An error that a rank sent, raised by the command that started the rank."""

    def __init__(self, message: str, *, hint: str | None, code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = code


def _sent(plan: Plan, folder: RunFolder) -> list[tuple[int, dict[str, Any]]]:
    return messages(rank_logs(plan, folder.path).lines())


def _where(result: PartResult) -> Where:
    plan = result.plan
    seats = sorted(read_seats(result.folder.part("where")))[:MAX_LOCATIONS]
    return Where(
        site=plan.site,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        hosts=result.run.hosts,
        job_id=plan.job_id,
        scheduler=plan.scheduler,
        launcher=plan.launcher,
        container=plan.container.image if plan.container else None,
        ranks=tuple(RankLocation(rank=s.rank, host=s.host, cpus=s.cpus, device=s.device) for s in seats),
    )


def checkout_commit() -> str | None:
    """Return the commit of the checkout that windlass runs from, with `-dirty` if files differ from it.

    Returns None for an installed package.
    """
    here = Path(windlass.__file__).resolve()
    top = here.parents[2]
    if not (top / ".git").exists():
        return None
    try:
        done = run_command(("git", "-C", str(top), "rev-parse", "HEAD"), timeout_s=10)
        changed = run_command(("git", "-C", str(top), "status", "--porcelain", "-uno", "--", "src"), timeout_s=30)
    except WindlassError:
        return None
    return done.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
