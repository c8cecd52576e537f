"""Blocking connections. TLS is tried against a real peer in ``tests/client/kafka/test_config_security.py``."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.runtime.client_tls import TlsSettings, tls_context
from broker.runtime.dial import Dialled, ask, dial, pause

PATIENCE_S = 30.0


class Peer:
    """The other end of one connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()

    def connect(self) -> tuple[Dialled, socket.socket]:
        ours = dial(*self.address, PATIENCE_S)
        theirs, _ = self.listener.accept()
        return ours, theirs


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.listener.close()


def soon() -> float:
    return time.monotonic() + PATIENCE_S


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=6))
def test_buffers_arrive_in_order_whatever_their_sizes(peer: Peer, sizes: list[int]) -> None:
    ours, theirs = peer.connect()
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    received = bytearray(sum(sizes))

    def receive() -> None:
        view = memoryview(received)
        while view:
            view = view[theirs.recv_into(view) :]

    thread = threading.Thread(target=receive)
    thread.start()
    ours.send([bytearray(one) for one in buffers], soon())
    thread.join(PATIENCE_S)
    assert b"".join(buffers) == received
    theirs.close()
    ours.close()


def test_more_buffers_than_one_system_call_takes(peer: Peer) -> None:
    ours, theirs = peer.connect()
    ours.send([b"%04d" % number for number in range(3000)], soon())
    assert b"".join(b"%04d" % number for number in range(3000)) == _all(theirs, 12_000)
    theirs.close()
    ours.close()


def test_a_view_is_filled_from_pieces(peer: Peer) -> None:
    ours, theirs = peer.connect()
    data = bytearray(6)
    theirs.sendall(b"abc")
    threading.Timer(0.05, theirs.sendall, [b"def"]).start()
    ours.receive(memoryview(data), soon())
    assert b"abcdef" == data
    theirs.close()
    ours.close()


def test_the_end_before_the_end_is_an_error(peer: Peer) -> None:
    ours, theirs = peer.connect()
    theirs.sendall(b"abc")
    theirs.close()
    with pytest.raises(ConnectionResetError):
        ours.receive(memoryview(bytearray(6)), soon())
    ours.close()


def test_waiting_has_an_end(peer: Peer) -> None:
    ours, theirs = peer.connect()
    with pytest.raises(TimeoutError):
        ours.receive(memoryview(bytearray(1)), time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        ours.receive(memoryview(bytearray(1)), time.monotonic() - 1)
    with pytest.raises(TimeoutError):  # nobody reads
        ours.send([bytes(50_000_000)], time.monotonic() + 0.2)
    theirs.close()
    ours.close()


def test_nobody_there_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            dial(*taken.getsockname(), PATIENCE_S)


def test_a_pause_of_less_than_nothing_is_none() -> None:
    pause(-1)


def test_an_answer_comes_without_its_length(peer: Peer) -> None:
    def answer() -> None:
        theirs, _ = peer.listener.accept()
        assert b"\0\0\0\2hi" == _all(theirs, 6)
        theirs.sendall(b"\0\0\0\3you")
        theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert b"you" == ask(*peer.address, b"\0\0\0\2hi", PATIENCE_S)
    thread.join(PATIENCE_S)


def _all(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


def test_peer_closing_during_tls_handshake_may_be_back() -> None:
    """As a broker does that is being restarted, and one without TLS: no TlsRefused, which would be final."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_at_once() -> None:
            peer, _ = listener.accept()
            peer.recv(65536)
            peer.close()

        thread = threading.Thread(target=close_at_once)
        thread.start()
        with pytest.raises(ConnectionResetError, match="as a listener without TLS does"):
            dial("127.0.0.1", listener.getsockname()[1], 30, tls_context(TlsSettings()))
        thread.join()
