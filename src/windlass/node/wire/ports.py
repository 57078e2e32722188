"""The ports of a node: sixteen candidates, derived from the job's key.

A node listens on the first free one, and callers dial all of them. Users without the key cannot predict the ports, so
they cannot occupy all of them, or a range of them, in advance.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Iterator

from windlass.node.wire.proof import Identity

CANDIDATES = 16
_FIRST, _LAST = 10240, 32767  # below the ports that kernels use for outgoing connections
_LISTENING = "0A"
_BACKLOG = 4096


def port_candidates(identity: Identity, node: int) -> tuple[int, ...]:
    """Return the ports that `node` may listen on."""
    ports: dict[int, None] = {}
    text = "windlass ports\0%s\0%s\0%d\0" % (identity.service, identity.run, node)
    for count in range(256):
        seed = hmac.new(identity.key, text.encode("utf-8", "surrogateescape") + b"%d" % count, hashlib.sha256).digest()
        for index in range(0, len(seed), 4):
            ports[_FIRST + int.from_bytes(seed[index : index + 4], "little") % (_LAST - _FIRST + 1)] = None
            if len(ports) == CANDIDATES:
                return tuple(ports)
    raise AssertionError("no %d ports in 2,048 draws" % CANDIDATES)


def listen_tcp(host: str, ports: tuple[int, ...]) -> socket.socket:
    """Return a listening socket on the first free port.

    Raises `OSError` if no port is free. The message names the users who listen on them.
    """
    last: OSError = OSError("no port to try")
    for port in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            # Without SO_REUSEADDR the kernel would refuse a port for a minute after a job released it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            # With a short queue, a flood would make the kernel drop the first packets of legitimate callers. They retry
            # only after a second.
            sock.listen(_BACKLOG)
            return sock
        except OSError as error:
            sock.close()
            last = error
    text = "cannot listen on %s: %s; ports %s" % (host, last.strerror or last, ", ".join(str(port) for port in ports))
    owners = listening_uids(ports)
    if owners:
        text += " are held by uid %s; ask them, or the site, why" % ", ".join(str(uid) for uid in owners)
    raise OSError(last.errno or 0, text)


def listening_uids(ports: tuple[int, ...], proc: str = "/proc") -> tuple[int, ...]:
    """Return the users who listen on any of the ports on this node, from the kernel's tables."""
    wanted, found = set(ports), set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(os.path.join(proc, "net", name)) as file:
            next(file, None)
            for line in file:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) in wanted:
                    found.add(int(fields[7]))
    return tuple(sorted(found))


def listen_unix(path: str) -> socket.socket:
    """Return a listening socket that only this user can reach. The path may have any length."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX)
    with short_path(path) as short:
        sock.bind(short)
    os.chmod(path, 0o600)
    sock.listen(64)
    return sock


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a name for a socket's path that fits into the 107 bytes the kernel allows."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (folder, os.path.basename(path))
    finally:
        os.close(folder)
