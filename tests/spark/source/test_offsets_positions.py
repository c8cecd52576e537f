"""The texts that a user may give for the start and the end of a read."""

import contextlib
import datetime
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.values import EARLIEST, LATEST
from broker.errors import ConfigError
from broker.spark.source import offsets
from broker.spark.source.offsets import Ago, Back, Edge, Offsets, Since, Timestamps

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


def nested(at: dict[tuple[str, int], int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in at.items():
        topics.setdefault(topic, {})[str(partition)] = value
    return json.dumps(topics)


@given(st.dictionaries(st.tuples(TOPICS, st.integers(0, 999)), st.integers(-2, 2**63 - 1), max_size=8))
def test_offsets_by_partition_are_read_as_by_spark(at: dict[tuple[str, int], int]) -> None:
    assert Offsets(at) == offsets.parse_offsets("startingOffsets", nested(at), forbidden=None)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Edge(EARLIEST)),
        (" Latest ", Edge(LATEST)),
        ("-100 offsets", Back(100)),
        ("-1 offset", Back(1)),
        ("-7 records", Back(7)),
        ("-10 minutes", Ago(600_000)),
        ("-1h", Ago(3_600_000)),
        ("-2 days", Ago(172_800_000)),
        ("-500ms", Ago(500)),
        ('{"orders": {"0": 5}, "#topics": {"orders": "abc"}}', Offsets({("orders", 0): 5})),
    ],
)
def test_offsets(text: str, position: object) -> None:
    assert position == offsets.parse_offsets("startingOffsets", text, forbidden=None)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1700000000000", Since(1_700_000_000_000)),
        ("1970-01-01T00:00:01.5Z", Since(1500)),
        ("1970-01-01T01:00:00+01:00", Since(0)),
        ("-15m", Ago(900_000)),
    ],
)
def test_timestamps(text: str, position: object) -> None:
    assert position == offsets.parse_timestamp("startingTimestamp", text)


@given(st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.timezones()))
def test_time_with_zone_is_in_milliseconds(moment: datetime.datetime) -> None:
    since = offsets.parse_timestamp("startingTimestamp", moment.isoformat())
    assert Since(int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000) == since


def test_timestamps_by_partition() -> None:
    assert Timestamps({("a", 0): 5}) == offsets.parse_timestamps("startingOffsetsByTimestamp", '{"a": {"0": 5}}')


def test_assignment_names_each_partition_once() -> None:
    assert (("a", 0), ("a", 2), ("b", 1)) == offsets.parse_assignment("assign", '{"b": [1], "a": [2, 0, 2]}')


@pytest.mark.parametrize(
    "text",
    [
        "earlyest",
        "5",
        "",
        "[]",
        "{",
        '{"a": 5}',
        '{"a": {"x": 5}}',
        '{"a": {"0": "5"}}',
        '{"a": {"0": true}}',
        '{"a": {"0": -3}}',
        '{"a": {"0": 1.5}}',
        '{"a": {"0": 9223372036854775808}}',
        "-10 parsecs",
        "-offsets",
        "- ",
    ],
)
def test_invalid_offset_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^startingOffsets .*\.$"):
        offsets.parse_offsets("startingOffsets", text, forbidden=None)


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21T10:00:00", "", "1.5", "99999999999999999999"])
def test_invalid_time_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^startingTimestamp must be .*\.$"):
        offsets.parse_timestamp("startingTimestamp", text)


@pytest.mark.parametrize("text", ["{}", "[]", "orders", '{"a": 0}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": []}'])
def test_invalid_assignment_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^assign .*\.$"):
        offsets.parse_assignment("assign", text)


@pytest.mark.parametrize("text", ["latest", '{"a": {"0": 3, "1": -1}}'])
def test_batch_read_does_not_begin_at_the_end(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("startingOffsets of a batch read cannot be latest (-1)")):
        offsets.parse_offsets("startingOffsets", text, forbidden=LATEST)


@given(st.text())
def test_any_text_is_position_or_config_error(text: str) -> None:
    for parse in (
        lambda: offsets.parse_offsets("startingOffsets", text, forbidden=None),
        lambda: offsets.parse_timestamp("startingTimestamp", text),
        lambda: offsets.parse_assignment("assign", text),
    ):
        with contextlib.suppress(ConfigError):
            parse()
