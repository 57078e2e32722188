"""Unpack archives on the node: `tar` unpacks an archive from a decompressor while its blocks arrive.

The effects of an archive are limited. `tar` itself writes nothing through `..`, an absolute path or a link. This module
keeps the files owned by us and ignores the user's defaults for `tar`. It refuses every entry that is not a file,
directory or link before the copy gets its final name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from windlass.node.agent.host import AgentError
from windlass.node.sys.identity import own_environ

_END_S = 120.0
_WORDS_BYTES = 300
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_RECORD_BLOCKS = "2048"  # blocks of 512 bytes per read. tar's default of 10 kB costs a third of its time on a pipe
# The files belong to this user: no setuid and setgid from the archive, and no write permission for others.
_AS_OURS = ("--no-same-owner", "--no-same-permissions")
_OTHERS_WRITE = 0o022
_COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".tzst": "zstd", ".xz": "xz", ".txz": "xz"}
_COMPRESSED.update({".bz2": "bzip2", ".tbz2": "bzip2"})
_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
# The programs for each compression, best first. Programs that use several cores come first.
_PROGRAMS = {
    "gzip": (("pigz", "-dc"), ("gzip", "-dc")),
    "zstd": (("zstd", "-dcq"),),
    "xz": (("xz", "-dc", "-T0"),),
    "bzip2": (("lbzip2", "-dc"), ("bzip2", "-dc")),
}


class Archive(NamedTuple):
    """An archive's properties by its name: the directory that it becomes, and its compression."""

    stem: str
    compressed: str | None


def archive_of(name: str) -> Archive | None:
    """Return the archive that the suffix of a name indicates, or None if it is not an archive."""
    ending = next((end for end in _ENDINGS if name.endswith(end)), None)
    if ending is None:
        return None
    return Archive(name[: -len(ending)], _COMPRESSED.get(ending[ending.rindex(".") :]))


def unpack(blocks: Iterator[memoryview], folder: int, name: str) -> None:
    """Pass an archive to `tar` block by block. `tar` unpacks it into an open directory.

    Raises `AgentError` with the programs' messages if the archive cannot be read, or if it contains an entry that is
    not a file, directory or link.
    """
    archive = archive_of(name)
    assert archive is not None
    tar = ("tar", "-x", "-f", "-", "-b", _RECORD_BLOCKS, "-C", "/proc/self/fd/%d" % folder, *_AS_OURS)
    programs = [tar] if archive.compressed is None else [_decompressor(archive.compressed, name), tar]
    with contextlib.ExitStack() as stack:
        # Files and not pipes: tar may print a message for each of many members, and no thread reads a pipe meanwhile.
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in programs]
        running = _start(programs, folder, logs)
        try:
            _feed(running[0], blocks)
            for program in running:
                program.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise AgentError("%s does not end: %s" % (error.cmd[0], name)) from error
        finally:
            for program in running:
                program.kill()
                program.wait(_END_S)
        for argv, program, log in zip(programs, running, logs):
            words = _last_words(log)
            # If tar fails first, the program before it loses its reader and is not the cause.
            if program.returncode not in (0, -signal.SIGPIPE) and not words.endswith("roken pipe"):
                raise AgentError("%s cannot unpack %s: %s" % (argv[0], name, words or "no message"))
    _refuse_devices(folder, name)


def _last_words(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _WORDS_BYTES))
    return log.read().decode(errors="replace").strip()


def _decompressor(kind: str, name: str) -> Sequence[str]:
    found = next((argv for argv in _PROGRAMS[kind] if shutil.which(argv[0])), None)
    if found is None:
        raise AgentError("no %s on this node to unpack %s with" % (kind, name))
    return found


def _start(programs: Sequence[Sequence[str]], folder: int, logs: Sequence[IO[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Start the programs as a pipeline. The last one unpacks into the directory."""
    env = {**own_environ(), "LC_ALL": "C"}
    for variable in ("TAR_OPTIONS", "GZIP", "XZ_OPT", "XZ_DEFAULTS"):  # the user's defaults do not apply here
        env.pop(variable, None)
    masked = os.umask(0o077)
    os.umask(masked)
    running: list[subprocess.Popen[bytes]] = []
    for argv, log in zip(programs, logs):
        try:
            program = subprocess.Popen(
                argv,
                env=env,
                pass_fds=(folder,),
                stdin=running[-1].stdout if running else subprocess.PIPE,
                stdout=subprocess.DEVNULL if argv is programs[-1] else subprocess.PIPE,
                stderr=log,
                bufsize=0,
                umask=masked | _OTHERS_WRITE,
            )
        except OSError as error:
            for before in running:
                before.kill()
                before.wait(_END_S)
            raise AgentError("%s cannot be started on this node: %s" % (argv[0], error.strerror)) from error
        for end in (program.stdin, program.stdout):
            if end is not None:
                _widen(end)
        if running and running[-1].stdout is not None:
            running[-1].stdout.close()  # so that the program notices when its reader ends
            running[-1].stdout = None
        running.append(program)
    return running


def _widen(pipe: IO[bytes]) -> None:
    """Enlarge a pipe, for fewer context switches. Unchanged if the user already has too many large pipes."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)


def _feed(first: subprocess.Popen[bytes], blocks: Iterator[memoryview]) -> None:
    pipe, first.stdin = first.stdin, None
    assert pipe is not None
    with contextlib.closing(pipe), contextlib.suppress(BrokenPipeError):  # the program's own message has the reason
        for data in blocks:
            written = 0
            while written < len(data):
                written += pipe.write(data[written:])


def _refuse_devices(folder: int, name: str) -> None:
    """Raise `AgentError` if an entry of the directory is not a file, directory or link. Follows no link."""
    top = "/proc/self/fd/%d" % folder
    left = [top]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    path = os.fsencode(entry.path[len(top) + 1 :]).decode(errors="replace")
                    raise AgentError("%s holds %s, which is no file, folder or link: refused" % (name, path[:200]))
