import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.sasl.oauthbearer import parse


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"n,,\x01auth=Bearer abc.def\x01\x01", ("", "abc.def")),
        (b"n,a=alice,\x01auth=bearer abc=\x01\x01", ("alice", "abc=")),
        (b"n,a=al=2Ci=3Dce,\x01auth=BEARER  abc\x01\x01", ("al,i=ce", "abc")),
        (b"n,,\x01host=server\x01auth=Bearer abc\x01port=1\x01\x01", ("", "abc")),
    ],
)
def test_what_the_standard_allows_is_read(message: bytes, expected: tuple[str, str]) -> None:
    assert expected == parse(message, 1000)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01host=server\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer def\x01\x01",
        b"n,a=,\x01auth=Bearer abc\x01\x01",
        b"n,a=al=ice,\x01auth=Bearer abc\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer ab\xffc\x01\x01",
        b"n,,\x01auth=Bearer ab\x00c\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 1000 + b"\x01\x01",
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse(message, 1000)
    assert "abc" not in str(refused.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(message, 1000)


@given(st.text(st.sampled_from("na,=\x01uthBer "), max_size=60))
def test_nearly_right_messages_are_read_or_refused(text: str) -> None:
    try:
        parse(text.encode(), 1000)
    except ProtocolError:
        pass


def test_it_does_not_show_the_token() -> None:
    assert "secret" not in repr(parse(b"n,,\x01auth=Bearer secret\x01\x01", 1000))
