import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import backup
from protocol.kafka.messages.backup import Action, BackupRequest, BackupResponse
from protocol.kafka.messages.headers import parse_request_header

INT16, INT32 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32))
TEXT = st.text(max_size=100)


@given(st.sampled_from(Action), TEXT, INT32, st.none() | st.text(max_size=50))
def test_a_request_is_read_as_it_was_written(
    action: Action, backup_id: str, number: int, client_id: str | None
) -> None:
    frame = backup.request(number, client_id, action, backup_id)
    header = parse_request_header(frame)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert header[:4] == (ApiKey.BACKUP, 0, number, client_id)
    assert backup.parse_request(frame[header.body_offset :]) == BackupRequest(action, backup_id)


@given(INT32, st.builds(BackupResponse, INT32, INT16, TEXT, TEXT, TEXT))
def test_a_response_is_read_as_it_was_written(number: int, answer: BackupResponse) -> None:
    assert backup.parse_response(backup.response(number, answer)) == (number, answer)


def test_an_unknown_action_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="no action 9"):
        backup.parse_request(b"\x09\x01\x00")


@given(st.binary(max_size=100))
def test_any_bytes_raise_only_protocol_errors_or_parse(data: bytes) -> None:
    for parse in (backup.parse_request, backup.parse_response):
        try:
            parse(data)
        except ProtocolError:
            pass
