"""Topics made because somebody asked for them: in turns, a bounded number of requests, none for clients that have gone."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from broker.kafka.topic_maker import JOBS_MAX, Failures, TopicMaker
from broker.log import Logger
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode


@pytest.fixture(scope="module")
def logs() -> Iterator[LogManager]:
    with Broker() as broker:
        yield broker.server.kafka.logs


class Asker:
    def __init__(self, maker: TopicMaker, *names: str) -> None:
        self.here = True
        self.failures: Failures | None = None
        self.accepted = maker.make(names, lambda: self.here, self._done)

    def _done(self, failures: Failures) -> None:
        assert self.failures is None
        self.failures = failures


def drain(maker: TopicMaker) -> int:
    steps = 0
    while maker.step(0):
        steps += 1
    return steps


def test_requests_take_turns(logs: LogManager) -> None:
    maker = TopicMaker(logs)
    greedy, modest = Asker(maker, "g0", "g1", "g2", "g3"), Asker(maker, "m0")
    maker.step(0)
    maker.step(0)
    assert modest.failures == {}
    assert greedy.failures is None
    assert [logs.topic(name) is not None for name in ("g0", "m0", "g1")] == [True, True, False]
    drain(maker)
    assert greedy.failures == {}
    assert all(logs.topic(f"g{number}") for number in range(4))


def test_nothing_more_is_made_for_who_has_gone(logs: LogManager) -> None:
    maker = TopicMaker(logs)
    asker = Asker(maker, "here", "gone")
    maker.step(0)
    asker.here = False
    drain(maker)
    assert logs.topic("here") is not None
    assert logs.topic("gone") is None
    assert asker.failures is None


def test_what_cannot_be_made_is_told_by_name(logs: LogManager) -> None:
    maker = TopicMaker(logs)
    asker = Asker(maker, "fine.name", "no name!", "fine_name", "fine.name")
    drain(maker)
    assert asker.failures == {
        "no name!": ErrorCode.invalid_topic_exception,
        "fine_name": ErrorCode.invalid_topic_exception,  # collides
    }


def test_only_so_many_requests_wait(logs: LogManager) -> None:
    maker = TopicMaker(logs)
    askers: list[Any] = [Asker(maker, "here") for _ in range(JOBS_MAX + 1)]
    assert [asker.accepted for asker in askers] == [True] * JOBS_MAX + [False]
    drain(maker)
    assert Asker(maker, "here").accepted


def test_stop_during_creation_is_no_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    monkeypatch.setattr(Logger, "error", lambda self, event, **values: errors.append(event))
    with Broker() as broker:
        logs = broker.server.kafka.logs
        logs.make_no_more()
        asker = Asker(maker := TopicMaker(logs), "late")
        drain(maker)
    assert asker.failures == {"late": ErrorCode.kafka_storage_error}
    assert [] == errors
