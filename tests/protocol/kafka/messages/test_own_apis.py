import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import own_apis
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.own_apis import EndTxnsRequest, EndTxnsResponse, Member

INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
MEMBERS = st.lists(st.builds(Member, st.text(max_size=200), INT64, INT16), max_size=50)

# Two transactions, from docs/PROTOCOLS.md.
REQUEST = bytes.fromhex(
    "0000002c 4e20 0000 00000007 0002 6d65 00"  # length, key, version, correlation id, client id "me", tags
    " 03 03 7830 0000000000000005 0001 00 03 7831 0000000000000006 0002 00 01 00"
)
RESPONSE = bytes.fromhex("00000010 00000007 00 00000000 005a 00000001 00")


def test_a_request_byte_by_byte() -> None:
    members = [Member("x0", 5, 1), Member("x1", 6, 2)]
    assert own_apis.request(7, "me", members, True) == REQUEST
    header = parse_request_header(REQUEST)
    assert header[:4] == (ApiKey.END_TXNS, 0, 7, "me")
    assert own_apis.parse_request(REQUEST[header.body_offset :]) == EndTxnsRequest(members, True)


def test_a_response_byte_by_byte() -> None:
    assert own_apis.response(7, 90, 1) == RESPONSE
    assert own_apis.parse_response(RESPONSE) == (7, EndTxnsResponse(0, 90, 1))


@given(MEMBERS, st.booleans(), INT32, st.none() | st.text(max_size=50))
def test_a_request_is_read_as_it_was_written(
    members: list[Member], committed: bool, number: int, client_id: str | None
) -> None:
    frame = own_apis.request(number, client_id, members, committed)
    header = parse_request_header(frame)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (header.correlation_id, header.client_id) == (number, client_id)
    assert own_apis.parse_request(frame[header.body_offset :]) == EndTxnsRequest(members, committed)


@given(INT32, INT16, INT32, INT32)
def test_a_response_is_read_as_it_was_written(number: int, error: int, index: int, throttle_ms: int) -> None:
    frame = own_apis.response(number, error, index, throttle_ms)
    assert own_apis.parse_response(frame) == (number, EndTxnsResponse(throttle_ms, error, index))


def test_fields_newer_than_we_are_are_passed_over() -> None:
    body = bytes.fromhex("02 027a 0000000000000005 0001 01 09 02 abcd 00 01 63 00")
    assert own_apis.parse_request(body) == EndTxnsRequest([Member("z", 5, 1)], False)


def test_each_truncation_is_a_protocol_error() -> None:
    body = REQUEST[parse_request_header(REQUEST).body_offset :]
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            own_apis.parse_request(body[:size])
    for size in range(len(RESPONSE)):
        with pytest.raises(ProtocolError):
            own_apis.parse_response(RESPONSE[:size])


def test_false_count_is_refused_before_any_allocation() -> None:
    with pytest.raises(ProtocolError, match="an array of 268435454 elements in 0 bytes"):
        own_apis.parse_request(bytes.fromhex("ffffff7f"))


@given(st.binary(max_size=100))
def test_any_bytes_raise_only_protocol_errors_or_parse(data: bytes) -> None:
    for parse in (own_apis.parse_request, own_apis.parse_response):
        try:
            parse(data)
        except ProtocolError:
            pass
