import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.sasl.plain import parse

_parts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(_parts, _parts, _parts)
def test_three_parts_come_back(authzid: str, user: str, password: str) -> None:
    message = f"{authzid}\0{user}\0{password}".encode()
    if user and password:
        assert (authzid, user, password) == parse(message)
    else:
        with pytest.raises(ProtocolError, match="without a user name or without a password"):
            parse(message)


@given(st.binary())
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        parsed = parse(message)
    except ProtocolError:
        return
    assert "\0".join(parsed).encode() == message


@pytest.mark.parametrize(
    "message", [b"", b"\0", b"u\0p", b"\0u\0p\0", b"\0u\0p\0more", b"\0u\0\xff", b"\0u\xed\xa0\x80\0p"]
)
def test_what_is_no_plain_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(message)


def test_it_does_not_show_the_password() -> None:
    assert "secret" not in repr(parse(b"\0alice\0secret"))
