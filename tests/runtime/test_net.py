"""Sockets of the operating system behind the runtime's interface."""

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.runtime.disk import FileRegion, SystemDisk
from broker.runtime.net import WOULD_BLOCK, Exhausted, Listener, Socket, SystemNetwork, SystemSocket, address_in_use
from tests.waiting import wait_for


def listen(host: str = "127.0.0.1", port: int = 0, send_buffer: int = -1, receive_buffer: int = -1) -> Listener:
    return SystemNetwork().listen(host, port, 16, send_buffer, receive_buffer)


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = listen()
    yield made
    made.close()


@pytest.fixture
def pair(listener: Listener) -> Iterator[tuple[Socket, socket.socket]]:
    with socket.create_connection(listener.address) as client:
        ours = accept(listener)[0]
        yield ours, client
        ours.close()


def accept(listener: Listener) -> tuple[Socket, tuple[str, int], tuple[str, int]]:
    accepted = None
    while accepted is None:
        accepted = listener.accept()
    return accepted


def receive(ours: Socket, size: int) -> bytes:
    buffer, got = bytearray(size), 0
    while got < size:
        n = ours.recv_into(memoryview(buffer)[got:])
        assert n != 0
        got += max(n, 0)
    return bytes(buffer)


def test_accepting_says_who_came_and_to_which_address(listener: Listener) -> None:
    assert listener.accept() is None
    with socket.create_connection(listener.address) as client:
        ours, peer, local = accept(listener)
        assert peer == client.getsockname()
        assert local == listener.address
        assert not os.get_blocking(ours.fileno())
        ours.close()
    assert listener.accept() is None


def test_small_answers_are_not_delayed_and_peers_probed(pair: tuple[Socket, socket.socket]) -> None:
    with socket.socket(fileno=os.dup(pair[0].fileno())) as view:
        assert view.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert view.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_buffer_sizes_are_those_asked_for() -> None:
    listener = listen(send_buffer=50_000, receive_buffer=60_000)
    with socket.create_connection(listener.address):
        ours = accept(listener)[0]
        with socket.socket(fileno=os.dup(ours.fileno())) as view:
            assert view.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000  # the kernel doubles
            assert view.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
        ours.close()
    listener.close()


def test_receiving_says_nothing_yet_bytes_and_closed(pair: tuple[Socket, socket.socket]) -> None:
    ours, client = pair
    buffer = bytearray(10)
    assert ours.recv_into(memoryview(buffer)) == WOULD_BLOCK
    assert not ours.at_eof()
    client.sendall(b"abc")
    assert receive(ours, 3) == b"abc"
    client.sendall(b"d")
    client.shutdown(socket.SHUT_WR)
    wait_for(lambda: not ours.at_eof())  # a byte is still there to be read
    assert receive(ours, 1) == b"d"
    wait_for(ours.at_eof)
    assert ours.recv_into(memoryview(buffer)) == 0


def test_reset_is_an_error_and_counts_as_gone(listener: Listener) -> None:
    client = socket.create_connection(listener.address)
    ours = accept(listener)[0]
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_for(ours.broken)
    ours.close()
    client = socket.create_connection(listener.address)
    ours = accept(listener)[0]
    ours.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    client.close()


def test_buffers_are_sent_until_the_socket_is_full(pair: tuple[Socket, socket.socket]) -> None:
    ours, client = pair
    buffers = [bytes([n % 256]) * n for n in range(200)]
    sent = ours.send(buffers, more=False)
    assert 0 < sent <= sum(map(len, buffers))
    assert sent >= sum(map(len, buffers[:64]))
    received = b""
    while len(received) < sent:
        received += client.recv(1 << 16)
    assert received == b"".join(buffers)[:sent]
    big, total = b"x" * (1 << 20), 0
    while (sent := ours.send([big], more=False)) != WOULD_BLOCK:
        total += sent
        assert total < 1 << 28
    while total:
        total -= len(client.recv(1 << 20))


def test_a_header_and_a_file_leave_together(pair: tuple[Socket, socket.socket], tmp_path: Path) -> None:
    ours, client = pair
    file = SystemDisk().open(str(tmp_path / "log"), create=True)
    file.pwrite([b"0123456789"], 0)
    assert ours.send([b"head:"], more=True) == 5
    assert ours.send_file(FileRegion(file, 2, 5)) == 5
    received = b""
    while len(received) < 10:
        received += client.recv(100)
    assert received == b"head:23456"
    assert ours.send_file(FileRegion(file, 8, 5)) == 2
    assert ours.send_file(FileRegion(file, 10, 5)) == 0  # the file ends before


def test_file_does_not_wait_for_a_full_socket(pair: tuple[Socket, socket.socket], tmp_path: Path) -> None:
    ours, client = pair
    file = SystemDisk().open(str(tmp_path / "log"), create=True)
    file.truncate(1 << 26)
    total = 0
    while (sent := ours.send_file(FileRegion(file, total, (1 << 26) - total))) != WOULD_BLOCK:
        total += sent
        assert total < 1 << 26
    client.close()


def test_a_taken_port_is_told_from_other_reasons(listener: Listener) -> None:
    with pytest.raises(OSError) as taken:
        listen(port=listener.address[1])
    assert address_in_use(taken.value)
    with pytest.raises(OSError) as foreign:
        listen("192.0.2.1")
    assert not address_in_use(foreign.value)
    with pytest.raises(OSError) as unknown:
        listen("no.such.host.invalid")
    assert not address_in_use(unknown.value)


def test_accept_without_descriptors_raises_and_connection_waits(listener: Listener) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.address):
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        # Fill the gaps below the limit, so that the next descriptor would be above it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        fill = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    fill.append(os.dup(0))
            with pytest.raises(Exhausted):
                listener.accept()
        finally:
            for descriptor in fill:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        accept(listener)[0].close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_addresses_are_host_and_port_too() -> None:
    try:
        listener = listen("::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with socket.create_connection(listener.address) as client:
        ours, peer, local = accept(listener)
        assert peer == client.getsockname()[:2]
        assert local == listener.address
        assert isinstance(ours, SystemSocket)
        ours.close()
    listener.close()
