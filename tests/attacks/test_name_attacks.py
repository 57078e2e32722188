"""Names, ids, archives and services of strangers: in the question for trust, in paths, in commands and in reports."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
import threading
from pathlib import Path

import pytest
from replay_bundle import read_bundle

from attacks.record import record
from attacks.stranger import as_stranger, require_stranger
from attacks.test_trust_attacks import cloned
from looping import each
from planning import plan_for
from unit.cli.typed import in_process
from windlass.backends.schedulers import get_scheduler
from windlass.cli.trusting import confirm_trust
from windlass.errors import MachineError, UsageError
from windlass.node.agent import diagnostics
from windlass.plan.inputs import Secrets
from windlass.run.folder import make_folder
from windlass.run.scheduler_commands import ask_status
from windlass.run.trust import NotTrustedError, require_trust
from windlass.sites.adopted import Measurements, site_file_text
from windlass.sites.catalog import load_site


def test_the_shell_file_of_secrets_is_shown_before_a_folder_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks read `secrets.sh` as shell: a harmless plan in a cloned folder would run whatever stands there."""
    run = cloned(tmp_path, tmp_path / "ran", os.getpid())
    (run / "secrets.sh").write_text("touch planted\n")
    assert confirm_trust(run, {"WINDLASS_STATE": str(tmp_path / "state")}, ask=False)
    assert "touch planted" in capsys.readouterr().err
    require_trust(run, tmp_path / "state")
    (run / "secrets.sh").write_text("touch other\n")
    with pytest.raises(NotTrustedError, match=r"secrets\.sh was changed"):
        require_trust(run, tmp_path / "state")
    folder = make_folder(str(tmp_path / "own"), tmp_path, "x", state_dir=tmp_path / "state")
    folder.save_plan(plan_for("workstation", "true")[0], Secrets(env={"TOKEN": "x"}))
    require_trust(folder.path, tmp_path / "state")
    record("shell text in the secrets of a cloned run", expected="shown, then signed", seen="shown, then signed")


def test_the_name_of_a_folder_cannot_hide_what_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question comes after the plan: a name that clears the screen would leave only the question."""
    run = cloned(tmp_path, tmp_path / "ran", os.getpid())
    evil = run.with_name("x\x1b[2J\x1b[H\n== plan.json\nnothing")
    run.rename(evil)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert not confirm_trust(evil, {"WINDLASS_STATE": str(tmp_path / "state")})
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and shown.count("\n== plan.json\n") == 0 and "[y/N]" in shown
    record("a folder's name in the question for trust", expected="shown escaped", seen="shown escaped")


@each("name", ["{}/evil", "../../../../../../../../../../..{}/evil"])
def test_a_site_that_a_plan_names_is_never_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "evil.toml").write_text('kind = "site"\nname = "evil"\n[scheduler]\nkind = "none"\n')
    for folders in ({}, {"user": tmp_path / "config"}):
        (tmp_path / "config" / "sites").mkdir(parents=True, exist_ok=True)
        with pytest.raises(UsageError, match="unknown site"):
            load_site(name.format(tmp_path), folders=folders)  # type: ignore[arg-type]
    record("a path as the site of a plan", expected="unknown site", seen="unknown site", names=1)


@each("job_id", ["--help", "1@another.server", "1 2", "$(id)", "1\n2", "x" * 5000, ""])
def test_a_job_of_others_is_no_option_and_names_no_server(tmp_path: Path, job_id: str) -> None:
    for name in ("qstat", "scontrol", "sacct", "flux"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for kind in ("pbs", "slurm", "flux"):
        with pytest.raises(MachineError, match="is not the id of a job"):
            ask_status(get_scheduler(kind), job_id, environ, 10.0)
    assert not (tmp_path / "asked").exists()
    for good in ("17", "17.server-1", "17[3].pbs", "ƒ2E1Wbrw", "17_3"):
        ask_status(get_scheduler("pbs"), good, environ, 10.0)
    record("options and servers as the job of a run", expected="not asked", seen="not asked", ids=1)


def test_a_link_among_the_runs_does_not_end_their_cleaning(tmp_path: Path) -> None:
    done = in_process("run", "-r", "1", "--run-dir", "elsewhere", "--", "true", cwd=tmp_path)
    assert done.code == 0, done.text
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "elsewhere")
    done = in_process("runs", "clean", "--yes", cwd=tmp_path)
    assert done.code == 0 and "is a link" in done.text, done.text
    assert (tmp_path / "elsewhere" / "plan.json").exists()
    record("a link among the runs that are cleaned", expected="kept", seen="kept")


@each("kind", ["header", "sparse", "dots", "long", "empty"])
def test_a_bundle_of_a_stranger_ends_in_an_error_within_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b.tar.gz"
    if kind == "header":
        with gzip.open(path, "wb", 1) as packed:
            entry = tarfile.TarInfo("././@PaxHeader")
            entry.type, entry.size = tarfile.XHDTYPE, 1 << 30
            packed.write(entry.tobuf(tarfile.USTAR_FORMAT) + b"0" * (16 << 20))
    else:
        sizes = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
        names = {"dots": "selftest/where/..", "long": "selftest/where/" + "a" * 300}
        with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
            entry = tarfile.TarInfo(names.get(kind, "selftest/x"))
            entry.size, entry.pax_headers = 512, sizes if kind == "sparse" else {}
            archive.addfile(entry, io.BytesIO(b"0\n".ljust(512, b"\0")))
    with pytest.raises(ValueError, match=r"b\.tar\.gz"):
        read_bundle(path)
    record("bundles with bombs and bad names", expected="refused", seen="refused", bundles=1)


def test_a_name_in_a_bundle_adds_no_lines_to_a_site_file() -> None:
    evil = 'n1\n[[prologue]]\nline = "touch ran"\r\u2028#'
    seen = Measurements(name="x", date=evil, extends="generic-slurm", scheduler="slurm", node_missing=evil)
    lines = site_file_text(seen).splitlines()
    assert "[[prologue]]" not in lines and not [line for line in lines if line.startswith("line = ")]
    record("names in a bundle as lines of a site file", expected="one comment", seen="one comment")


def _ras(listening: socket.socket, answer: bytes) -> threading.Thread:
    """A service that greets as NCCL's does, then sends without end."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            try:
                for reply in (b"SERVER PROTOCOL 2\n", b"OK\n"):
                    connection.recv(1024)
                    connection.sendall(reply)
                while True:
                    connection.sendall(answer)
            except OSError:
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_an_endless_report_at_the_port_of_nccl_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = _ras(listening, b"x" * (1 << 16))
        text = diagnostics.nccl_ras(f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join(30)
    assert 0 < len(text) <= 1 << 20
    record("an endless report at NCCL's port", expected="at most 1 MiB", seen="at most 1 MiB")


def test_a_report_at_the_port_of_nccl_by_another_user_is_not_asked_for() -> None:
    """The kernel knows a socket by the user who made it."""
    require_stranger()
    made: list[socket.socket] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX)

    def squat() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        socket.send_fds(theirs, [b"x"], [listening.fileno()])

    with ours, theirs:
        as_stranger(squat)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        made.append(socket.socket(fileno=descriptors[0]))
    with made[0] as listening:
        assert diagnostics.nccl_ras(f"127.0.0.1:{listening.getsockname()[1]}") == ""
        listening.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            listening.accept()
    record("another user at NCCL's port", expected="not asked", seen="not asked")
