import struct
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError, TooManyEntries
from protocol.wire import Reader, Writer, encode_uvarint


def ints(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


VALUES = {
    "i8": ints(8),
    "u8": ints(8, signed=False),
    "i16": ints(16),
    "u16": ints(16, signed=False),
    "i32": ints(32),
    "u32": ints(32, signed=False),
    "i64": ints(64),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": st.uuids(),
    "uvarint": ints(32, signed=False),
    "varint": ints(32),
    "varlong": ints(64),
    "string": st.text(max_size=300),
    "nullable_string": st.none() | st.text(max_size=20),
    "compact_string": st.text(max_size=300),
    "compact_nullable_string": st.none() | st.text(max_size=20),
    "bytes": st.binary(max_size=300),
    "nullable_bytes": st.none() | st.binary(max_size=20),
    "compact_bytes": st.binary(max_size=300),
    "compact_nullable_bytes": st.none() | st.binary(max_size=20),
}
ANY = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))


def written(values: list[tuple[str, object]]) -> bytes:
    out = Writer()
    for name, value in values:
        getattr(out, name)(value)
    return out.getvalue()


@given(st.lists(ANY, max_size=12))
def test_what_is_written_is_read_back(values: list[tuple[str, object]]) -> None:
    reader = Reader(written(values))
    assert values == [(name, getattr(reader, name)()) for name, _ in values]
    assert reader.remaining == 0


@given(st.lists(ANY, min_size=1, max_size=5), st.data())
def test_each_truncation_is_a_protocol_error(values: list[tuple[str, object]], data: st.DataObject) -> None:
    whole = written(values)
    reader = Reader(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ProtocolError):  # noqa: PT012  # any of the reads may be the one
        for name, _ in values:
            getattr(reader, name)()


@given(st.binary(max_size=40), st.lists(st.sampled_from([*sorted(VALUES), "array", "compact_array", "skip_tags"])))
def test_any_bytes_raise_nothing_but_protocol_errors(data: bytes, names: list[str]) -> None:
    reader = Reader(data)
    try:
        for name in names:
            getattr(reader, name)()
    except ProtocolError:
        pass
    assert reader.pos <= len(data)


@pytest.mark.parametrize("name", ["array", "nullable_array", "compact_array", "compact_nullable_array"])
def test_an_array_that_cannot_fit_is_refused(name: str) -> None:
    out = Writer()
    getattr(out, name)(5)
    out.raw(bytes(9))
    assert getattr(Reader(out.getvalue()), name)() == 5
    with pytest.raises(ProtocolError, match="an array of 5 elements in 9 bytes"):
        getattr(Reader(out.getvalue()), name)(2)


@pytest.mark.parametrize("name", ["string", "bytes", "array"])
def test_null_is_refused_where_it_may_not_be(name: str) -> None:
    with pytest.raises(ProtocolError, match="null"):
        getattr(Reader(b"\xff" * 8), name)()
    with pytest.raises(ProtocolError, match="null"):
        getattr(Reader(b"\x00" * 8), f"compact_{name}")()


def test_a_length_below_null_is_refused() -> None:
    for name, data in (("nullable_string", b"\xff\xfe"), ("nullable_bytes", b"\xff\xff\xff\xfe")):
        with pytest.raises(ProtocolError):
            getattr(Reader(data + bytes(8)), name)()
    with pytest.raises(ProtocolError):
        Reader(b"\xff\xff\xff\xfe" + bytes(8)).nullable_array()


def test_varints_that_are_too_long_are_refused() -> None:
    for data in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x00"):
        with pytest.raises(ProtocolError):
            Reader(data).uvarint()
    with pytest.raises(ProtocolError):
        Reader(b"\xff" * 9 + b"\x02").varlong()


@given(st.integers(0, (1 << 32) - 1))
def test_a_varint_by_itself_is_the_writers(value: int) -> None:
    assert written([("uvarint", value)]) == encode_uvarint(value)


def test_unknown_tagged_fields_are_passed_over() -> None:
    reader = Reader(b"\x02\x05\x03abc\x81\x01\x00!")
    reader.skip_tags()
    assert reader.u8() == ord("!")


def test_known_encodings() -> None:
    """From KIP-482 and Kafka's ByteUtils tests."""
    assert written([("uvarint", 300)]) == b"\xac\x02"
    assert written([("varint", -1), ("varint", 1), ("varint", -(2**31))]) == b"\x01\x02\xff\xff\xff\xff\x0f"
    assert written([("varlong", -(2**63))]) == b"\xff" * 9 + b"\x01"
    assert written([("compact_string", "ab"), ("string", "ab")]) == b"\x03ab\x00\x02ab"
    assert written([("uuid", UUID(int=1))]) == bytes(15) + b"\x01"
    assert written([("i64", -2)]) == struct.pack(">q", -2)


def test_a_lying_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        for name in ("bytes", "compact_bytes", "string", "compact_string", "array", "compact_array"):
            with pytest.raises(ProtocolError):
                getattr(Reader(b"\x7f\xff\xff\xff\x07" + bytes(100)), name)()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_any_byte_but_zero_is_true() -> None:
    assert [Reader(bytes([byte])).bool() for byte in (0, 1, 2, 255)] == [False, True, True, True]


def test_bytes_come_back_as_views_of_the_input() -> None:
    data = bytearray(b"\x00\x00\x00\x02ab")
    view = Reader(data).bytes()
    data[4] = ord("z")
    assert view == b"zb"


def test_reader_charges_arrays_before_their_elements_are_read() -> None:
    reader = Reader(b"\0\0\0\3abc\0\0\0\3abc\4abc\1\1\0", 0, 7)
    assert (reader.array(), reader.entries) == (3, 4)
    reader.skip(3)
    assert (reader.nullable_array(), reader.entries) == (3, 1)
    reader.skip(3)
    with pytest.raises(TooManyEntries):
        Reader(reader.view, reader.pos, reader.entries).compact_array()
    reader.skip(4)
    reader.skip_tags()  # tagged fields are entries, too
    assert reader.entries == 0


@pytest.mark.parametrize("name", ["compact_string", "compact_nullable_string"])
def test_a_string_is_never_longer_than_kafka_allows(name: str) -> None:
    for size, fits in ((0x7FFF, True), (0x8000, False)):
        data = encode_uvarint(size + 1) + b"x" * size
        if fits:
            assert len(getattr(Reader(data), name)()) == size
        else:
            with pytest.raises(ProtocolError):
                getattr(Reader(data), name)()
