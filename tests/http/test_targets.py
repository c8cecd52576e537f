"""Paths, queries and hosts as they are written in requests."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.http.targets import decoded, host_of, parse_query, parse_target
from broker.web.routes import HttpError


@given(st.lists(st.text(min_size=1), min_size=1), st.dictionaries(st.text(), st.text(), max_size=5))
def test_encoded_text_is_decoded(segments: list[str], query: dict[str, str]) -> None:
    def encoded(text: str) -> str:
        return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))

    if any("\ud800" <= character <= "\udfff" for text in (*segments, *query, *query.values()) for character in text):
        return
    target = (
        "/" + "/".join(map(encoded, segments)) + "?" + "&".join(f"{encoded(k)}={encoded(v)}" for k, v in query.items())
    )
    parsed = parse_target(target.encode())
    assert segments == list(parsed.segments)
    assert {k: v for k, v in query.items() if k or v} == {k: v for k, v in parsed.query.items() if k or v}


@given(st.binary())
def test_no_target_raises_anything_but_a_refusal(target: bytes) -> None:
    with suppress(HttpError):
        parse_target(target)


def test_a_percent_sign_that_escapes_nothing_stays() -> None:
    assert "100%" == decoded("100%")
    assert "%zz" == decoded("%zz")
    assert "%/" == decoded("%25%2F")


def test_a_slash_at_the_end_changes_nothing() -> None:
    assert ["a", "b"] == parse_target(b"/a/b/").segments
    assert [""] == parse_target(b"/").segments
    assert ["a", "", "b"] == parse_target(b"/a//b").segments


def test_the_last_of_two_parameters_wins() -> None:
    assert {"a": "2", "b": ""} == parse_query("a=1&b&a=2&&")


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8080", "localhost"),
        ("localhost.:8080", "localhost"),
        ("[::1]:8080", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.1:", "127.0.0.1"),
        ("a_b.example", "a_b.example"),
        ("::1", None),
        ("user@localhost", None),
        ("localhost:80:80", None),
        ("localhost:80x", None),
        ("", None),
        ("[localhost]", None),
        ("localhost/", None),
    ],
)
def test_the_host_of_an_authority(authority: str, host: str | None) -> None:
    assert host == host_of(authority)
