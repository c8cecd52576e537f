"""The offset of a stream, as a checkpoint keeps it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.spark.source.offsets import StreamOffset

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
AT = st.dictionaries(st.tuples(TOPICS, st.integers(0, 200)), st.integers(0, 2**63 - 1))
OFFSETS = st.builds(
    lambda at, ids, first: StreamOffset(
        at, {topic: id_ for topic, id_ in ids.items() if topic in {topic_ for topic_, _ in at}}, first
    ),
    AT,
    st.dictionaries(TOPICS, st.from_regex(r"[0-9a-f]{32}", fullmatch=True)),
    st.none() | AT,
)


@given(OFFSETS)
def test_offset_survives_json(offset: StreamOffset) -> None:
    assert offset == StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


@given(OFFSETS, st.randoms())
def test_equal_offsets_are_equal_text(offset: StreamOffset, random: Any) -> None:
    items = list(offset.at.items())
    random.shuffle(items)
    assert json.dumps(offset.to_json()) == json.dumps(
        StreamOffset(dict(items), offset.topic_ids, offset.first).to_json()
    )


def test_json_is_sparks_with_topic_ids() -> None:
    offset = StreamOffset({("b", 10): 7, ("b", 9): 5, ("a", 0): 23}, {"a": "0f", "gone": "ff"})
    assert {"a": {"0": 23}, "b": {"9": 5, "10": 7}, "#topics": {"a": "0f"}} == offset.to_json()
    assert ["9", "10"] == list(offset.to_json()["b"])


def test_first_batchs_end_keeps_the_querys_beginning() -> None:
    first = StreamOffset({("a", 0): 25}, first={("a", 0): 20})
    assert {"a": {"0": 25}, "#from": {"a": {"0": 20}}} == first.to_json()
    assert not first.is_initial
    assert StreamOffset({("a", 0): 20}, first={("a", 0): 20}).is_initial
    assert not StreamOffset({("a", 0): 20}).is_initial


@pytest.mark.parametrize(
    "value",
    [
        {"a": 5},
        {"a": {"x": 5}},
        {"a": {"0": "5"}},
        {"a": {"0": -1}},
        {"a": {"0": True}},
        {"#later": {"0": 1}},
        {"#topics": 5},
        {"#from": 5},
        {"#from": {"a": {"0": -1}}},
    ],
)
def test_invalid_offset_is_reported(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is no offset of this source"):
        StreamOffset.from_json(value)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [({"a": "1"}, {"a": "1"}, True), ({"a": "1"}, {"a": "2"}, False), ({}, {"a": "2"}, True), ({"a": "1"}, {}, True)],
)
def test_topic_is_another_only_with_both_ids(before: dict[str, str], now: dict[str, str], same: bool) -> None:
    assert same == StreamOffset({}, before).same_topic("a", StreamOffset({}, now))
