from typing import Any

import pytest

from broker.pulsar.connection import PulsarConnection
from broker.pulsar.keep_alive import KeepAlive
from broker.runtime.timers import Timer
from protocol.pulsar.deliveries import PING
from tests.pulsar.subscriptions.stage import Link
from tests.storage.helpers import HandClock

INTERVAL_S = 30.0


class Outbox:
    def __init__(self) -> None:
        self.pings = 0
        self.closed = 0

    def call(self, link: Any, work: Any) -> None:
        work()

    def push(self, link: Any, parts: Any) -> None:
        assert [PING] == list(parts)
        self.pings += 1

    def close(self, request: Any) -> None:
        self.closed += 1


class Stage:
    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.clock = HandClock()
        self.timer = Timer(self.clock)  # type: ignore[arg-type]
        self.keep_alive = KeepAlive(self.clock, self.timer, interval_s)  # type: ignore[arg-type]
        self.outbox = Outbox()
        self.state = PulsarConnection(Link(), self.outbox)  # type: ignore[arg-type]
        self.state.heard_at = self.clock.monotonic()
        self.keep_alive.watch(self.state)

    def pass_time(self, seconds: float, *, heard: bool = False) -> None:
        for _ in range(int(seconds)):
            self.clock.sleep_ms(1000)
            if heard:
                self.state.heard_at = self.clock.monotonic()
            self.timer.step(0)


def test_a_client_that_talks_gets_no_ping() -> None:
    stage = Stage()
    stage.pass_time(600, heard=True)
    assert (0, 0) == (stage.outbox.pings, stage.outbox.closed)


def test_silent_client_is_pinged_then_disconnected() -> None:
    stage = Stage()
    stage.pass_time(INTERVAL_S - 1)
    assert 0 == stage.outbox.pings
    stage.pass_time(INTERVAL_S / 2 + 2)
    assert (1, 0) == (stage.outbox.pings, stage.outbox.closed)
    stage.pass_time(2 * INTERVAL_S)
    assert 1 == stage.outbox.pings
    assert stage.outbox.closed


def test_a_client_that_answers_its_pings_stays() -> None:
    stage = Stage()
    for _ in range(10):
        pings = stage.outbox.pings
        while stage.outbox.pings == pings:
            stage.pass_time(1)
        stage.state.heard_at = stage.clock.monotonic()
    assert 0 == stage.outbox.closed


def test_failing_connection_does_not_stop_other_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()

    def fail(*_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("nothing can be pushed")

    monkeypatch.setattr(stage.outbox, "push", fail)
    stage.pass_time(4 * INTERVAL_S)
    assert stage.outbox.closed


def test_client_waiting_for_disk_is_not_disconnected() -> None:
    stage = Stage()
    stage.state.parked = lambda: None
    stage.pass_time(600)
    assert (0, 0) == (stage.outbox.pings, stage.outbox.closed)


def test_the_timer_rests_when_nobody_is_connected() -> None:
    stage = Stage()
    stage.keep_alive.forget(stage.state)
    stage.pass_time(100)
    assert 0 == len(stage.timer)
    stage.keep_alive.watch(stage.state)
    assert 1 == len(stage.timer)


def test_it_can_be_switched_off() -> None:
    stage = Stage(interval_s=0)
    assert 0 == len(stage.timer)
