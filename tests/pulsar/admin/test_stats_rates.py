"""Rates in statistics: of a whole broker, with a clock that a test sets."""

from typing import Any

import pytest

from broker.pulsar.admin.stats import Rates
from tests.pulsar.admin.harness import PERSISTENT, Admin
from tests.pulsar.clients import client


class Waker:
    """Does at once what it is asked for, in order."""

    def __init__(self) -> None:
        self._works: list[Any] = []

    def line(self) -> "Waker":
        return self

    def call(self, work: Any) -> None:
        self._works.append(work)

    def run(self) -> None:
        while self._works:
            self._works.pop(0)()


class Scene:
    """The topics of a broker, and a clock and a timer that stand still."""

    def __init__(self, admin: Admin) -> None:
        self.topics, self.nonpersistent = admin.context.topics, admin.context.nonpersistent
        self.waker = Waker()
        self.subscriptions = self
        self.clock = self.timer = self
        self.now_s = 1000.0
        self.due: list[tuple[float, Any]] = []

    def monotonic(self) -> float:
        return self.now_s

    def time_ms(self) -> int:
        return int(self.now_s * 1000)

    def at(self, when: float, work: Any) -> None:
        self.due.append((when, work))

    def wait(self, seconds: float) -> None:
        end = self.now_s + seconds
        while self.due and self.due[0][0] <= end:
            self.now_s, work = self.due.pop(0)
            work()
            self.waker.run()
        self.now_s = end


@pytest.fixture
def scene(admin: Admin) -> Scene:
    return Scene(admin)


def test_rate_covers_last_seconds_and_starts_as_average(admin: Admin, scene: Scene) -> None:
    rates = Rates(scene)  # type: ignore[arg-type]
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("t")
        (one,) = admin.topic("t").producers
        for _ in range(20):
            producer.send(bytes(100))
        messages, size = rates.of(one, 990_000)  # type: ignore[arg-type]
        assert 2.0 == messages
        assert 200 < size < 400
        scene.waker.run()
        scene.wait(15)
        assert [0.0, 0.0] == rates.of(one, 990_000)  # type: ignore[arg-type]
        for _ in range(30):
            producer.send(bytes(100))
        scene.wait(5)  # there is a sample at 10 s; now is 20 s after the first
        assert 1.5 <= rates.of(one, 990_000)[0] <= 3.0  # type: ignore[arg-type]
        scene.wait(30)
        assert 0.0 == rates.of(one, 990_000)[0]  # type: ignore[arg-type]


def test_who_is_not_asked_takes_no_samples(admin: Admin, scene: Scene) -> None:
    rates = Rates(scene)  # type: ignore[arg-type]
    assert not scene.due
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("t")
        (one,) = admin.topic("t").producers
        rates.of(one, 0)  # type: ignore[arg-type]
        scene.waker.run()
        assert scene.due
        assert len(rates._samples)
        scene.wait(400)
        assert not scene.due
        assert not len(rates._samples)


def test_what_has_just_begun_has_no_giant_rate(admin: Admin, scene: Scene) -> None:
    rates = Rates(scene)  # type: ignore[arg-type]
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("t").send(b"x")
        (one,) = admin.topic("t").producers
        assert 1.0 == rates.of(one, 1_000_000)[0]  # type: ignore[arg-type]
        assert 1.0 == rates.of(one, 2_000_000)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_the_statistics_show_them(admin: Admin, domain: str) -> None:
    base = PERSISTENT.replace("/persistent/", f"/{domain}/")
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe(f"{domain}://public/default/t", "s")
        producer = pulsar.create_producer(f"{domain}://public/default/t")
        producer.send(bytes(1000))
        consumer.receive(30_000)
        stats = admin.get(f"{base}/t/stats")
        assert stats["msgRateIn"] > 0
        assert stats["averageMsgSize"] > 1000
        assert stats["msgThroughputOut"] > 0
        assert stats["publishers"][0]["msgRateIn"] > 0
        assert stats["subscriptions"]["s"]["consumers"][0]["msgRateOut"] > 0
