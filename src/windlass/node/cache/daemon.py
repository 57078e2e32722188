"""The lifecycle of a node's two processes: ready files, signals and cleanup."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from windlass.node.cache.backend import Backend
from windlass.node.cache.config import ConfigFileError, NodeConfig, read_config, read_key
from windlass.node.cache.fuse import Server
from windlass.node.cache.mounting import mount, unmount
from windlass.node.cache.peer import Peer
from windlass.node.cache.view import View
from windlass.node.cache.warm import Warmer
from windlass.node.sys.atomic import replace_file, take_lock
from windlass.node.sys.identity import start_of
from windlass.node.sys.reading import read_object

log = logging.getLogger("windlass.cache")
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    """Run one process of a node's cache until it ends. Arguments: `peer|mount CONFIG`."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s " + arguments[0] + " %(levelname)s %(message)s"
    )
    threading.stack_size(512 << 10)
    # Tens of thousands of small values live as long as the process. The collector would spend most of its time
    # searching them for cycles again and again.
    gc.set_threshold(100_000, 50, 100)
    # A thread that returns from a read or a socket must not wait five milliseconds for a thread that computes.
    sys.setswitchinterval(0.001)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The signals are blocked here, before any thread starts, and one thread waits for them. Otherwise the kernel could
    # deliver a signal to another thread and the main thread would stay asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # write the stack of every thread to the log
    try:
        config = read_config(arguments[1])
        _hold_lock(config, arguments[0])
        key = read_key(config.key_file)
        run_peer(config, key) if arguments[0] == "peer" else run_mount(config, key)
    except (ConfigFileError, OSError) as error:
        log.error("%s", error)
        say(arguments[0], read_state_dir(arguments[1]), {"failed": str(error)})
        return 1
    # Threads may still be blocked in the shared file system or in a connect. Do not wait for them.
    logging.shutdown()
    os._exit(0)


def run_peer(config: NodeConfig, key: bytes) -> None:
    peer = Peer(config, key)
    _on_signals(peer.stopped.set)
    _follow_owner(config, peer.stopped.set)
    peer.start()
    say("peer", config.state_dir, {"pid": os.getpid(), "port": peer.port})
    while not peer.stopped.wait(3600.0):
        pass
    peer.close()


def run_mount(config: NodeConfig, key: bytes) -> None:
    """Mount, serve until unmounted or asked to stop, then unmount."""
    backend = Backend(config, key)
    backend.start(time.monotonic() + config.start_grace_s)
    # A library is read in short runs. Anything fetched beyond the end of a run is wasted.
    view = View(backend, config.chunk_bytes, 8 if config.sparse else 64)
    os.makedirs(config.mount, mode=0o700, exist_ok=True)
    device = mount(config.mount, "windlass:" + config.job, allow_other=config.allow_other)
    # Pages of libraries are read at scattered offsets. A large read-ahead around each page fetches unused data.
    readahead = 64 << 10 if config.sparse else 1 << 20
    server = Server(view, backend, device, config.fuse_flags_mask, readahead)
    warmer = Warmer(config, view, backend, server)
    backend.extra_status = lambda: {
        "warm": warmer.status(),
        "requests": {str(code): count for code, count in server.requests.items()},
        "nodes": len(view),
        "waiting": len(server._late),
    }

    def stop() -> None:
        # While a file is open, the kernel keeps the connection after the unmount. Only the exit of this process ends
        # it.
        unmount(config.mount)
        backend.close()
        os._exit(0)

    _on_signals(stop)
    _follow_owner(config, stop)
    threading.Thread(target=_when_mounted, args=(server, config, warmer), daemon=True).start()
    try:
        server.serve(config.mount_threads)
    finally:
        unmount(config.mount)
        backend.close()


def _when_mounted(server: Server, config: NodeConfig, warmer: Warmer) -> None:
    if server.ready.wait(config.start_grace_s):
        warmer.start()
        server.backend.send_news()
        say("mount", config.state_dir, {"pid": os.getpid(), "flags": server.flags})


def say(role: str, state_dir: str, news: dict[str, object]) -> None:
    """Write `<role>.json` to the state directory. The process that started this one waits for the file."""
    if not state_dir:
        return
    path = os.path.join(state_dir, role + ".json")
    with contextlib.suppress(OSError):
        replace_file(path, json.dumps(news).encode())


def read_state_dir(config_path: str) -> str:
    try:
        return str(read_object(config_path)["state_dir"])
    except (OSError, ValueError, KeyError):
        return ""


def _on_signals(stop: Callable[[], None]) -> None:
    def wait() -> None:
        signal.sigwait(_ENDING)
        stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _follow_owner(config: NodeConfig, stop: Callable[[], None]) -> None:
    """Stop when the last owner process of the cache has ended, for any reason. A zombie counts as ended."""
    if not config.owner_pids:
        return
    born = {pid: start_of(pid) for pid in config.owner_pids}

    def watch() -> None:
        while any(start and start_of(pid) == start for pid, start in born.items()):
            time.sleep(1.0)
        stop()

    threading.Thread(target=watch, name="owner", daemon=True).start()


def _hold_lock(config: NodeConfig, role: str) -> None:
    """Take the lock that proves that this process is alive, also across containers.

    The kernel releases the lock when this process ends, for any reason.
    """
    try:
        # Wait a moment, because a process that tests whether the lock is held also holds it.
        lock = take_lock(os.path.join(config.state_dir, role + ".lock"), 1.0)
        os.pwrite(lock, b"%d" % os.getpid(), 0)
    except BlockingIOError:
        raise ConfigFileError("a %s process of this cache runs already" % role) from None
