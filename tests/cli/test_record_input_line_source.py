"""Lines as they come, in chunks."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli import record_input
from broker.cli.record_input import LineSource
from broker.errors import BrokerError


def chunks_of(pieces: list[bytes]) -> list[list[bytes]]:
    """What comes of these pieces through a pipe."""
    reader, writer = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writer, piece)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return list(LineSource(reader).chunks())
    finally:
        thread.join()
        os.close(reader)


@given(st.lists(st.text("ab\n", min_size=1, max_size=50).map(str.encode), max_size=10))
def test_every_line_comes_once_and_in_order(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert expected == [line for chunk in chunks_of(pieces) for line in chunk]


def test_many_lines_come_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "_CHUNK_BYTES", 1000)
    chunks = chunks_of([b"%04d\n" % number for number in range(2000)])
    assert [b"%04d" % number for number in range(2000)] == [line for chunk in chunks for line in chunk]
    assert 3 < len(chunks)


def test_line_longer_than_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(record_input, "_LINE_BYTES_MAX", 1000)
    with pytest.raises(BrokerError, match="more than 1000 bytes"):
        chunks_of([b"x" * 100] * 11)


def test_lines_read_before_an_interrupt_are_kept() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nhalf")
    source = LineSource(reader)
    chunks = source.chunks()
    assert [b"one", b"two"] == next(chunks)
    assert [] == next(chunks)
    os.write(writer, b" and the other\nthree")
    chunks.close()
    source._parts.append(os.read(reader, 100))
    assert [b"half and the other"] == source.whole_lines()
    assert [] == source.whole_lines()
    os.close(reader)
    os.close(writer)
