"""A broker for clients that do not behave; afterwards it must be as if they had never come."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from broker.log import Logger
from tests.faults.pulsar_faults import LISTENERS, PulsarFaults
from tests.faults.raw import Faults


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the broker reports as errors: nothing that a peer sends is one."""
    events: list[str] = []

    def error(self: Logger, event: str, **values: Any) -> None:
        events.append(f"{event}: {values.get('exc_info', '')!r} {values}")

    monkeypatch.setattr(Logger, "error", error)
    return events


@pytest.fixture
def settings() -> dict[str, Any]:
    """Override in a module or class for another broker."""
    return {}


@pytest.fixture
def faults(settings: dict[str, Any], errors: list[str]) -> Iterator[Faults]:
    with Broker(**settings) as broker:
        attacked = Faults(broker)
        yield attacked
        attacked.close()
        attacked.assert_nothing_is_left()
    assert errors == []


@pytest.fixture
def pulsar(settings: dict[str, Any], errors: list[str]) -> Iterator[PulsarFaults]:
    """With listeners of both protocols and for HTTP."""
    with Broker(listeners=LISTENERS, **settings) as broker:
        attacked = PulsarFaults(Faults(broker))
        yield attacked
        attacked.close()
        attacked.faults.close()
        attacked.faults.assert_nothing_is_left()
    assert errors == []
