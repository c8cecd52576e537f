"""JSON lines: every record that is printed is read as the same record."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.record_format import json_bytes, parse_record, record_line

nullable = st.none() | st.binary(max_size=30) | st.text(max_size=10).map(lambda text: text.encode())
named = st.binary(max_size=10)
headers = st.lists(st.tuples(named, nullable), max_size=3)


@given(nullable, nullable, headers, st.integers(0, 2**31 - 1), st.integers(0, 2**62))
def test_every_record_comes_back(
    key: bytes | None, value: bytes | None, pairs: list[tuple[bytes, bytes | None]], partition: int, time: int
) -> None:
    line = record_line("t", partition, 3, time, "2026-01-01T00:00:00Z", key, value, pairs)
    assert 1 == line.count(b"\n")
    assert (key, value, pairs, partition, time) == tuple(parse_record(line))


def test_text_is_readable_and_other_bytes_are_base64() -> None:
    assert "grün" == json_bytes("grün".encode())
    assert {"base64": "/w=="} == json_bytes(b"\xff")


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ({"id": 1, "n": "ü"}, '{"id":1,"n":"ü"}'),
        ([1, 2], "[1,2]"),
        (7, "7"),
        (True, "true"),
        ({"base64": 1}, '{"base64":1}'),
    ],
)
def test_other_values_are_sent_as_json(value: object, sent: str) -> None:
    assert sent.encode() == parse_record(json.dumps({"value": value}).encode()).value


def test_headers_may_be_object_and_time_text() -> None:
    record = parse_record(b'{"value": "x", "headers": {"a": "1", "b": null}, "time": "1970-01-01T00:00:01Z"}')
    assert ([(b"a", b"1"), (b"b", None)], 1000) == (record.headers, record.timestamp_ms)
    assert parse_record(b'{"value": "x", "timestamp": -1}').timestamp_ms is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"one", "no JSON"),
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff", "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"key": "a"}', 'no "value"'),
        (b'{"value": "\\ud800"}', "stands for no bytes"),
        (b'{"value": {"base64": "?"}}', "stands for no bytes"),
        (b'{"value": "", "partition": -1}', "partition"),
        (b'{"value": "", "partition": true}', "partition"),
        (b'{"value": "", "timestamp": 1.5}', "timestamp"),
        (b'{"value": "", "timestamp": 10000000000000000000}', "timestamp"),
        (b'{"value": "", "time": "noon"}', "time"),
        (b'{"value": "", "time": 5}', "time"),
        (b'{"value": "", "headers": 5}', "list of pairs"),
        (b'{"value": "", "headers": ["a"]}', "list of pairs"),
        (b'{"value": "", "headers": [[null, "a"]]}', "no name"),
    ],
)
def test_bad_line_is_explained(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_record(line)


@given(st.binary(max_size=60))
def test_no_line_raises_anything_else(line: bytes) -> None:
    try:
        parse_record(line)
    except ValueError:
        pass
