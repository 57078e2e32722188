"""The proof of the job's key and the tags on frames, as bytes; and dialling and accepting on real sockets."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuse.caches import wait_for
from windlass.node.wire import accept
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.dial import Target, dial, dial_unix
from windlass.node.wire.ports import CANDIDATES, listen_tcp, listen_unix, listening_uids, port_candidates
from windlass.node.wire.proof import (
    _HELLO,
    _MAGIC,
    TAG_BYTES,
    VERSION,
    CalledProof,
    CallerProof,
    Channel,
    Identity,
    ProofError,
    ProtocolError,
    SessionKeys,
    endpoint_bytes,
)

CALLED = Identity(b"k" * 32, "run", "cache", 3)
CALLER = CALLED._replace(node=7)
PLACE = endpoint_bytes(("10.0.0.1", 4000))


def prove(called: Identity, caller: Identity, *, node: int = 3, seen: bytes = PLACE, dialled: bytes = PLACE) -> int:
    """The whole proof between two sides; the caller's node as the called side got it."""
    there, here = CalledProof(called, seen), CallerProof(caller, node, dialled)
    answer, number, keys = there.answer(here.claim(there.hello))
    assert here.check(answer) == keys
    return number


def test_two_holders_of_the_key_prove_it_to_each_other() -> None:
    assert prove(CALLED, CALLER) == 7


@pytest.mark.parametrize(
    "caller",
    [CALLER._replace(key=b"x" * 32), CALLER._replace(run="other"), CALLER._replace(service="stage")],
    ids=["key", "run", "service"],
)
def test_a_caller_of_another_key_run_or_service_is_refused(caller: Identity) -> None:
    with pytest.raises(ProofError):
        prove(CALLED, caller)


def test_a_caller_that_looks_for_another_node_is_sent_away() -> None:
    with pytest.raises(ProofError, match="node 5"):
        prove(CALLED, CALLER, node=5)


def test_a_proof_for_another_endpoint_is_refused() -> None:
    for other in (("10.0.0.1", 4001), ("10.0.0.2", 4000), ("::1", 4000)):
        with pytest.raises(ProofError):
            prove(CALLED, CALLER, dialled=endpoint_bytes(other))


def test_a_claim_works_once_and_an_answer_for_one_claim_only() -> None:
    first, second = CalledProof(CALLED, PLACE), CalledProof(CALLED, PLACE)
    here = CallerProof(CALLER, 3, PLACE)
    claim = here.claim(first.hello)
    with pytest.raises(ProofError):
        second.answer(claim)
    answer, _, _ = first.answer(claim)
    other = CallerProof(CALLER, 3, PLACE)
    other.claim(first.hello)
    with pytest.raises(ProofError):
        other.check(answer)


def test_a_claim_sent_back_to_its_maker_proves_nothing() -> None:
    there, here = CalledProof(CALLED, PLACE), CallerProof(CALLER, 3, PLACE)
    with pytest.raises(ProofError):
        here.check(here.claim(there.hello)[-32:])


def test_a_newer_protocol_is_refused_with_a_clear_word() -> None:
    with pytest.raises(ProofError, match="version"):
        CallerProof(CALLER, 3, PLACE).claim(_HELLO.pack(_MAGIC, VERSION + 1, 0, bytes(32)))


def test_an_endpoint_has_one_form_however_the_kernel_writes_it() -> None:
    assert endpoint_bytes(("::ffff:10.0.0.1", 4000, 0, 0)) == PLACE
    assert endpoint_bytes(("fe80::1%eth0", 4000, 0, 2)) == endpoint_bytes(("fe80::1", 4000, 0, 0))
    assert endpoint_bytes("/tmp/a.sock") == endpoint_bytes("") == b"unix"


# Tags


def tagged_pair() -> tuple[Channel, Channel]:
    keys = SessionKeys(b"a" * 32, b"b" * 32)
    left, right = socket.socketpair()
    with left, right:
        return Channel(left, 0, keys), Channel(right, 0, keys, called=True)


def split(sealed: bytes) -> tuple[bytes, bytes]:
    return sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]


def test_frames_are_accepted_in_order_and_in_both_directions() -> None:
    left, right = tagged_pair()
    for head, body in ((b"head one", b"body"), (b"head two", b""), (b"head one", b"body")):
        right.check(*split(left.seal(head, body)), body)
        left.check(*split(right.seal(head, body)), body)


@given(st.integers(0, 3), st.integers(0, 7), st.integers(1, 255))
def test_a_frame_that_was_changed_anywhere_is_refused(part: int, at: int, change: int) -> None:
    left, right = tagged_pair()
    body = b"body of it"
    head, tag = split(left.seal(b"the head", body))
    parts = [bytearray(head), bytearray(tag), bytearray(body), bytearray(8)]
    parts[part][at] ^= change
    refused = pytest.raises(ProtocolError) if part < 3 else contextlib.nullcontext()
    with refused:
        right.check(bytes(parts[0]), bytes(parts[1]), bytes(parts[2]))


def test_a_frame_that_is_repeated_dropped_or_sent_back_is_refused() -> None:
    left, right = tagged_pair()
    first, second = split(left.seal(b"first")), split(left.seal(b"second"))
    with pytest.raises(ProtocolError):
        left.check(*first)  # sent back to where it came from
    right.check(*first)
    with pytest.raises(ProtocolError):
        right.check(*first)
    left, right = tagged_pair()
    with pytest.raises(ProtocolError):
        right.check(*second)  # the one before it was dropped


# Ports, dialling and accepting


@pytest.fixture
def host() -> str:
    return f"127.{random.randrange(64, 250)}.{random.randrange(250)}.1"


@contextlib.contextmanager
def accepting(
    host: str, serve: Callable[[Channel], None], ports: tuple[int, ...] = ()
) -> Iterator[tuple[int, Acceptor]]:
    sock = listen_tcp(host, ports or port_candidates(CALLED, 3))
    acceptor = Acceptor(sock, CALLED, serve, max_proven=200)
    try:
        yield sock.getsockname()[1], acceptor
    finally:
        acceptor.close()


def echo(channel: Channel) -> None:
    with contextlib.suppress(OSError):
        channel.socket.settimeout(30)
        channel.socket.sendall(b"%d" % channel.node)
        channel.socket.recv(1)


def test_ports_differ_by_node_run_service_and_key_and_are_scattered() -> None:
    sets = {
        port_candidates(who, node)
        for who in (CALLED, CALLED._replace(run="b"), CALLED._replace(service="stage"), CALLED._replace(key=b"x" * 32))
        for node in (0, 1)
    }
    assert len(sets) == 8
    for ports in sets:
        assert len(set(ports)) == CANDIDATES
        assert all(10240 <= port < 32768 for port in ports)
        assert max(ports) - min(ports) > 1000


def test_a_caller_finds_the_port_and_both_know_each_other(host: str) -> None:
    with accepting(host, echo) as (port, _):
        channel, answered = dial(Target(host, port_candidates(CALLER, 3), 3), CALLER, 30.0)
        with channel.socket:
            assert answered == port
            channel.socket.settimeout(30)
            assert channel.socket.recv(10) == b"7"
            assert channel.tag_bytes == TAG_BYTES


def test_who_listens_on_all_addresses_is_proven_by_the_one_that_was_dialled(host: str) -> None:
    with accepting("0.0.0.0", echo, (0,)) as (port, _):
        dial(Target(host, (port,), 3), CALLER, 30.0)[0].socket.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_a_mapped_address_is_the_same_endpoint(host: str) -> None:
    sock = socket.socket(socket.AF_INET6)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
        sock.listen(8)
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    acceptor = Acceptor(sock, CALLED, echo, max_proven=8)
    dial(Target(host, (sock.getsockname()[1],), 3), CALLER, 30.0)[0].socket.close()
    acceptor.close()


def test_over_a_unix_socket_frames_carry_no_tags(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "l" * 120, "peer.sock")  # noqa: PTH118 - longer than the kernel takes
    os.mkdir(os.path.dirname(path))  # noqa: PTH102, PTH120
    acceptor = Acceptor(listen_unix(path), CALLED, echo, max_proven=8)
    channel = dial_unix(path, CALLER, 3, 30.0)
    with channel.socket:
        assert channel.tag_bytes == 0
        assert channel.seal(b"head", b"body") == b"head"
    acceptor.close()


def test_a_closed_port_is_an_error_at_once_and_a_wrong_key_says_so(host: str) -> None:
    with pytest.raises(OSError):
        dial(Target(host, port_candidates(CALLER, 3), 3), CALLER, 30.0)
    with accepting(host, echo) as (port, acceptor):
        with pytest.raises(ProtocolError):
            dial(Target(host, (port,), 3), CALLER._replace(key=b"x" * 32), 0.5)
        wait_for(lambda: acceptor.refused > 0, what="refusal counted")


def test_the_oldest_stranger_makes_room(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "MAX_UNPROVEN", 8)
    with accepting(host, echo) as (port, acceptor):
        silent = [socket.create_connection((host, port), 10) for _ in range(40)]
        wait_for(lambda: acceptor.refused >= 32, what="eviction")
        dial(Target(host, (port,), 3), CALLER, 30.0)[0].socket.close()
        silent[0].settimeout(30)
        while silent[0].recv(100):  # the hello, then the end
            pass
        for stranger in silent:
            stranger.close()


def test_a_stranger_that_stays_silent_is_thrown_out(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "PROOF_S", 0.2)
    with accepting(host, echo) as (port, _), socket.create_connection((host, port), 10) as stranger:
        stranger.settimeout(30)
        while stranger.recv(100):
            pass


def test_a_moment_without_threads_costs_only_those_who_call_in_it(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failing = threading.Thread.start, [True]

    def start(self: threading.Thread) -> None:
        if failing[0] and self.name == "inbound":
            raise RuntimeError("can't start new thread")
        real(self)

    with accepting(host, echo) as (port, acceptor):
        monkeypatch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            channel, _ = dial(Target(host, (port,), 3), CALLER, 30.0)
            with channel.socket:
                channel.socket.settimeout(30)
                assert channel.socket.recv(10) == b"", "hung up on"
        failing[0] = False
        channel, _ = dial(Target(host, (port,), 3), CALLER, 30.0)
        with channel.socket:
            channel.socket.settimeout(30)
            assert channel.socket.recv(10) == b"7"
        wait_for(lambda: acceptor.is_accepting, what="accepting again")


def test_a_moment_without_descriptors_does_not_end_the_loop(host: str) -> None:
    class Failing(socket.socket):
        left = 5

        def accept(self) -> tuple[socket.socket, object]:
            if self.left:
                self.left -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    plain = listen_tcp(host, port_candidates(CALLED, 3))
    sock = Failing(fileno=plain.detach())
    acceptor = Acceptor(sock, CALLED, echo, max_proven=8)
    dial(Target(host, (sock.getsockname()[1],), 3), CALLER, 30.0)[0].socket.close()
    assert sock.left == 0
    acceptor.close()


def test_when_all_ports_are_taken_the_error_names_the_user(host: str) -> None:
    ports = port_candidates(CALLED, 3)[:3]
    taken = [listen_tcp(host, (port,)) for port in ports]
    with pytest.raises(OSError, match=f"held by uid {os.getuid()}"):
        listen_tcp(host, ports)
    assert listening_uids(ports) == (os.getuid(),)
    for sock in taken:
        sock.close()
