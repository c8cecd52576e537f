"""Flushing: whatever the socket takes at a time, the bytes leave whole and in order."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.network import connection as connection_module
from broker.network.connection import ProcessorConnection
from broker.network.memory_pool import MemoryPool, ReceiveBuffer
from broker.runtime.disk import Buffer, FileRegion, SystemDisk
from broker.runtime.net import WOULD_BLOCK

FILE = bytes(range(256)) * 120
LONG = connection_module._COPIED_BYTES + 1  # a region that is not read into memory


class BytesFile:
    """A file's content."""

    path = "/data/segment.log"

    def __init__(self, content: bytes = FILE) -> None:
        self.content = content

    def pread(self, size: int, offset: int) -> bytes:
        return self.content[offset : offset + size]


class StingySocket:
    """Takes so many bytes at a time (a repeated list; 0 = would block), then everything."""

    def __init__(self, takes: Sequence[int] = ()) -> None:
        self.takes = list(takes)
        self.out = bytearray()
        self.calls: list[tuple[str, bool]] = []

    def _take(self) -> int:
        return self.takes.pop(0) if self.takes else 1 << 40

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        self.calls.append(("send", more))
        take = self._take()
        data = b"".join(bytes(b) for b in buffers)[:take]
        if not data and any(len(b) for b in buffers):
            return WOULD_BLOCK
        self.out += data
        return len(data)

    def send_file(self, region: Any) -> int:
        self.calls.append(("file", False))
        take = min(self._take(), region.size)
        if not take and region.size:
            return WOULD_BLOCK
        data = region.file.content[region.offset : region.offset + take]
        self.out += data
        return len(data)


def connection(socket: Any) -> ProcessorConnection:
    anything: Any = None
    return ProcessorConnection(
        socket=socket,
        peer=anything,
        service=anything,
        session=anything,
        processor=anything,
        frame_max=100,
        last_active=0.0,
        received=ReceiveBuffer(MemoryPool(1 << 20)),
    )


def region(offset: int, size: int, file: Any = None) -> FileRegion:
    return FileRegion(file or BytesFile(), offset, size)


def content(part: Any) -> bytes:
    if isinstance(part, FileRegion):
        file: Any = part.file
        return bytes(file.content[part.offset : part.offset + part.size])
    return bytes(part)


def in_files(sender: ProcessorConnection) -> int:
    return sum(part.size for part in sender.outgoing if isinstance(part, FileRegion))


PARTS = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.binary(max_size=30).map(bytearray),
        st.binary(max_size=300).map(memoryview),
        st.builds(region, st.integers(0, 5000), st.one_of(st.integers(0, 300), st.integers(LONG - 10, LONG + 5000))),
    ),
    max_size=12,
)


@given(
    queues=st.lists(PARTS, min_size=1, max_size=4),
    takes=st.lists(st.one_of(st.integers(0, 400), st.integers(0, 20_000)), max_size=60),
)
def test_bytes_leave_in_order_and_are_counted(queues: list[list[Any]], takes: list[int]) -> None:
    socket = StingySocket(takes)
    sender = connection(socket)
    expected = b""
    for parts in queues:
        sender.enqueue(parts)
        expected += b"".join(map(content, parts))
        assert sender.outgoing_bytes == len(expected) - len(socket.out)
        assert sender.outgoing_files == in_files(sender)
        done = sender.flush()
        assert sender.outgoing_bytes == len(expected) - len(socket.out)
        assert sender.outgoing_files == in_files(sender)
        assert done == (not sender.outgoing)
    while not sender.flush():
        assert sender.outgoing_bytes == len(expected) - len(socket.out) > 0
        assert sender.outgoing_files == in_files(sender)
    assert bytes(socket.out) == expected
    assert sender.outgoing_bytes == sender.outgoing_files == 0


def test_more_parts_than_call_limit_leave_in_several() -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([bytes([n % 256]) for n in range(1000)])
    assert sender.flush()
    assert bytes(socket.out) == bytes(n % 256 for n in range(1000))
    assert 2 <= len(socket.calls) <= 20


def test_memory_before_file_shares_a_packet() -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([b"header", region(0, LONG), b"trailer"])
    assert sender.flush()
    assert socket.calls == [("send", True), ("file", False), ("send", False)]


def test_short_regions_leave_with_the_bytes_around_them() -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([b"header", region(3, 10), b"between", region(30, 20), b"trailer"])
    assert sender.flush()
    assert bytes(socket.out) == b"header" + FILE[3:13] + b"between" + FILE[30:50] + b"trailer"
    assert socket.calls == [("send", False)]


def test_short_regions_before_long_region_share_its_packet() -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([region(3, 10), b"between", region(30, LONG)])
    assert sender.flush()
    assert bytes(socket.out) == FILE[3:13] + b"between" + FILE[30 : 30 + LONG]
    assert socket.calls == [("send", True), ("file", False)]


def test_one_call_reads_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_GATHERED_BYTES", 1000)
    socket = StingySocket([0, 1 << 40, 0])
    sender = connection(socket)
    sender.enqueue([part for _ in range(20) for part in (b"-", region(0, 300))])
    assert not sender.flush()  # the socket takes nothing
    assert sender.outgoing_files == 20 * 300, "nothing that was not sent is kept"
    assert not sender.flush()
    assert bytes(socket.out) == (b"-" + FILE[:300]) * 4 + b"-"
    assert sender.outgoing_files == 16 * 300
    assert sender.flush()


@pytest.mark.parametrize("size", [20, LONG])
def test_short_file_is_an_error_that_names_it(size: int) -> None:
    sender = connection(StingySocket())
    sender.enqueue([region(len(FILE) - 10, size)])
    with pytest.raises(OSError, match=r"segment\.log ends before byte"):
        sender.flush()


def test_an_empty_region_is_no_short_file() -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([b"a", region(len(FILE), 0), b"b"])
    assert sender.flush()
    assert bytes(socket.out) == b"ab"


def test_one_turn_sends_bounded_amount_of_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "_TURN_BYTES", 1000)
    monkeypatch.setattr(connection_module, "_COPIED_BYTES", 100)
    socket = StingySocket([600] * 100)
    sender = connection(socket)
    sender.enqueue([region(0, 5000)])
    assert not sender.flush()
    assert len(socket.out) == 1200
    assert not sender.flush()
    assert len(socket.out) == 2400
    while not sender.flush():
        pass
    assert bytes(socket.out) == FILE[:5000]


def test_one_turn_also_counts_short_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_TURN_BYTES", 1000)
    monkeypatch.setattr(connection_module, "_GATHERED_BYTES", 500)
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([region(0, 300)] * 12)
    assert not sender.flush()
    assert len(socket.out) == 1200
    while not sender.flush():
        pass
    assert len(socket.out) == 3600


@pytest.mark.parametrize("size", [20, LONG])
def test_bytes_before_short_file_are_still_sent(size: int) -> None:
    socket = StingySocket()
    sender = connection(socket)
    sender.enqueue([b"first", region(0, 10), b"second", region(len(FILE) - 10, size)])
    with pytest.raises(OSError, match=r"segment\.log ends before byte"):
        sender.flush()
    assert bytes(socket.out).startswith(b"first" + FILE[:10] + b"second")


@pytest.mark.parametrize("size", [100, LONG])
def test_partly_sent_region_leaves_region_of_service_alone(size: int) -> None:
    sender = connection(StingySocket([10, 0]))
    part = region(5, size)
    sender.enqueue([part])
    assert not sender.flush()
    assert (part.offset, part.size) == (5, size)


@pytest.mark.parametrize("size", [5, LONG])
def test_file_is_released_once_its_bytes_have_left(tmp_path: Path, size: int) -> None:
    path = str(tmp_path / "x")
    file = SystemDisk().open(path, create=True)
    file.pwrite([bytes(size)], 0)
    descriptor = file.fileno()
    socket = StingySocket()
    sender = connection(socket)

    def send_file(part: Any) -> int:
        return int(part.size)

    socket.send_file = send_file  # type: ignore[method-assign]
    sender.enqueue([FileRegion(file, 0, size)])
    del file
    assert sender.flush()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
