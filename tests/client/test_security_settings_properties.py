"""Properties files, as Java reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.security_settings import parse_properties
from broker.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a=b\n  ! c=d\n\n \t\n", {}),
        ("a=b\nc = d \n e: f", {"a": "b", "c": "d ", "e": "f"}),
        ("a b c\nd", {"a": "b c", "d": ""}),
        ("a==b\nc:=d", {"a": "=b", "c": "=d"}),
        ("a\\=b=c\na\\ b=d", {"a=b": "c", "a b": "d"}),
        ("a=one, \\\n   two\\\r\n three", {"a": "one, twothree"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("# not continued \\\na=b", {"a": "b"}),
        ("a=b\\", {"a": "b"}),
        (r"a=\t\n\u00c4\x", {"a": "\t\nÄx"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=Ä😀", {"a": "Ä😀"}),
        ("\ufeffa=1\ra=2", {"a": "2"}),
        ("=b", {"": "b"}),
    ],
)
def test_java_properties_are_read(text: str, expected: dict[str, str]) -> None:
    assert expected == parse_properties(text, "f")


def test_unreadable_line_is_named_without_its_value() -> None:
    with pytest.raises(ConfigError) as failure:
        parse_properties("a=b\n\nsasl.password=s3cret\\u12", "client.properties")
    assert "client.properties, line 3" in str(failure.value)
    assert "s3cret" not in str(failure.value)


def as_java_stores(values: dict[str, str]) -> str:
    """Properties.store, without its comments."""

    def escaped(text: str, *, key: bool) -> str:
        out = []
        units = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            code = int.from_bytes(units[index : index + 2], "big")
            letter = chr(code)
            if letter == " " and (key or index == 0):
                out.append("\\ ")
            elif letter in "\\=:#!":
                out.append("\\" + letter)
            elif letter in "\t\n\r\f":
                out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[letter])
            elif 0x20 <= code <= 0x7E:
                out.append(letter)
            else:
                out.append(f"\\u{code:04X}")
        return "".join(out)

    return "".join(f"{escaped(name, key=True)}={escaped(value, key=False)}\n" for name, value in values.items())


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(_TEXT, _TEXT))
def test_properties_stored_by_java_are_read_back(values: dict[str, str]) -> None:
    assert values == parse_properties(as_java_stores(values), "f")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_properties(text, "f")
    except ConfigError:
        pass
