"""Errors written here and by Java; tests/compat/flink compares them with Java itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import errors
from protocol.shuffle.frame import frame_size
from protocol.shuffle.java_stream import read_throwable
from tests.protocol.shuffle.golden import vectors
from tests.protocol.shuffle.strategies import ERROR_CLASSES, ID, TEXT, mutated

KINDS = st.sampled_from(ERROR_CLASSES)
# With stack trace, suppressed exceptions and a partition id: 1.9 KB written by Java.
FLINKS = next(bytes.fromhex(v["hex"]) for v in vectors("messages") if v["length"] == 1945)


@given(KINDS, st.none() | TEXT, st.none() | ID)
def test_an_error_is_read_back(class_name: str, message: str | None, receiver: bytes | None) -> None:
    frame = errors.encode_error(class_name, message, receiver)
    assert len(frame) == frame_size(frame)
    assert errors.ErrorResponse(class_name, message, receiver) == errors.parse_error(memoryview(frame)[9:])


@given(KINDS, TEXT, st.none() | ID, st.data())
def test_each_truncation_is_a_protocol_error(
    class_name: str, message: str, receiver: bytes | None, data: st.DataObject
) -> None:
    body = errors.encode_error(class_name, message, receiver)[9:]
    with pytest.raises(ProtocolError):
        errors.parse_error(body[: data.draw(st.integers(0, len(body) - 1))])


def test_truncations_of_flinks_error_raise_protocol_error() -> None:
    for end in range(9, len(FLINKS)):
        with pytest.raises(ProtocolError):
            errors.parse_error(memoryview(FLINKS)[9:end])


@given(st.data())
def test_mutations_are_errors_or_protocol_errors(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from([FLINKS, errors.encode_error(errors.PRODUCER_FAILED_EXCEPTION, "x", bytes(16))]))
    try:
        error = errors.parse_error(data.draw(mutated(frame[9:])))
    except ProtocolError:
        return
    assert isinstance(error.class_name, str)
    assert error.message is None or isinstance(error.message, str)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_protocol_error(data: bytes) -> None:
    for body in (data, b"\xac\xed\x00\x05" + data, b"\xac\xed\x00\x05\x73\x72" + data):
        with pytest.raises(ProtocolError):
            errors.parse_error(body)


def test_class_unknown_to_the_peer_is_not_sent() -> None:
    with pytest.raises(ValueError, match=r"com\.example\.Unheard"):
        errors.encode_error("com.example.Unheard", "x", None)


def test_message_too_long_for_java_is_cut() -> None:
    error = errors.parse_error(errors.encode_error(errors.IO_EXCEPTION, "ä" * 50_000, None)[9:])
    assert "ä" * 32_767 == error.message


def test_missing_partition_has_flinks_message() -> None:
    error = errors.parse_error(errors.partition_not_found("p", bytes(16))[9:])
    assert (errors.PARTITION_NOT_FOUND_EXCEPTION, "Partition p not found.", bytes(16)) == error
    assert not error.is_fatal


def desc(name: bytes, flags: int = 2, fields: bytes = b"\0\0", above: bytes = b"\x70") -> bytes:
    """A class description."""
    return b"\x72" + len(name).to_bytes(2, "big") + name + bytes(8) + bytes((flags,)) + fields + b"\x78" + above


THROWABLE = desc(b"java.lang.Throwable", 3)
MAGIC = b"\xac\xed\x00\x05"


def test_a_throwable_without_any_field_is_read() -> None:
    stream = MAGIC + b"\x73" + desc(b"My", above=THROWABLE) + b"\x78"
    assert (("My", None), len(stream)) == read_throwable(stream)


@pytest.mark.parametrize(
    "stream",
    [
        b"\x70",  # null
        b"\x74\x00\x01a",  # a string
        b"\x73" + desc(b"My"),  # no Throwable
        b"\x73\x70",  # an object of no class
        b"\x73\x71\x00\x7e\x00\x00",  # a reference to nothing
        b"\x73" + desc(b"My", 0, above=THROWABLE) + b"\x78",  # not serializable
        b"\x73" + desc(b"My", 4, above=THROWABLE) + b"\x78",  # externalizable as Java 1.1 wrote it
        b"\x73" + desc(b"My", fields=b"\0\1X\0\1x", above=THROWABLE) + b"\x78",  # no such type
        b"\x73" + desc(b"My", fields=b"\xff\xff", above=THROWABLE) + b"\x78",
        b"\x73" + desc(b"My", above=desc(b"A") * 1 + b"") + b"\x7b",  # an exception while writing
        b"\x75" + desc(b"[L") + b"\x7f\xff\xff\xff",
        b"\x75" + desc(b"[I") + b"\x7f\xff\xff\xff",
        b"\x75" + desc(b"[I") + b"\xff\xff\xff\xff",
        b"\x7c\x7f" + b"\xff" * 7,
    ],
)
def test_streams_that_are_no_throwable_are_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_throwable(MAGIC + stream)


def test_a_long_row_of_classes_is_refused() -> None:
    above = THROWABLE
    for number in range(70):
        above = desc(b"C%d" % number, above=above)
    with pytest.raises(ProtocolError, match="above"):
        read_throwable(MAGIC + b"\x73" + above + b"\x78")


def test_objects_within_objects_end_somewhere() -> None:
    # An array of an array of an array ...; each refers to the description of the first.
    stream = b"\x75" + desc(b"[L") + b"\0\0\0\1" + (b"\x75\x71\x00\x7e\x00\x00" + b"\0\0\0\1") * 10_000 + b"\x70"
    with pytest.raises(ProtocolError, match="levels"):
        read_throwable(MAGIC + stream)
    # The same by descriptions that are annotated with descriptions.
    nested = b"\x72\0\1A" + bytes(8) + b"\x02\0\0"
    with pytest.raises(ProtocolError, match="levels"):
        read_throwable(MAGIC + b"\x73" + nested * 10_000)
