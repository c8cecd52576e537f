"""The contract of every Network, Socket and Listener: the machine's and the simulator's."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.runtime.disk import FileRegion
from broker.runtime.net import WOULD_BLOCK, Listener, Socket, address_in_use
from tests.contract.worlds import WORLDS, Client, World

ANY_PORT = 0


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()


def listen(world: World, port: int = ANY_PORT) -> Listener:
    return world.runtime.network.listen("127.0.0.1", port, 16, -1, -1)


def connected(world: World, listener: Listener) -> tuple[Socket, Client]:
    client = world.connect(listener.address[1])
    accepted: list[Socket] = []

    def accept() -> bool:
        connection = listener.accept()
        if connection is not None:
            accepted.append(connection[0])
        return bool(accepted)

    world.until(accept)
    return accepted[0], client


def receive(world: World, socket: Socket, size: int) -> bytes:
    data = bytearray()
    buffer = memoryview(bytearray(100_000))

    def take() -> bool:
        got = socket.recv_into(buffer)
        assert got != 0, "the end came too early"
        if got > 0:
            data.extend(buffer[:got])
        return len(data) >= size

    world.until(take)
    return bytes(data)


def in_world(test: Callable[[World], None]) -> Callable[[World], None]:
    def test_in_world(world: World) -> None:
        world.run(lambda: test(world))

    test_in_world.__name__ = test.__name__
    return test_in_world


@in_world
def test_assigned_port_can_be_connected_to(world: World) -> None:
    listener = listen(world)
    assert listener.address[0] == "127.0.0.1"
    assert listener.address[1] > 0
    assert listener.accept() is None
    world.connect(listener.address[1])
    connections: list[tuple[Socket, tuple[str, int], tuple[str, int]]] = []
    world.until(lambda: connections or connections.extend(filter(None, [listener.accept()])) or connections)
    socket, peer, local = connections[0]
    assert local == listener.address
    assert peer != local
    assert socket.fileno() >= 0
    socket.close()
    listener.close()


@in_world
def test_a_port_that_is_taken_says_so(world: World) -> None:
    listener = listen(world)
    with pytest.raises(OSError, match=r".") as failure:
        listen(world, listener.address[1])
    assert address_in_use(failure.value)
    listener.close()
    listen(world, listener.address[1]).close()


@in_world
def test_bytes_come_through_both_ways(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    assert socket.recv_into(memoryview(bytearray(10))) == WOULD_BLOCK
    client.send(b"a request")
    assert receive(world, socket, 9) == b"a request"
    reply = [b"an ", bytearray(b"ans"), memoryview(b"wer")]
    left = b"".join(reply)

    def send() -> bool:
        nonlocal left
        sent = socket.send([left], False)
        assert sent > 0
        left = left[sent:]
        return not left

    world.until(send)
    world.until(lambda: client.received() == b"an answer")
    socket.close()
    listener.close()


@in_world
def test_several_buffers_are_sent_in_order(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    data = b"0123456789"
    done = 0
    while done < len(data):
        done += max(
            0, socket.send([data[done : done + 1], *([data[done + 1 :]] if done + 1 < len(data) else [])], True)
        )
        world.runtime.threads.pause(0.001)
    # Bytes announced as followed by more may wait for it.
    while socket.send([b"!"], False) == WOULD_BLOCK:
        world.runtime.threads.pause(0.001)
    world.until(lambda: client.received() == data + b"!")
    socket.close()
    listener.close()


@in_world
def test_slow_reader_stops_the_sender_until_it_reads(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    sent = 0
    blocked = 0
    chunk = bytes(range(256)) * 256
    while blocked < 20 and sent < 64 << 20:
        got = socket.send([chunk[sent % 256 :]], False)
        if got == WOULD_BLOCK:
            blocked += 1
        else:
            sent += got
    assert blocked == 20, "it takes any amount"
    world.until(lambda: len(client.received()) >= sent)
    assert client.received() == (chunk * (sent // len(chunk) + 1))[:sent]
    world.until(lambda: socket.send([b"x"], False) == 1)
    socket.close()
    listener.close()


@in_world
def test_the_end_is_read_after_the_data(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    client.send(b"last words")
    client.shut_down_writing()
    assert receive(world, socket, 10) == b"last words"
    world.until(socket.at_eof)
    assert socket.recv_into(memoryview(bytearray(10))) == 0
    assert socket.send([b"still heard"], False) > 0  # half closed: this way is open
    world.until(lambda: client.received() != b"")
    socket.close()
    listener.close()


@in_world
def test_reset_after_unread_bytes_is_seen_when_asked(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    client.send(b"data")
    world.until(lambda: not socket.at_eof())
    client.reset()
    world.until(socket.broken)
    socket.close()
    listener.close()


@in_world
def test_looking_for_the_end_takes_nothing_away(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    assert not socket.at_eof()
    client.send(b"data")
    world.runtime.threads.pause(0.02)
    assert not socket.at_eof()
    client.close()
    assert not socket.at_eof()
    assert receive(world, socket, 4) == b"data"
    world.until(socket.at_eof)
    socket.close()
    listener.close()


@in_world
def test_a_reset_is_an_error_and_an_end(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    assert not socket.broken()
    client.reset()

    def tells() -> bool:
        try:
            return socket.at_eof()
        except OSError:
            return True

    world.until(tells)
    with pytest.raises(OSError, match=r".") as failure:  # noqa: PT012  # the first tells it, or the second
        socket.recv_into(memoryview(bytearray(10)))
        socket.send([b"x"], False)
    assert failure.value.errno in (errno.ECONNRESET, errno.EPIPE)
    socket.close()
    listener.close()


@in_world
def test_sending_to_a_gone_peer_eventually_fails(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    client.close()

    def fails() -> bool:
        try:
            socket.send([b"x"], False)
        except OSError:
            return True
        return False

    world.until(fails)
    socket.close()
    listener.close()


@in_world
def test_closing_is_noticed_at_the_other_end(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    while socket.send([b"bye"], False) == WOULD_BLOCK:
        pass
    socket.close()
    world.until(client.ended)
    assert b"bye".startswith(client.received())
    listener.close()


@in_world
def test_a_socket_that_is_closed_has_no_descriptor(world: World) -> None:
    listener = listen(world)
    socket, client = connected(world, listener)
    socket.close()
    socket.close()
    assert socket.fileno() == -1
    other, client = connected(world, listener)
    other.reset()
    world.until(client.ended)
    listener.close()


def test_a_region_of_a_file_is_sent(world: World, tmp_path: Path) -> None:
    def test() -> None:
        disk = world.runtime.disk
        directory = str(tmp_path)
        disk.makedirs(directory)
        file = disk.open(f"{directory}/file", create=True)
        file.pwrite([bytes(range(200))], 0)
        listener = listen(world)
        socket, client = connected(world, listener)
        region = FileRegion(file, 50, 100)

        def send() -> bool:
            nonlocal region
            sent = socket.send_file(region)
            assert sent != 0
            if sent > 0:
                region = FileRegion(file, region.offset + sent, region.size - sent)
            return region.size == 0

        world.until(send)
        world.until(lambda: client.received() == bytes(range(50, 150)))
        assert socket.send_file(FileRegion(file, 200, 10)) == 0, "behind the end of the file"
        socket.close()
        listener.close()
        file.close()

    world.run(test)
