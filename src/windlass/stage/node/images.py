"""Squashfs images on the node: told by their first bytes, mounted with squashfuse for as long as the agent lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable

from windlass.agents.node.host import AgentError


def is_squashfs(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"hsqs"


def start_mount(image: str, where: str) -> subprocess.Popen[bytes]:
    """Mounts a squashfs image with squashfuse, which lives as long as we do."""
    program = shutil.which("squashfuse_ll") or shutil.which("squashfuse")
    if program is None:
        raise AgentError("no squashfuse on this node to mount %s with" % image)
    os.makedirs(where, mode=0o700, exist_ok=True)
    status = os.lstat(where)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise AgentError("cannot mount at %s: it belongs to uid %d, or is no folder" % (where, status.st_uid))
    server = subprocess.Popen(
        [program, "-f", image, where], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for(lambda: os.path.ismount(where) or server.poll() is not None, 10.0)
    if not os.path.ismount(where):
        server.kill()
        said = server.communicate(timeout=10)[1].decode(errors="replace").strip()
        raise AgentError("squashfuse could not mount %s: %s" % (image, said[-200:]))
    return server


def end_mount(where: str, server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(10.0)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(10.0)
    if os.path.ismount(where):
        program = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
        subprocess.run([program, *(["-u", "-z"] if "fuser" in program else ["-l"]), where], timeout=10, check=False)
    with contextlib.suppress(OSError):
        os.rmdir(where)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
