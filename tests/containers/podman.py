"""A `podman-hpc` for tests: a few words of shell around the real podman, with a storage of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from requirements import missing_programs, require

LIMITS = "--ulimit nofile=1024:1024 --ulimit nproc=4096:4096"


@contextlib.contextmanager
def podman_with(image: str, rootfs: Path, folder: Path, changes: str = "") -> Iterator[str]:
    """The path of a `podman-hpc` whose storage has the image; skipped where podman cannot start a container here."""
    why = missing_programs("podman", "runc")
    require("podman", not why, why)
    short = tempfile.mkdtemp(prefix="wlpod.")  # podman takes no longer path than 50 characters here
    podman = f"podman --storage-driver vfs --root {folder}/storage --runroot {short} --runtime runc"
    script = folder / "podman-hpc"
    script.write_text(f'#!/bin/sh\nshift\nexec {podman} run {LIMITS} "$@"\n')
    script.chmod(0o755)
    made = subprocess.run(
        ["sh", "-c", f"tar -C {rootfs} -c . | {podman} import {changes} - {image}"], capture_output=True, timeout=120
    )
    probe = subprocess.run(
        [str(script), "run", "--rm", "--network=host", "--entrypoint=", "--", image, "sh", "-c", ":"],
        capture_output=True,
        timeout=60,
    )
    try:
        said = (made.stderr + probe.stderr).decode(errors="replace")
        require("podman", made.returncode == probe.returncode == 0, said)
        yield str(script)
    finally:
        subprocess.run(["sh", "-c", f"{podman} rmi --all --force"], capture_output=True, timeout=60)
        shutil.rmtree(short, ignore_errors=True)
