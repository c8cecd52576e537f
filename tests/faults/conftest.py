"""A broker for misbehaving clients, which must leave nothing behind."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from broker.log import Logger
from tests.faults.pulsar_faults import LISTENERS, PulsarFaults
from tests.faults.raw import Faults


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that the broker logs: nothing that a peer sends may cause any."""
    events: list[str] = []

    def error(self: Logger, event: str, **values: Any) -> None:
        events.append(f"{event}: {values.get('exc_info', '')!r} {values}")

    monkeypatch.setattr(Logger, "error", error)
    return events


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """``with_settings`` sets others. Override in a module or class for another broker."""
    return getattr(request, "param", {})


def _attacked(broker: Broker, errors: list[str]) -> Iterator[Faults]:
    attacked = Faults(broker)
    yield attacked
    attacked.close()
    attacked.assert_nothing_is_left()
    assert errors == []


@pytest.fixture(scope="module")
def broker_of_all() -> Iterator[Broker]:
    """A broker with listeners of both protocols and HTTP, shared by the tests of a module that send it a frame or two: each
    must leave it unchanged. A broker for each test would take 0.1 s to start."""
    with Broker(listeners=LISTENERS) as broker:
        yield broker


@pytest.fixture
def faults_of_all(broker_of_all: Broker, errors: list[str]) -> Iterator[Faults]:
    yield from _attacked(broker_of_all, errors)


@pytest.fixture
def faults(settings: dict[str, Any], errors: list[str]) -> Iterator[Faults]:
    with Broker(**settings) as broker:
        yield from _attacked(broker, errors)
    assert errors == []


@pytest.fixture
def pulsar(settings: dict[str, Any], errors: list[str]) -> Iterator[PulsarFaults]:
    """With listeners of both protocols and for HTTP."""
    with Broker(listeners=LISTENERS, **settings) as broker:
        for faults in _attacked(broker, errors):
            attacked = PulsarFaults(faults)
            yield attacked
            attacked.close()
    assert errors == []
