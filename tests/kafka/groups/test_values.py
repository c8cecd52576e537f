"""The topics of a group, from the metadata of its members."""

import hypothesis.strategies as st
from hypothesis import given

from broker.kafka.groups.values import subscribed_topics
from protocol.kafka.messages.consumer_protocol import encode_subscription

topics = st.lists(st.text(min_size=1, max_size=10), max_size=4)


@given(of_members=st.lists(topics, max_size=4), version=st.integers(0, 3))
def test_group_reads_all_topics_of_its_members(of_members: list[list[str]], version: int) -> None:
    metadata = [bytes(encode_subscription(each, version=version)) for each in of_members]
    assert subscribed_topics(metadata) == {topic for each in of_members for topic in each}


def test_later_versions_are_read_as_far_as_compatible() -> None:
    metadata = bytes(encode_subscription(["orders"], version=0))
    assert subscribed_topics([b"\x00\x63" + metadata[2:] + b"whatever comes"]) == {"orders"}


@given(garbage=st.binary(max_size=30))
def test_garbage_never_raises_an_exception(garbage: bytes) -> None:
    assert subscribed_topics([garbage]) is None or isinstance(subscribed_topics([garbage]), frozenset)


def test_unreadable_member_makes_all_topics_unknown() -> None:
    assert subscribed_topics([bytes(encode_subscription(["orders"])), b"\0"]) is None
