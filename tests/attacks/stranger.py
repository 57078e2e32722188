"""Another user of the same machine, for attacks: a child with uid 65534. Needs root; elsewhere the skip is visible."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from requirements import require

UID = 65534


def require_stranger() -> None:
    """Go on where this process can become another user."""
    require("stranger", os.geteuid() == 0, "only root can act as a second user")


def as_stranger(act: Callable[[], object]) -> None:
    """Do this as another user, in a child; what it raises fails the test."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            os.umask(0)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the attack itself failed"


@contextmanager
def common_place(mode: int = 0o1777) -> Iterator[Path]:
    """A folder where everybody may write, as /tmp is; removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="windlass-attack-"))
    path.chmod(mode)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
