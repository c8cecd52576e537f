"""Metadata of named topics: each is answered once, unknown ones are made aside, and nobody waits for ever."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.topic_maker import NAMES_MAX
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.waiting import wait_for


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def ask(kafka: Kafka, *names: str, create: bool = True) -> dict[str, int]:
    """Error codes by topic; each may be there once."""
    topics = kafka.ask(
        ApiKey.METADATA, 9, topics=[{"name": name} for name in names], allow_auto_topic_creation=create
    ).topics
    assert len({topic.name for topic in topics}) == len(topics)
    return {topic.name: topic.error_code for topic in topics}


class Busy:
    """The topic maker has its hands full until the end of the block."""

    def __init__(self, kafka: Kafka) -> None:
        self._maker = kafka.inside.topic_maker
        self._free = threading.Event()
        self._began = threading.Event()

    def _wait(self, _: Any) -> None:
        self._began.set()
        self._free.wait(60)

    def __enter__(self) -> None:
        assert self._maker.make([], lambda: True, self._wait)
        assert self._began.wait(60)

    def __exit__(self, *_: object) -> None:
        self._free.set()


def test_repeated_topic_is_answered_once(kafka: Kafka) -> None:
    wide, other = kafka.topic(50), kafka.topic(1)
    assert ask(kafka, wide, other, *[wide] * 500) == {wide: 0, other: 0}


def test_unknown_topics_exist_when_their_metadata_is_answered(kafka: Kafka) -> None:
    known = kafka.topic()
    assert ask(kafka, "new-1", known, "new-2", "no name!") == {
        "new-1": 0,
        known: 0,
        "new-2": 0,
        "no name!": ErrorCode.invalid_topic_exception,
    }
    assert kafka.inside.logs.topic("new-1") is not None


def test_client_without_auto_creation_learns_of_missing_topic(kafka: Kafka) -> None:
    names = [f"none-{number}" for number in range(30)]
    assert ask(kafka, *names, "no name!", create=False) == {
        **dict.fromkeys(names, ErrorCode.unknown_topic_or_partition),
        "no name!": ErrorCode.invalid_topic_exception,
    }
    assert not any(kafka.inside.logs.topic(name) for name in names)


def test_request_creates_a_bounded_number_of_topics(kafka: Kafka) -> None:
    names = [f"many-{number}" for number in range(NAMES_MAX + 20)]
    answer: dict[str, int] = {}
    for _ in range(20):  # it may be told sooner than all are made
        answer = ask(kafka, *names)
        if not any(answer.values()):
            break
        assert set(answer.values()) <= {0, ErrorCode.leader_not_available}
    else:
        raise AssertionError(answer)


def test_slow_creation_has_the_client_ask_again(kafka: Kafka) -> None:
    known = kafka.topic()
    with Busy(kafka):
        assert ask(kafka, "slow", known) == {"slow": ErrorCode.leader_not_available, known: 0}
        # Everything else goes on: no handler waits.
        with Beside(kafka) as beside:
            assert ask(beside, known) == {known: 0}
    wait_for(lambda: kafka.inside.logs.topic("slow") is not None)
    assert ask(kafka, "slow") == {"slow": 0}


def test_nothing_is_created_for_a_disconnected_client(kafka: Kafka) -> None:
    def connections() -> int:
        return sum(len(processor.connections) for processor in kafka.broker.server.sockets.processors)

    # The connection of the fixture may still be on its way to a processor.
    wait_for(lambda: connections() == 1)
    with Busy(kafka):
        with Beside(kafka) as gone:
            gone.tell(ApiKey.METADATA, 9, topics=[{"name": "gone"}], allow_auto_topic_creation=True)
            wait_for(lambda: kafka.inside.topic_maker.waiting == 2)
            assert connections() == 2
        wait_for(lambda: connections() == 1)
    wait_for(lambda: kafka.inside.topic_maker.waiting == 0)
    assert ask(kafka, "later") == {"later": 0}
    assert kafka.inside.logs.topic("gone") is None


def test_what_many_connections_are_told_is_kept_once(kafka: Kafka) -> None:
    topic = kafka.topic(600)
    request = control.encode_request(ApiKey.METADATA, 9, 7, "x", {"topics": [{"name": topic}]})
    first = kafka.exchange(request)
    assert len(kafka.inside.metadata_cache) == 1
    assert len(first) <= kafka.inside.metadata_cache.size_bytes <= len(first) + 100
    assert kafka.exchange(request) == first
    # A question of many names is not kept: the question itself would take the room.
    ask(kafka, topic, *[f"{number:0100}" for number in range(100)], create=False)
    assert len(kafka.inside.metadata_cache) == 1
