"""Keys, values and headers as JSON."""

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.views.record_reader import HEADERS_MAX, PART_MAX_BYTES, headers, part, shown
from protocol.kafka.records.records import Record


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, None),
        (b"", {"text": ""}),
        (b"plain", {"text": "plain"}),
        ("grün".encode(), {"text": "grün"}),
        (b'{"a": [1, 2.5, null]}', {"text": '{"a": [1, 2.5, null]}', "json": True}),
        (b"12", {"text": "12"}),
        (b'{"a": NaN}', {"text": '{"a": NaN}'}),
        (b'{"a":', {"text": '{"a":'}),
        (b"tomorrow", {"text": "tomorrow"}),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"\x00\x00\x00\x01avro", {"base64": "AAAAAWF2cm8="}),
    ],
)
def test_a_part_is_text_or_base64(data: bytes | None, expected: Any) -> None:
    assert expected == part(data)


def test_a_long_part_is_cut_between_characters() -> None:
    cut = part("ü".encode() * PART_MAX_BYTES, 101)
    assert {"text": "ü" * 50, "truncated": True} == cut
    binary = part(b"\xff" * 1000, 100)
    assert binary is not None
    assert (100, True) == (len(b64decode(binary["base64"])), binary["truncated"])


@pytest.mark.parametrize("data", [b"[" * 60_000, b"9" * 60_000, b"[" + b"1e9999," * 5000 + b"1]", b'{"a":' * 20_000])
def test_hostile_json_costs_little(data: bytes) -> None:
    json.dumps(part(data))


def test_headers_are_a_bounded_list() -> None:
    assert [{"key": "a", "value": {"text": "1"}}, {"key": "a", "value": None}] == headers([("a", b"1"), ("a", None)])
    many = headers([("x" * 10_000, b"y" * 10_000)] * 1000)
    assert len(many) == HEADERS_MAX
    assert len(json.dumps(many)) < 1_000_000


@given(
    st.builds(
        Record,
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.none() | st.binary(max_size=50),
        st.none() | st.binary(max_size=50) | st.text(max_size=20).map(str.encode),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    )
)
def test_every_record_can_be_shown_as_json(record: Record) -> None:
    row = json.loads(json.dumps(shown(3, record, {})))
    assert (3, record.offset) == (row["partition"], row["offset"])
    if record.value is not None and "text" in row["value"]:
        assert record.value.decode() == row["value"]["text"]
    elif record.value is not None:
        assert record.value == b64decode(row["value"]["base64"])
