"""Reading ahead without a trace: a program that imports one module of a package soon imports most of its neighbours.

A folder that is looked into and has byte code makes the reader fetch the byte code's folder, and that one the byte code
itself. So imports find their files on the way instead of asking for each in turn, which is what costs the time: on the
import of torch this brings 1.3 files for each that is used. Folders with much byte code are left to demand.
"""

from __future__ import annotations

import contextlib

from .fetcher import Fetcher
from .keys import DIRECTORY, HEAD_BYTES, chunk_key, directory_key
from .listing import Listing, attr_pin
from .pool import Pool

_FOLDER = b"__pycache__"
_MAX_BYTES = 1 << 20
_THREADS = 4


class ReadAhead:
    """Told of every object that this node read from the shared file system; asks for what will follow.

    A few requests are under way at a time: what somebody waits for must not queue behind what somebody may want.
    """

    def __init__(self, fetcher: Fetcher, chunk_bytes: int, give_up_s: float) -> None:
        self._fetcher = fetcher
        self._chunk_bytes = chunk_bytes
        self._give_up_s = give_up_s
        self._askers = Pool(_THREADS, "read_ahead")

    def was_read(self, key: bytes, data: bytes | memoryview) -> None:
        if key[0] == DIRECTORY:
            for wanted in follow(key[HEAD_BYTES:], Listing(bytes(data)), self._chunk_bytes):
                self._ask(wanted)

    def close(self) -> None:
        self._askers.close()

    def _ask(self, key: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the cache is stopping
            self._askers.submit(lambda: self._wait(key))

    def _wait(self, key: bytes) -> None:
        self._fetcher.wait(key, self._give_up_s)


def follow(path: bytes, listing: Listing, chunk_bytes: int) -> list[bytes]:
    """Keys that are likely to be wanted after the folder `path` was."""
    if not path.endswith(b"/" + _FOLDER):
        return [directory_key(path.rstrip(b"/") + b"/" + _FOLDER)] if listing.place(_FOLDER) is not None else []
    pins = {name: attr_pin(listing.attr_at(place)) for place, name in enumerate(listing.names) if _is_code(name)}
    # Byte code of two interpreters: nobody knows yet which one is running.
    if len({name.rsplit(b".", 2)[-2] for name in pins}) > 1 or sum(pin.size for pin in pins.values()) > _MAX_BYTES:
        return []
    chunks = ((name, pin, range((pin.size + chunk_bytes - 1) // chunk_bytes)) for name, pin in pins.items())
    return [chunk_key(path + b"/" + name, pin, index) for name, pin, indices in chunks for index in indices]


def _is_code(name: bytes) -> bool:
    return name.endswith(b".pyc") and name.count(b".") >= 2
