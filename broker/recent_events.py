"""The last events of this process, in memory, as the HTTP API shows them: the log keeps each event that it writes.

The values are those that the log writes, cut where they are long; like the log they hold no secrets. At most 1,000 events and
some 2 MB. Any thread; an append and a copy of a deque are atomic.

Tests: tests/http/api/test_events.py.
"""

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import attrs

EVENTS_MAX: Final = 1000
_FIELDS_MAX = 12
_NAME_MAX = 40
_VALUE_MAX = 160
_NOT_FIELDS = frozenset({"event", "level", "timestamp", "exc_info", "stack_info"})


@attrs.frozen
class RecentEvent:
    time_ms: int
    level: str
    event: str
    fields: Mapping[str, str | int | float | bool | None]


_events: deque[RecentEvent] = deque(maxlen=EVENTS_MAX)


def keep(_logger: object, _method: str, values: Any) -> Any:
    """A processor of structlog: keeps the event and passes it on."""
    _events.append(_event(values))
    return values


def recent() -> list[RecentEvent]:
    """The oldest first."""
    return list(_events.copy())


def _event(values: Mapping[str, Any]) -> RecentEvent:
    fields = {str(name)[:_NAME_MAX]: _shown(value) for name, value in values.items() if name not in _NOT_FIELDS}
    error = values.get("exc_info")
    if isinstance(error, BaseException):
        fields["error"] = f"{type(error).__name__}: {error}"[:_VALUE_MAX]
    fields = dict(list(fields.items())[:_FIELDS_MAX])
    time_ms = int(datetime.fromisoformat(values["timestamp"]).timestamp() * 1000)
    return RecentEvent(time_ms, values["level"], str(values["event"])[:_VALUE_MAX], fields)


def _shown(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)[:_VALUE_MAX]
    return str(value)[:_VALUE_MAX]
