"""The broker's end of TLS over a socket of the test's own: any cutting of the bytes, refused writes, and hostile records."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.disk import Buffer, FileRegion, SystemDisk
from broker.runtime.net import WOULD_BLOCK
from broker.runtime.poller import READ, WRITE
from tests import certificates
from tests.network.tls_client import context, listener
from tests.tls_records import ClientKeys, logging_keys


class Wire:
    """A socket in memory: takes and gives as much as it is told to."""

    buffered = False
    held_bytes = 0

    def __init__(self) -> None:
        self.up = bytearray()  # to the broker
        self.down = bytearray()
        self.reads = 1 << 30  # most bytes of one read
        self.room = 1 << 30  # bytes that it still takes
        self.eof = False
        self.closed = False

    def fileno(self) -> int:
        return 7

    def recv_into(self, buffer: memoryview) -> int:
        assert len(buffer) > 0
        size = min(len(self.up), len(buffer), self.reads)
        if not size:
            return 0 if self.eof and not self.up else WOULD_BLOCK
        buffer[:size] = self.up[:size]
        del self.up[:size]
        return size

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        assert all(len(each) for each in buffers)
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        self.down += data
        return len(data) or WOULD_BLOCK

    def send_file(self, region: FileRegion) -> int:
        raise AssertionError("with TLS, files do not go out as they are")

    def at_eof(self) -> bool:
        return self.eof and not self.up

    def broken(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    reset = close


class Ends:
    """A broker's end and a client, with the handshake done."""

    def __init__(self, *, handshake: bool = True, client: ssl.SSLContext | None = None) -> None:
        self.wire = Wire()
        self.server = listener().wrap(self.wire)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = (client or context()).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        while handshake and not self.shake():
            pass

    def shake(self) -> bool:
        """One turn of each. True if both are done."""
        try:
            self.client.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        self.wire.up += self.outgoing.read()
        waits = self.server.handshake()
        self.incoming.write(self.wire.down)
        self.wire.down.clear()
        return done and not waits

    def says(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.client.write(view) :]
        self.wire.up += self.outgoing.read()

    def hears(self) -> bytes:
        self.incoming.write(self.wire.down)
        self.wire.down.clear()
        data = b""
        try:
            while got := self.client.read(1 << 20):
                data += got
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return data

    def received(self, size: int = 1 << 18) -> bytes:
        buffer = memoryview(bytearray(size))
        got = self.server.recv_into(buffer)
        return bytes(buffer[: max(got, 0)])


# -- receiving --------------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=5),
    reads=st.integers(1, 70_000),
    asked=st.integers(1, 50_000),
)
def test_data_arrives_however_it_is_cut(sizes: list[int], reads: int, asked: int) -> None:
    ends = Ends()
    sent = b""
    for number, size in enumerate(sizes):
        data = bytes([number]) * size
        ends.says(data)
        sent += data
    reads, asked = max(reads, len(sent) // 300), max(asked, len(sent) // 300)
    ends.wire.reads = reads
    received = b""
    while len(received) < len(sent):
        assert ends.wire.up or ends.server.buffered, "data is lost, or `buffered` does not tell of it"
        received += ends.received(asked)
    assert received == sent
    assert not ends.server.buffered
    assert ends.server.recv_into(memoryview(bytearray(10))) == WOULD_BLOCK


def test_buffered_bytes_need_no_further_read() -> None:
    ends = Ends()
    ends.says(b"x" * 1000)
    assert ends.received(300) == b"x" * 300
    assert ends.server.buffered
    ends.wire.reads = 0
    assert ends.received(300) == b"x" * 300
    assert ends.received(400) == b"x" * 400
    assert not ends.server.buffered


def test_the_whole_buffer_is_filled_in_one_call() -> None:
    ends = Ends()
    ends.says(b"x" * 200_000)
    assert len(ends.received(150_000)) == 150_000
    assert ends.server.buffered


def test_one_call_decrypts_a_bounded_number_of_records() -> None:
    ends = Ends()
    for _ in range(1000):
        ends.says(b"x")
    received = []
    while ends.wire.up or ends.server.buffered:
        received.append(len(ends.received()))
        assert 0 < received[-1] <= 128
    assert sum(received) == 1000
    assert ends.server.recv_into(memoryview(bytearray(10))) == WOULD_BLOCK


def test_end_of_file_with_and_without_goodbye() -> None:
    for polite in (True, False):
        ends = Ends()
        ends.says(b"last")
        if polite:
            with pytest.raises(ssl.SSLWantReadError):
                ends.client.unwrap()
            ends.wire.up += ends.outgoing.read()
        else:
            ends.wire.eof = True
        assert not ends.server.at_eof()
        assert ends.server.buffered
        assert ends.received() == b"last"
        assert ends.received() == b""
        assert ends.server.at_eof()
        assert ends.server.recv_into(memoryview(bytearray(1))) == 0


def test_at_eof_consumes_nothing() -> None:
    ends = Ends()
    assert not ends.server.at_eof()
    ends.says(b"abc")
    for _ in range(3):
        assert not ends.server.at_eof()
    assert ends.received(1) == b"a"
    assert ends.received() == b"bc"
    assert not ends.server.at_eof()
    ends.wire.eof = True
    assert ends.server.at_eof()


# -- sending ----------------------------------------------------------------------------------------------------------


def send_all(ends: Ends, parts: list[Buffer | FileRegion], room: int) -> bytes:
    """As a connection does: the same bytes again after WOULD_BLOCK, and the wire takes ``room`` bytes at a time."""
    heard = b""
    ends.wire.room = room
    while parts:
        head = parts[0]
        if isinstance(head, FileRegion):
            sent = ends.server.send_file(head)
        else:
            buffers: list[Buffer] = []
            for part in parts:
                if isinstance(part, FileRegion):
                    break
                buffers.append(part)
            sent = ends.server.send(buffers, more=len(buffers) < len(parts))
        assert sent != 0
        if sent == WOULD_BLOCK:
            heard += ends.hears()
            ends.wire.room = room
            continue
        while sent:
            head = parts[0]
            size = len(head)
            if size <= sent:
                parts.pop(0)
                sent -= size
            elif isinstance(head, FileRegion):
                parts[0] = FileRegion(head.file, head.offset + sent, head.size - sent)
                sent = 0
            else:
                parts[0] = memoryview(head)[sent:]
                sent = 0
    assert ends.server.held_bytes == 0
    return heard + ends.hears()


@given(
    sizes=st.lists(st.integers(1, 100_000), min_size=1, max_size=8),
    files=st.lists(st.booleans(), min_size=8, max_size=8),
    room=st.integers(1000, 200_000),
)
def test_data_leaves_however_little_is_taken(
    sizes: list[int], files: list[bool], room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ends = Ends()
    path = tmp_path_factory.getbasetemp() / "file"
    content = bytes(range(256)) * 400
    path.write_bytes(content)
    file = SystemDisk().open(str(path), read_only=True)
    parts: list[Buffer | FileRegion] = []
    expected = b""
    for number, (size, in_file) in enumerate(zip(sizes, files, strict=False)):
        if in_file:
            parts.append(FileRegion(file, number, size))
            expected += content[number : number + size]
        else:
            parts.append(bytes([number]) * size)
            expected += bytes([number]) * size
    assert send_all(ends, parts, room) == expected


def test_nothing_counts_before_all_of_it_was_taken() -> None:
    ends = Ends()
    ends.wire.room = 100
    data = [b"x" * 1000, b"y" * 1000]
    assert ends.server.send(data, more=False) == WOULD_BLOCK
    assert ends.server.held_bytes > 1900
    ends.wire.room = 1 << 20
    assert ends.server.send([*data, b"z"], more=False) == 2000
    assert ends.hears() == b"x" * 1000 + b"y" * 1000


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    file = SystemDisk().open(str(tmp_path / "file"), read_only=True)
    assert Ends().server.send_file(FileRegion(file, 3, 10)) == 0


def test_closing_says_goodbye_and_does_not_wait() -> None:
    ends = Ends()
    ends.server.close()
    assert ends.wire.closed
    ends.incoming.write(ends.wire.down)
    assert ends.client.read() == b""  # close_notify


# -- handshakes -------------------------------------------------------------------------------------------------------


@given(reads=st.integers(1, 600), room=st.integers(1, 900))
def test_a_handshake_succeeds_however_it_is_cut(reads: int, room: int) -> None:
    ends = Ends(handshake=False)
    ends.wire.reads = reads
    seen = set()
    for _ in range(5000):
        ends.wire.room = room
        try:
            ends.client.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        ends.wire.up += ends.outgoing.read()
        waits = ends.server.handshake()
        seen.add(waits)
        ends.incoming.write(ends.wire.down)
        ends.wire.down.clear()
        if done and not waits:
            break
    else:
        raise AssertionError("it did not end")
    assert seen <= {0, READ, WRITE}
    ends.wire.room, ends.wire.reads = 1 << 30, 1 << 30
    ends.says(b"ping")
    assert ends.received() == b"ping"
    facts = ends.server.facts()
    assert (facts.version, facts.certificate) == ("TLSv1.3", None)


@given(st.binary(min_size=1, max_size=400))
def test_garbage_is_error_or_waits_for_more(data: bytes) -> None:
    ends = Ends(handshake=False)
    ends.wire.up += data
    try:
        assert ends.server.handshake() == READ
    except OSError:
        pass


@given(st.binary(min_size=1, max_size=400), st.integers(0, 300))
def test_garbage_after_the_handshake(data: bytes, at: int) -> None:
    ends = Ends()
    ends.says(b"fine" * 50)
    ends.wire.up[at:at] = data
    try:
        for _ in range(3):
            assert set(ends.received()) <= set(b"fine")
    except OSError:
        pass


def test_a_handshake_is_bounded_in_bytes() -> None:
    ends = Ends(handshake=False)

    def goes_on_and_on() -> None:
        for number in range(1000):
            # A ClientHello of 16 MiB, in records of their largest size.
            start = b"\x01\xff\xff\xff" if not number else b"\0\0\0\0"
            ends.wire.up += b"\x16\x03\x01\x40\x00" + start + bytes(16380)
            ends.server.handshake()

    with pytest.raises(OSError, match=r"bytes before the end of the handshake|record|message|excessive"):
        goes_on_and_on()


def test_one_call_handles_a_bounded_number_of_records() -> None:
    ends = Ends(handshake=False)
    with pytest.raises(ssl.SSLWantReadError):
        ends.client.do_handshake()
    hello = ends.outgoing.read()[5:]
    ends.wire.up += b"".join(b"\x16\x03\x01\x00\x01" + bytes([byte]) for byte in hello[:200])
    calls = 0
    while ends.wire.up or ends.server.buffered:
        assert ends.server.handshake() == READ
        calls += 1
    assert calls >= 200 // 16


# -- hostile records --------------------------------------------------------------------------------------------------


def with_keys(directory: Path) -> tuple[Ends, ClientKeys]:
    """A connection, and what its client can send beside what its library does."""
    keys = logging_keys(certificates.client_context(directory=directory), directory / "keys")
    ends = Ends(client=keys)
    return ends, ClientKeys(directory / "keys")


def test_successive_records_without_data_end_the_connection(tmp_path: Path) -> None:
    ends, keys = with_keys(tmp_path)
    for _ in range(3):
        ends.wire.up += b"".join(keys.key_update() for _ in range(32)) + keys.record(b"data")
        assert ends.received() == b"data"
    ends.wire.up += b"".join(keys.key_update() for _ in range(33))
    with pytest.raises(OSError, match="32 TLS records in a row without data"):
        ends.received()


def test_empty_records_in_a_row_end_the_connection(tmp_path: Path) -> None:
    ends, keys = with_keys(tmp_path)
    ends.wire.up += b"".join(keys.record(b"") for _ in range(40))
    with pytest.raises(OSError, match=r"in a row without data|record"):
        ends.received()


def test_unread_answers_to_key_updates_end_connection(tmp_path: Path) -> None:
    ends, keys = with_keys(tmp_path)
    ends.wire.room = 0

    def asks_and_does_not_read() -> None:
        for _ in range(10_000):
            ends.wire.up += keys.key_update(asks=True) + keys.record(b"x")
            ends.received()
            assert ends.server.held_bytes < 200_000

    with pytest.raises(OSError, match="asks for key updates and does not read them"):
        asks_and_does_not_read()


def test_key_update_answer_leaves_waiting_data_intact(tmp_path: Path) -> None:
    ends, keys = with_keys(tmp_path)
    ends.wire.room = 50
    data = [b"x" * 100_000]
    assert ends.server.send(data, more=False) == WOULD_BLOCK
    ends.wire.up += keys.key_update(asks=True)
    assert ends.received() == b""
    heard = b""
    while True:
        heard += ends.hears()
        ends.wire.room = 10_000
        sent = ends.server.send(data, more=False)
        if sent > 0:
            data = [data[0][sent:]]
            if not data[0]:
                break
    assert heard + ends.hears() == b"x" * 100_000


def test_message_not_meant_for_servers_is_refused(tmp_path: Path) -> None:
    ends, keys = with_keys(tmp_path)
    ends.wire.up += keys.record(b"\x04\0\0\x01\0", 22)  # a session ticket
    with pytest.raises(ssl.SSLError):
        ends.received()
    assert ends.wire.down  # an alert


def test_renegotiation_is_refused() -> None:
    ends = Ends(client=certificates_1_2())
    ends.wire.up += b"\x16\x03\x03\x00\x04\x01\0\0\0"  # in the clear, where everything is encrypted
    with pytest.raises(ssl.SSLError):
        ends.received()
    assert listener()._loaded.context.options & ssl.OP_NO_RENEGOTIATION
    assert listener()._loaded.context.options & ssl.OP_NO_COMPRESSION


def certificates_1_2() -> ssl.SSLContext:
    own = ssl.create_default_context(cadata=certificates.authority().pem)
    own.maximum_version = ssl.TLSVersion.TLSv1_2
    return own
