import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import java_stream
from protocol.wire import Reader

TEXT = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXT)
def test_text_is_read_back(text: str) -> None:
    encoded = java_stream.encode(text)
    assert b"\0" not in encoded
    assert text == java_stream.decode(encoded)


@pytest.mark.parametrize(
    ("text", "encoded"), [("a\0b", "61c08062"), ("ä", "c3a4"), ("€", "e282ac"), ("😀", "eda0bdedb880"), ("", "")]
)
def test_javas_own_forms(text: str, encoded: str) -> None:
    assert encoded == java_stream.encode(text).hex()


@given(st.sampled_from(["a", "ä", "€", "😀", "\0"]), st.integers(0, 6))
def test_too_long_text_is_cut_after_whole_unit(letter: str, shift: int) -> None:
    text = "x" * shift + letter * 65535
    prefixed = java_stream.encode_prefixed(text)
    size = int.from_bytes(prefixed[:2], "big")
    assert len(prefixed) == 2 + size
    assert 65530 < size <= 65535
    decoded = java_stream.read_prefixed(Reader(prefixed))
    assert text.startswith(decoded.removesuffix("\ufffd"))


@given(st.binary(max_size=20))
def test_any_bytes_are_text_or_a_protocol_error(data: bytes) -> None:
    try:
        java_stream.decode(data).encode()
    except ProtocolError:
        pass
