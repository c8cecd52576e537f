import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponseV0
from kio.schema.response_header.v1.header import ResponseHeader as KioResponseV1
from kio.serial import entity_writer

from protocol.errors import ProtocolError
from protocol.frames import framed
from protocol.kafka.api_keys import ApiKey, request_header_version
from protocol.kafka.messages.headers import RequestHeader, parse_request_header, request_header, response_header

KEYS = st.sampled_from([int(key) for key in ApiKey]) | st.integers(-(2**15), 2**15 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
CLIENTS = st.none() | st.text(max_size=40)


@given(KEYS, INT16, INT32, CLIENTS, st.binary(max_size=20))
def test_a_header_is_read_as_kio_writes_it(
    key: int, version: int, number: int, client: str | None, body: bytes
) -> None:
    schema = KioHeaderV2 if request_header_version(key, version) == 2 else KioHeaderV1
    out = io.BytesIO()
    entity_writer(schema)(
        out,
        schema(request_api_key=key, request_api_version=version, correlation_id=number, client_id=client),  # type: ignore[arg-type]
    )
    header = out.getvalue()
    assert header == request_header(key, version, number, client)
    expected = RequestHeader(key, version, number, client, 4 + len(header))
    assert expected == parse_request_header(framed(header + body))
    assert expected == parse_request_header(memoryview(bytearray(framed(header + body))))


@given(KEYS, INT16, INT32, CLIENTS)
def test_each_truncation_is_a_protocol_error(key: int, version: int, number: int, client: str | None) -> None:
    whole = framed(request_header(key, version, number, client))
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            parse_request_header(whole[:size])


@given(st.binary(max_size=60))
def test_any_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    try:
        header = parse_request_header(data)
    except ProtocolError:
        return
    assert 14 <= header.body_offset <= len(data)


def test_tags_in_the_header_are_passed_over() -> None:
    header = request_header(ApiKey.FETCH, 12, 1, "me")[:-1] + b"\x01\x07\x02ab"
    assert parse_request_header(framed(header + b"body")).body_offset == 4 + len(header)


@pytest.mark.parametrize("size", [b"\xff\xfe", b"\x80\x00", b"\x7f\xff"])
def test_impossible_client_id_length_is_refused(size: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(framed(b"\x00\x00\x00\x07\x00\x00\x00\x01" + size + b"abc"))


def test_client_id_that_is_not_text_is_refused() -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(framed(b"\x00\x00\x00\x07\x00\x00\x00\x01\x00\x01\xff"))


@given(INT32)
def test_a_response_header_is_what_kio_writes(number: int) -> None:
    for version, schema in enumerate((KioResponseV0, KioResponseV1)):
        out = io.BytesIO()
        entity_writer(schema)(out, schema(correlation_id=number))  # type: ignore[arg-type]
        assert out.getvalue() == response_header(number, version)
