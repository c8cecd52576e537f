import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.java import modified_utf8
from protocol.wire import Reader

TEXT = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXT)
def test_text_is_read_back(text: str) -> None:
    encoded = modified_utf8.encode(text)
    assert b"\0" not in encoded
    assert text == modified_utf8.decode(encoded)


@pytest.mark.parametrize(
    ("text", "encoded"), [("a\0b", "61c08062"), ("ä", "c3a4"), ("€", "e282ac"), ("😀", "eda0bdedb880"), ("", "")]
)
def test_javas_own_forms(text: str, encoded: str) -> None:
    assert encoded == modified_utf8.encode(text).hex()


@given(st.sampled_from(["a", "ä", "€", "😀", "\0"]), st.integers(0, 6))
def test_what_is_too_long_is_cut_after_a_whole_unit(letter: str, shift: int) -> None:
    text = "x" * shift + letter * 65535
    prefixed = modified_utf8.encode_prefixed(text)
    size = int.from_bytes(prefixed[:2], "big")
    assert len(prefixed) == 2 + size
    assert 65530 < size <= 65535
    found = modified_utf8.read_prefixed(Reader(prefixed))
    assert text.startswith(found.removesuffix("\ufffd"))


@given(st.binary(max_size=20))
def test_any_bytes_are_text_or_a_protocol_error(data: bytes) -> None:
    try:
        modified_utf8.decode(data).encode()
    except ProtocolError:
        pass
