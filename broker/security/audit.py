"""Denials: each is counted, and the first ones are logged. A client that is denied repeats its request several times a second,
and a hostile one thinks of a new resource each time; neither may fill a disk with events.

Of the same denial (who, from where, what, on which resource) one event a minute is logged, of one principal at most
``_EVENTS_OF_PRINCIPAL`` a minute, and in all at most ``_EVENTS``. The next event of that principal says how many were not
logged. Any thread.
"""

from collections.abc import Mapping
from typing import Final

from broker.log import get_logger
from broker.metrics import Labels
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType

log = get_logger("security")

PERIOD_S: Final = 60.0
_EVENTS_OF_PRINCIPAL: Final = 20
_EVENTS: Final = 200
# Principals whose unlogged denials are counted. Beyond that they are only in the metrics.
_PRINCIPALS_MAX: Final = 1000
# Characters of a name in an event: a topic's longest name is 249.
_TEXT_MAX: Final = 249


class Audit:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._counts: dict[Labels, int] = {}  # by operation and type of resource
        # Of the present period.
        self._ends = 0.0  # Clock.monotonic() s
        self._logged: set[tuple[str, str, Operation, ResourceType, str]] = set()
        self._events_of: dict[str, int] = {}
        # By principal, since its last event.
        self._unlogged: dict[str, int] = {}

    def denied(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """A client was refused what it asked for."""
        with self._lock:
            labels = operation.name.lower(), resource_type.name.lower()
            self._counts[labels] = self._counts.get(labels, 0) + 1
            if not self._is_news(principal, (principal, host, operation, resource_type, name[:_TEXT_MAX])):
                if principal in self._unlogged or len(self._unlogged) < _PRINCIPALS_MAX:
                    self._unlogged[principal] = self._unlogged.get(principal, 0) + 1
                return
            unlogged = self._unlogged.pop(principal, 0)
        log.warning(
            "authorization_denied",
            principal=printable(principal),
            host=host,
            operation=labels[0],
            resource_type=labels[1],
            resource=printable(name),
            unlogged=unlogged,
        )

    def counts(self) -> Mapping[Labels, float]:
        """The number of denials by operation and type of resource."""
        with self._lock:
            return {labels: float(count) for labels, count in self._counts.items()}

    def _is_news(self, principal: str, denial: tuple[str, str, Operation, ResourceType, str]) -> bool:
        now = self._clock.monotonic()
        if now >= self._ends:
            self._ends = now + PERIOD_S
            self._logged.clear()
            self._events_of.clear()
        events = self._events_of.get(principal, 0)
        if denial in self._logged or events >= _EVENTS_OF_PRINCIPAL or len(self._logged) >= _EVENTS:
            return False
        self._logged.add(denial)
        self._events_of[principal] = events + 1
        return True


def printable(text: str) -> str:
    """The text without what could forge a line of a log or control a terminal, and not too long."""
    shown = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown)
