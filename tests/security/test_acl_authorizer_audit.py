"""Denials in the log: the first of each kind, so many a minute, and what was left out is counted."""

from typing import Any

import pytest

from broker.security import acl_authorizer as module
from broker.security.acl import Operation, ResourceType
from broker.security.acl_authorizer import PERIOD_S, Audit, printable


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return 0


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **values: Any) -> None:
            assert event == "authorization_denied"
            written.append(values)

    monkeypatch.setattr(module, "log", Log())
    return written


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(clock: Clock) -> Audit:
    return Audit(clock)  # type: ignore[arg-type]


def deny(audit: Audit, name: str = "t", principal: str = "User:eve", times: int = 1) -> None:
    for _ in range(times):
        audit.denied(principal, "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)


def test_same_denial_is_logged_once_a_minute(audit: Audit, clock: Clock, events: list[dict[str, Any]]) -> None:
    deny(audit, times=5)
    assert events == [
        {
            "principal": "User:eve",
            "host": "10.0.0.1",
            "operation": "read",
            "resource_type": "topic",
            "resource": "t",
            "unlogged": 0,
        }
    ]
    clock.now += PERIOD_S
    deny(audit)
    assert [0, 4] == [event["unlogged"] for event in events]
    assert {("read", "topic"): 6.0} == audit.counts()


def test_new_resources_and_principals_do_not_fill_log(audit: Audit, events: list[dict[str, Any]]) -> None:
    for number in range(1000):
        deny(audit, name=f"t{number}")
    assert len(events) == 20
    for number in range(5000):
        deny(audit, principal=f"User:{number}")
    assert len(events) == 200
    assert len(audit._unlogged) <= 1000
    assert {("read", "topic"): 6000.0} == audit.counts()


def test_an_event_cannot_be_forged_by_a_name(audit: Audit, events: list[dict[str, Any]]) -> None:
    deny(audit, name="t\n2026 authorization_denied \x1b[2J", principal="User:\r\u202eevil")
    assert "t\\n2026 authorization_denied \\x1b[2J" == events[0]["resource"]
    assert "User:\\r\\u202eevil" == events[0]["principal"]


def test_a_long_name_is_cut_off() -> None:
    assert "x" * 249 + "..." == printable("x" * 10_000)
    assert "ü ⇒" == printable("ü ⇒")
