from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuse.caches import configs, peers, wait_for
from windlass.node.cache.config import ConfigFileError, dump_config, parse_config, read_key
from windlass.node.cache.keys import directory_key
from windlass.node.cache.listing import Listing
from windlass.node.wire import wire
from windlass.node.wire.dial import Target, dial
from windlass.node.wire.link import Collect, FrameReader, open_link
from windlass.node.wire.proof import NO_NODE, Channel, ProtocolError


@given(st.binary(min_size=wire.HEAD_BYTES, max_size=wire.HEAD_BYTES))
def test_any_head_is_within_the_limits_or_refused(data: bytes) -> None:
    for parse, most in ((wire.parse_request_head, 4 << 20), (wire.parse_reply_head, wire.MAX_OBJECT_BYTES)):
        with contextlib.suppress(ProtocolError):
            assert parse(data).length <= most


@given(st.binary(max_size=300))
def test_any_body_is_an_object_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        key, digest, rest = wire.parse_object(memoryview(data))
        assert len(key) + len(digest) + len(rest) + 2 == len(data)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=200)), max_size=64))
def test_a_batch_gives_back_its_objects_and_the_tag_covers_all_but_their_data(
    objects: list[tuple[bytes, bytes]],
) -> None:
    described = [(key, bytes([len(key)]) * 32, len(data)) for key, data in objects]
    prefix = wire.batch_prefix(described)
    body = prefix + b"".join(data for _, data in objects)
    found = wire.parse_batch(memoryview(body))
    assert [(key, bytes(data)) for key, _, data in found] == objects
    assert [digest for _, digest, _ in found] == [digest for _, digest, _ in described]
    assert wire.covered_by_tag(wire.BATCH, body) == prefix
    for wrong in (body[:-1], body + b"x"):
        with pytest.raises(ProtocolError):
            wire.parse_batch(memoryview(wrong))


@given(st.binary(max_size=300))
def test_any_body_is_a_batch_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        found = wire.parse_batch(memoryview(data))
        assert sum(len(rest) for _, _, rest in found) <= len(data)
    with contextlib.suppress(ProtocolError):
        assert len(wire.covered_by_tag(wire.BATCH, data)) <= len(data)


def test_a_batch_of_too_many_objects_is_refused() -> None:
    prefix = wire.batch_prefix((b"k", bytes(32), 0) for _ in range(wire.BATCH_OBJECTS + 1))
    with pytest.raises(ProtocolError):
        wire.parse_batch(memoryview(prefix))


@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(0, 2**32))
def test_frames_arrive_whole_however_the_stream_is_cut(bodies: list[bytes], seed: int) -> None:
    stream = b"".join(wire.head(wire.ANSWER, i, len(b)) + b for i, b in enumerate(bodies))
    chance = random.Random(seed)
    left, right = socket.socketpair()
    with left, right:

        def send() -> None:
            rest = stream
            while rest:
                cut = chance.randrange(1, 2000)
                left.sendall(rest[:cut])
                rest = rest[cut:]

        thread = threading.Thread(target=send)
        thread.start()
        reader = FrameReader(Channel(right, 0), wire.parse_reply_head)
        for number, body in enumerate(bodies):
            found = reader.next()
            assert found is not None
            assert found[0].request == number
            assert bytes(found[1]) == body
        thread.join()


def test_a_frame_larger_than_the_buffer_arrives_whole() -> None:
    body = os.urandom(5 << 20)
    left, right = socket.socketpair()
    with left, right:
        thread = threading.Thread(
            target=lambda: left.sendall(
                wire.head(wire.ANSWER, 1, 3) + b"abc" + wire.head(wire.ANSWER, 2, len(body)) + body
            )
        )
        thread.start()
        reader = FrameReader(Channel(right, 0), wire.parse_reply_head)
        first, second = reader.next(), reader.next()
        thread.join()
        assert first is not None and second is not None
        assert bytes(second[1]) == body


def test_a_peer_survives_garbage_and_still_answers(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "file").write_bytes(b"x")
    chance = random.Random(20261115)
    with peers(tmp_path / "c", 1, tmp_path / "shared") as (peer,):
        where = (peer.config.hosts[0], peer.port)
        target = Target(where[0], (where[1],), 0)
        identity = peer.config.identity(Path(peer.config.key_file).read_bytes())._replace(node=NO_NODE)
        for _ in range(60):  # strangers
            with socket.create_connection(where, 30) as stranger:
                stranger.sendall(chance.randbytes(chance.choice((0, 1, 72, 500))))
        for _ in range(60):  # holders of the key that have gone mad
            mad, _ = dial(target, identity, 30.0)
            with mad.socket:
                body = chance.randbytes(chance.choice((0, 5, 100, 8000)))
                head = wire.HEAD.pack(chance.choice((len(body), 0, 5, 100, 2**31)), chance.randrange(256), 1)
                mad.socket.sendall(mad.seal(head, body) + body)
        link, _ = open_link(target, identity, 30.0)
        reply = Collect()
        assert link.ask(wire.GET, directory_key(os.fsencode(tmp_path / "shared")), reply)
        _, body = reply.wait(5.0)
        assert Listing(bytes(wire.parse_object(memoryview(body))[2])).names == [b"file"]
        link.close()
        wait_for(lambda: peer.status()["strangers_refused"] >= 60, what="strangers counted")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o644)
    with pytest.raises(ConfigFileError, match="chmod 600"):
        read_key(str(path))
    path.chmod(0o600)
    assert read_key(str(path)) == b"k" * 32
    path.write_bytes(b"short")
    with pytest.raises(ConfigFileError, match="16 bytes"):
        read_key(str(path))


def test_a_configuration_survives_its_file_and_holds_no_key(tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff root"))
    root.mkdir()
    (config,) = configs(tmp_path / "c", 1, root)
    text = dump_config(config)
    assert parse_config(text) == config
    assert Path(config.key_file).read_bytes().hex() not in text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ('"fanout": 4', "unknown"),
        ('"chunk_bytes": 1000', "4096"),
        ('"placement": "nowhere"', "placement"),
        ('"version": 99', "version"),
        ('"node": 9', "node"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_reason(tmp_path: Path, change: str, word: str) -> None:
    import json

    (tmp_path / "r").mkdir()
    (config,) = configs(tmp_path / "c", 1, tmp_path / "r")
    values = json.loads(dump_config(config))
    values.update(json.loads("{" + change + "}"))
    if word == "unknown":
        values["fanuot"] = 3
    with pytest.raises(ConfigFileError, match=word):
        parse_config(json.dumps(values))
