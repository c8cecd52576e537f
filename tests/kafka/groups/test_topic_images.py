from collections.abc import Callable
from uuid import UUID

import pytest

from broker.kafka.groups.topic_images import TopicImages
from broker.runtime.timers import Timer
from broker.storage.config import TopicInfo
from tests.kafka.groups.group_harness import TestClock

A, B, C = (UUID(int=number) for number in (1, 2, 3))


class Topics:
    def __init__(self) -> None:
        self.infos = {name: TopicInfo(name, topic_id, 3, {}) for name, topic_id in (("a", A), ("b", B))}
        self.clock = TestClock()
        self.timer = Timer(self.clock)
        self.soon: list[Callable[[], None]] = []
        self.told: list[frozenset[str]] = []
        self.images = TopicImages(self.infos.get, self.soon.append, self.clock, self.timer)
        self.images.load(self.infos.values())
        self.images.on_change.append(self.told.append)

    def change(self, name: str, topic_id: UUID | None, partitions: int = 3) -> None:
        if topic_id is None:
            del self.infos[name]
        else:
            self.infos[name] = TopicInfo(name, topic_id, partitions, {})
        self.images.changed(name)

    def run(self) -> None:
        self.clock.now += 1
        self.timer.step(0)
        soon, self.soon[:] = list(self.soon), []
        for each in soon:
            each()

    @property
    def seen(self) -> dict[str, tuple[UUID, int]]:
        now = self.images.now
        assert now.name_of == {info.topic_id: name for name, info in now.by_name.items()}
        return {name: (info.topic_id, info.partitions) for name, info in now.by_name.items()}


@pytest.fixture
def topics() -> Topics:
    return Topics()


def test_topics_of_the_start_are_seen(topics: Topics) -> None:
    assert topics.seen == {"a": (A, 3), "b": (B, 3)}
    assert topics.images.now.generation == 1


def test_created_grown_and_deleted_topics_are_seen(topics: Topics) -> None:
    before = topics.images.now
    topics.change("c", C)
    topics.change("a", A, 5)
    topics.change("b", None)
    topics.run()
    assert topics.seen == {"a": (A, 5), "c": (C, 3)}
    assert topics.told == [frozenset("abc")]
    assert topics.images.now.generation == before.generation + 1
    assert set(before.by_name) == {"a", "b"}, "an image is never changed"


def test_recreated_topic_is_another_topic(topics: Topics) -> None:
    topics.change("a", None)
    topics.change("a", C)
    topics.run()
    assert topics.seen == {"a": (C, 3), "b": (B, 3)}
    topics.change("a", None)
    topics.run()
    assert topics.seen == {"b": (B, 3)}


def test_many_changes_make_few_images(topics: Topics) -> None:
    for number in range(100):
        topics.change(f"t{number}", UUID(int=100 + number))
        assert len(topics.soon) == 1
    topics.run()
    assert len(topics.seen) == 102
    assert topics.images.now.generation == 2


def test_just_created_topic_is_seen_on_request(topics: Topics) -> None:
    topics.change("c", C)
    assert "c" not in topics.images.now.by_name
    assert topics.images.current().name_of[C] == "c"
    assert topics.images.current() is topics.images.now
    topics.run()
    assert topics.told == [frozenset("c")]
    assert topics.images.now.generation == 2


def test_next_image_is_not_made_at_once(topics: Topics) -> None:
    topics.change("c", C)
    topics.soon.pop()()
    topics.change("a", None)
    assert not topics.soon
    topics.timer.step(0)
    assert not topics.soon
    topics.run()
    assert set(topics.seen) == {"b", "c"}
