"""Who drives a run: one windlass at a time, and the next job waits for the one that submitted it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.model.jsontext import to_json
from windlass.node.sys.identity import start_of, this_process
from windlass.run.folder import RunFolder
from windlass.run.supervise import attempts
from windlass.run.supervise.attempts import OWNER_FILE, Owner, own, read_owner, refuse_running


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that lives until it is told to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def owned(tmp_path: Path, child: subprocess.Popen[bytes], job_id: str | None) -> RunFolder:
    host, _, _, boot = this_process()
    owner = Owner(host=host, pid=child.pid, ticks=start_of(child.pid), boot=boot, job_id=job_id)
    (tmp_path / OWNER_FILE).write_bytes(to_json(owner))
    return RunFolder(tmp_path)


def test_a_run_that_another_windlass_drives_is_refused_at_once(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_HANDOVER_S", 3600.0)
    for job_id, in_job in ((None, True), ("7", False), (None, False)):
        with pytest.raises(UsageError, match=f"process {other.pid}"):
            refuse_running(owned(tmp_path, other, job_id), in_job=in_job)


def test_a_job_waits_for_the_windlass_that_submitted_it(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    folder = owned(tmp_path, other, "7")
    end = threading.Timer(0.6, other.kill)
    end.start()
    own(folder, "8")
    end.join(timeout=30)
    owner = read_owner(folder)
    assert owner is not None
    assert (owner.job_id, owner.pid) == ("8", this_process()[1])


def test_the_wait_for_it_has_an_end(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_HANDOVER_S", 0.5)
    with pytest.raises(UsageError, match="is being run by process"):
        own(owned(tmp_path, other, "7"), "8")
