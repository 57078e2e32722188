"""PALS, hydra, Open MPI and flux run: their words, labels and complaints."""

from __future__ import annotations

import itertools

import pytest

import captured
from looping import each
from windlass.backends.launchers.base import Launcher, LaunchSpec, LineReader
from windlass.backends.launchers.flux import FluxRun
from windlass.backends.launchers.hydra import Hydra
from windlass.backends.launchers.local import Local
from windlass.backends.launchers.openmpi import OpenMpi
from windlass.backends.launchers.pals import Pals
from windlass.base.notation.counts import parse_bindings
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.site import LauncherSpec

AURORA = "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
FLUX = captured.captures("flux/messages.json")


def words(launcher: Launcher, spec: LaunchSpec, site: LauncherSpec | None = None) -> tuple[str, ...]:
    return argv_of(launcher.arguments(spec, site or LauncherSpec()))


def test_pals_line_is_the_one_that_aurora_documents() -> None:
    spec = LaunchSpec(nodes=2, ranks_per_node=12, cpu_lists=parse_bindings(AURORA), host_file="/run/hosts")
    made = words(Pals(), spec, LauncherSpec(kind="pals", mpi="pmix"))
    assert made[:5] == ("mpiexec", "-n", "24", "--ppn", "12")
    assert f"--cpu-bind=list:{AURORA}" in made
    assert made[5:7] == ("--hostfile", "/run/hosts")
    assert {"--envall", "--pmi=pmix", "--label", "--line-buffer"} <= set(made)


def test_pals_counts_cpus_where_there_is_no_list() -> None:
    assert {"--cpu-bind=depth", "--depth=16"} <= set(
        words(Pals(), LaunchSpec(nodes=1, ranks_per_node=4, cpus_per_rank=16))
    )
    assert "--cpu-bind=none" in words(Pals(), LaunchSpec(nodes=1, ranks_per_node=4, unbound=True))


@each(
    ("lines", "rank", "host", "code", "signal"),
    [
        (
            ["x4616.example: rank 2355 exited with code 134", "x4616.example: rank 2358 died from signal 15"],
            2355, "x4616.example", 134, None,
        ),
        (["x1.e: rank 0 died from signal 15", "x2.e: rank 27 died from signal 11"], 27, "x2.e", None, 11),
        (["x1.e: rank 0 died from signal 7 and dumped corex1.e: rank 3 died from signal 15"], 0, "x1.e", None, 7),
        (["x1.e: shepherd died from signal 9", "x2.e: rank 12 died from signal 15"], None, "x1.e", None, 9),
        (["x1.e: rank 4 died from signal 15"], 4, "x1.e", None, 15),
    ],
)  # fmt: skip
def test_pals_names_the_rank_that_was_not_merely_ended(
    lines: list[str], rank: int | None, host: str, code: int | None, signal: int | None
) -> None:
    failure = Pals().parse_failure(["x1.e 3: rank 9 exited with code 1, says a rank", *lines], 143)
    assert failure is not None
    assert (failure.rank, failure.host, failure.code, failure.signal) == (rank, host, code, signal)


def test_hydra_tells_host_and_signal_but_no_rank() -> None:
    banner = [
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "=   PID 28431 RUNNING AT node7",
        "=   EXIT CODE: 9",
        "=   CLEANING UP REMAINING PROCESSES",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
    ]
    failure = Hydra().parse_failure(banner, 9)
    assert failure is not None
    assert (failure.rank, failure.host, failure.signal, failure.said) == (None, "node7", 9, "Killed")
    assert Hydra().parse_failure(["[windlass 0] hello"], 3) is None


@each(
    ("lines", "rank", "host", "code", "signal"),
    [
        (["Process name: [[6187,1],1]", "  Exit code:    3"], 1, None, 3, None),
        (["   Process name: [prterun-host-147515@1,6]", "   Exit code:    127"], 6, None, 127, None),
        (["mpirun noticed that process rank 1 with PID 0 on node vm7 exited on signal 9 (Killed)."], 1, "vm7", None, 9),
        (
            ["prterun noticed that process rank 17 with PID 3063175 on node cn517 exited on", "signal 9 (Killed)."],
            17, "cn517", None, 9,
        ),
    ],
)  # fmt: skip
def test_open_mpi_4_and_5_name_the_first_process(
    lines: list[str], rank: int, host: str | None, code: int | None, signal: int | None
) -> None:
    failure = OpenMpi().parse_failure(["[1,0]<stderr>:  Exit code:    9", "-----", *lines, "-----"], 1)
    assert failure is not None
    assert (failure.rank, failure.host, failure.code, failure.signal) == (rank, host, code, signal)


@each(
    ("line", "rank", "text"),
    [
        ("[1,3]<stdout>: leading space is the rank's own", 3, " leading space is the rank's own"),
        ("[1,0]<stderr>:", 0, ""),
        ("[prterun-host-99@1,12]<stdout>: text", 12, "text"),
        ("Process name: [[6187,1],1]", None, "Process name: [[6187,1],1]"),
    ],
)
def test_open_mpi_labels_of_both_versions(line: str, rank: int | None, text: str) -> None:
    assert OpenMpi().parse_line(line) == (rank, text)


@each(
    ("launcher", "label"),
    [(Hydra(), "[windlass {}] "), (OpenMpi(), "[1,{}]<stdout>:"), (OpenMpi(), "[prterun-host-9@1,{}]<stdout>: ")],
)
def test_lines_that_were_written_in_pieces_are_put_together_again(launcher: Launcher, label: str) -> None:
    """As unbuffered Python writes: the text, and then the end of the line."""
    zero, one = label.format(0), label.format(1)
    reader = LineReader(launcher)
    fed = [
        reader.feed(line)
        for line in (
            f"{zero}a{one}b{zero}",
            f"{one}",
            f"{zero}c{zero}d",
            f"own{one}e",
            f"{zero}never",
            f"{one}x{zero}y",
        )
    ]
    assert fed == [(0, "a"), (1, "b"), (0, "cd"), (1, "e"), (0, "never"), (0, "y")]
    assert sorted(reader.flush(), key=str) == [(1, "x"), (None, "own")]


def test_a_shared_line_read_alone_loses_nothing() -> None:
    assert Hydra().parse_line("[windlass 0] a[windlass 0] ") == (0, "a")
    assert Hydra().parse_line("[windlass 0] a[windlass 1] b") == (0, "a[windlass 1] b")
    assert Hydra().parse_line("own[windlass 1] b") == (None, "own[windlass 1] b")


def test_open_mpi_words_that_tell_nothing_are_noise() -> None:
    openmpi = OpenMpi()
    assert openmpi.is_noise('[vm:31281] Warning: could not find environment variable "PYTHONPATH"')
    assert openmpi.is_noise("mpirun: Forwarding signal 14 to job")
    assert not openmpi.is_noise("mpirun was unable to find the specified executable file")


def test_open_mpi_passes_on_the_variables_that_must_travel() -> None:
    spec = LaunchSpec(nodes=1, ranks_per_node=2, environment_names=("MASTER_ADDR", "PATH"))
    made = words(OpenMpi(), spec)
    assert [made[at + 1] for at, word in enumerate(made) if word == "-x"] == ["MASTER_ADDR", "PATH"]


def test_host_files_have_the_form_that_each_launcher_reads() -> None:
    spec = LaunchSpec(nodes=2, ranks_per_node=3)
    assert Pals().host_file_text(("a", "b"), spec) == "a\nb\n"
    assert Hydra().host_file_text(("a", "b"), spec) == "a:3\nb:3\n"
    assert OpenMpi().host_file_text(("a", "b"), spec) == "a slots=3\nb slots=3\n"


@each(
    ("name", "rank", "host", "code", "signal"),
    [
        ("run-exit3-one-rank-others-sleep-exit-on-error", 2, "host1", 3, None),
        ("run-exit3-one-rank-others-sleep-exit-timeout", 2, "host1", 3, None),
        ("run-command-not-found", 0, "host1", 127, None),
        ("lost-shell", None, "node4", None, None),
        ("lost-shell-rank0", None, "node1", None, None),
        ("lost-node", None, "node4", None, None),
        ("run-time-limit-expiry-plain", None, None, None, None),
        ("run-too-many-nodes", None, None, None, None),
    ],
)
def test_flux_messages_are_understood(
    name: str, rank: int | None, host: str | None, code: int | None, signal: int | None
) -> None:
    failure = FluxRun().parse_failure(FLUX[name].lines, FLUX[name].code)
    assert failure is not None
    assert (failure.rank, failure.host, failure.code, failure.signal) == (rank, host, code, signal)
    assert failure.said


def test_flux_reads_a_signal_in_words() -> None:
    line = "0.1s: flux-shell[0]: FATAL: task-exit: sh: task rank 5 on host n7 failed (Killed) and exit-on-error is set"
    failure = FluxRun().parse_failure([line], 137)
    assert failure is not None
    assert (failure.rank, failure.host, failure.signal) == (5, "n7", 9)


def test_flux_labels_are_those_of_the_real_one() -> None:
    lines = captured.text("flux/run-N4-n8-label.stdout").splitlines()
    assert sorted(rank for rank, _ in map(FluxRun().parse_line, lines) if rank is not None) == list(range(8))
    own = "0.080s: flux-shell[0]: FATAL: task-exit: sh: task rank 2 on host host1 failed (Exit 3)"
    assert FluxRun().parse_line(own) == (None, own)


def test_flux_binds_by_its_own_map_and_keeps_mpibind_away() -> None:
    made = words(FluxRun(), LaunchSpec(nodes=2, ranks_per_node=2, cpu_lists=((0, 1, 2), (8, 9))))
    assert ("-o", "cpu-affinity=map:0-2;8-9") in list(itertools.pairwise(made))
    assert ("-o", "mpibind=off") in list(itertools.pairwise(made))


def test_the_local_launcher_has_no_command_and_no_second_node() -> None:
    assert Local().arguments(LaunchSpec(nodes=1, ranks_per_node=4), LauncherSpec()) == ()
    with pytest.raises(UsageError, match="2 nodes"):
        Local().arguments(LaunchSpec(nodes=2, ranks_per_node=4), LauncherSpec())
