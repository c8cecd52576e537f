"""The names that a topic may have."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.config import LONGEST_NAME, TopicInfo, check_name, collision_key
from broker.storage.partition_dir import directory_name, parse_name
from broker.storage.refusals import InvalidTopicName


@pytest.mark.parametrize("name", ["t", "A.b_c-9", "...", "-", "x" * LONGEST_NAME])
def test_a_name_that_kafka_allows(name: str) -> None:
    check_name(name)
    assert parse_name(directory_name(name, 3)) == (name, 3)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "t\n", "x" * (LONGEST_NAME + 1)])
def test_a_name_that_kafka_does_not_allow(name: str) -> None:
    with pytest.raises(InvalidTopicName, match="is not allowed"):
        check_name(name)


def test_the_message_does_not_grow_with_the_name() -> None:
    with pytest.raises(InvalidTopicName) as refused:
        check_name("x" * 1_000_000)
    assert len(refused.value.message) < 500


@given(st.text("ab._", min_size=1, max_size=5), st.text("ab._", min_size=1, max_size=5))
def test_names_that_differ_in_dots_and_underscores_collide(first: str, second: str) -> None:
    same = len(first) == len(second) and all(a == b or {a, b} == {".", "_"} for a, b in zip(first, second, strict=True))
    assert (collision_key(first) == collision_key(second)) is same


def test_the_catalogue_keeps_all_but_the_version() -> None:
    info = TopicInfo("t", uuid.UUID(int=7), 3, {"retention.ms": "5"}, version=9)
    row = info.row()
    assert TopicInfo(row.name, row.topic_id, row.partitions, row.configs) == TopicInfo(
        "t", uuid.UUID(int=7), 3, {"retention.ms": "5"}
    )
