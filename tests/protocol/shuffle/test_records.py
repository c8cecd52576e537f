import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.records import RecordDecoder, RecordEncoder, encode_record
from tests.protocol.shuffle.strategies import in_pieces, mutated

RECORDS = st.lists(st.binary(max_size=40), max_size=20)


@given(RECORDS, st.integers(1, 50), st.booleans())
def test_records_are_restored_from_buffers(records: list[bytes], size: int, at_once: bool) -> None:
    encoder = RecordEncoder(size)
    buffers = encoder.add_all(records) if at_once else [buffer for record in records for buffer in encoder.add(record)]
    assert all(len(buffer) == size for buffer in buffers)
    assert encoder.pending < size
    buffers.append(encoder.flush())
    assert encoder.pending == 0
    assert b"".join(map(encode_record, records)) == b"".join(buffers)
    decoder = RecordDecoder()
    assert records == [record for buffer in buffers for record in decoder.feed(buffer)]
    assert decoder.pending == 0
    decoder.finish()


@given(RECORDS, st.data())
def test_records_come_out_however_the_stream_is_cut(records: list[bytes], data: st.DataObject) -> None:
    decoder = RecordDecoder()
    decoded: list[bytes] = []
    fed = b""
    for piece in data.draw(in_pieces(b"".join(map(encode_record, records)))):
        decoded += decoder.feed(piece)
        fed += piece
        assert b"".join(map(encode_record, decoded)) == fed[: len(fed) - decoder.pending]
    assert records == decoded


@given(RECORDS.filter(bool), st.data())
def test_a_truncated_stream_asks_for_more(records: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_record, records))
    last = encode_record(records[-1])
    cut = data.draw(st.integers(1, len(last)))
    decoder = RecordDecoder()
    assert records[:-1] == decoder.feed(stream[:-cut])
    if cut < len(last):
        with pytest.raises(ProtocolError, match="too early"):
            decoder.finish()
    assert records[-1:] == decoder.feed(stream[-cut:])
    decoder.finish()


@given(RECORDS, st.data())
def test_mutations_are_records_or_protocol_errors(records: list[bytes], data: st.DataObject) -> None:
    stream = bytes(data.draw(mutated(b"".join(map(encode_record, records)))))
    decoder = RecordDecoder(max_record=200)
    for piece in data.draw(in_pieces(stream)):
        try:
            decoder.feed(piece)
        except ProtocolError:
            return
    assert decoder.pending <= len(stream)


@pytest.mark.parametrize("size", [-1, 101, 2**31 - 1])
def test_a_length_is_not_believed(size: int) -> None:
    length = size.to_bytes(4, "big", signed=True)
    for pieces in ([length], [length[:1], length[1:]], [length + b"abc"]):
        decoder = RecordDecoder(max_record=100)
        assert [] == [record for piece in pieces[:-1] for record in decoder.feed(piece)]
        with pytest.raises(ProtocolError, match="record"):
            decoder.feed(pieces[-1])


def test_a_long_record_allocates_what_came() -> None:
    decoder = RecordDecoder()
    tracemalloc.start()
    assert decoder.feed((1 << 30).to_bytes(4, "big") + bytes(100)) == []
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_the_size_of_buffers_may_change() -> None:
    encoder = RecordEncoder(100)
    assert encoder.add(bytes(76)) == []
    encoder.buffer_size = 16
    assert [16] * 5 == [len(buffer) for buffer in encoder.add(b"")]
    assert encoder.flush() == bytes(4)
