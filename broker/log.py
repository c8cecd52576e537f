"""The broker's events, with names and values: a line of text each on a terminal, JSON elsewhere.

Events are for rare things: start and stop, errors, topics created and deleted (an enabled JSON event costs some 8 µs). Requests
are counted in metrics instead. Any thread may log; an event is one write to standard error.

structlog is imported when the first event is written: the import takes 80 ms, and an embedded broker in a test rarely logs
anything. It is never configured globally, because the broker may run inside another program.

The last events of this process stay in memory for the HTTP API: at most 1,000 events and some 2 MB. They have the values of the
log, cut if they are long; like the log they hold no secrets. Any thread; an append and a copy of a deque are atomic.

Tests: tests/http/api/test_live_events.py.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
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


# See `EventLimit`: 10 at once are enough to understand the situation, and 6 a minute are 2.6 MB a day.
_BURST = 10
_EVERY_S = 10.0
# See `FaultLog`.
_FAULT_EVERY_S = 60.0
_FAULTS_MAX = 1000

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# An embedded broker reports warnings and errors only; `broker serve` configures more.
_level = LEVELS["warning"]
_format = "auto"
_colours = False
_write_line: Callable[[str], None] | None = None
_backend: Any = None


class Logger:
    """Events of one part of the broker: ``log.info("topic_created", topic="orders", partitions=3)``."""

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def debug(self, event: str, **values: Any) -> None:
        if _level <= 10:
            _write().debug(event, part=self._part, **values)

    def info(self, event: str, **values: Any) -> None:
        if _level <= 20:
            _write().info(event, part=self._part, **values)

    def warning(self, event: str, **values: Any) -> None:
        if _level <= 30:
            _write().warning(event, part=self._part, **values)

    def error(self, event: str, **values: Any) -> None:
        """``exc_info=error`` (or True while handling one) adds the traceback."""
        _write().error(event, part=self._part, **values)


def get_logger(part: str) -> Logger:
    """``part``: the folder or module that logs, e.g. ``"storage"``."""
    return Logger(part)


def configure(
    level: str = "info",
    format: str = "auto",
    *,
    colours: bool = False,
    write_line: Callable[[str], None] | None = None,
) -> Callable[[], None]:
    """For the whole process. ``format``: text, json, or auto (text on a terminal). ``colours``: in text. ``write_line`` takes the
    lines in place of standard error; it must not raise. Returns a function that puts back what was in force before."""
    global _level, _format, _colours, _write_line, _backend
    before = _level, _format, _colours, _write_line
    _level = LEVELS[level]
    _format = format
    _colours = colours
    _write_line = write_line
    _backend = None

    def put_back() -> None:
        global _level, _format, _colours, _write_line, _backend
        _level, _format, _colours, _write_line = before
        _backend = None

    return put_back


class EventLimit:
    """A limit for events that a client can cause at will: ``burst`` of them, and then one in ``every_s``.

    Threads that call it at the same time may write an extra event.
    """

    __slots__ = ("_burst", "_every_s", "_full_at", "_left_out")

    def __init__(self, burst: int = _BURST, every_s: float = _EVERY_S) -> None:
        self._burst, self._every_s = burst, every_s
        self._full_at = 0.0  # when (monotonic, s) all of the burst is available again
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """The number of events left out since the last event written; None: leave this event out, too."""
        full_at = max(self._full_at, now)
        if full_at - now > (self._burst - 1) * self._every_s:
            self._left_out += 1
            return None
        self._full_at = full_at + self._every_s
        left_out, self._left_out = self._left_out, 0
        return left_out


class FaultLog:
    """Writes that the machine failed requests about a partition. On a full disk clients repeat a refused request several times a
    second, so each fault is written once in a minute. Any thread."""

    __slots__ = ("_log", "_quiet_until")

    def __init__(self, log: Logger) -> None:
        self._log = log
        # By (event, topic, partition): the time (monotonic, s) before which this is not written again.
        self._quiet_until: dict[tuple[str, str, int], float] = {}

    def report(self, event: str, topic: str, partition: int, error: Exception, now: float) -> None:
        key = (event, topic, partition)
        if now < self._quiet_until.get(key, 0.0):
            return
        if len(self._quiet_until) >= _FAULTS_MAX:
            self._quiet_until.clear()
        self._quiet_until[key] = now + _FAULT_EVERY_S
        self._log.error(event, topic=topic, partition=partition, error=str(error))


class _StandardError:
    """Where structlog writes. Looks up ``sys.stderr`` each time, because pytest and other programs replace it."""

    def msg(self, message: str) -> None:
        try:
            sys.stderr.write(message + "\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass  # standard error is closed, and nothing else can report that; the broker goes on

    debug = info = warning = error = msg


class _Lines:
    """The same for a function that takes lines."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self.msg = self.debug = self.info = self.warning = self.error = write_line


class _Unformatted:
    """The bare event, as long as structlog cannot be imported because the process has no descriptor left."""

    def msg(self, event: str, **values: Any) -> None:
        write = _StandardError().msg if _write_line is None else _write_line
        write(" ".join([event, *(f"{name}={value!r}" for name, value in values.items())]))

    debug = info = warning = error = msg


def _for_people(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Seconds are precise enough, and the part of the broker stands beside the event."""
    fields["timestamp"] = fields["timestamp"][:19].replace("T", " ")
    fields["logger"] = fields.pop("part", "broker")
    return fields


def _write() -> Any:
    global _backend
    if _backend is None:
        try:
            _backend = _make_backend()
        except (OSError, ImportError):
            # Reporting an error must not end a thread. The next event tries again.
            return _Unformatted()
    return _backend


def _make_backend() -> Any:
    import structlog

    write_line = _write_line
    terminal = write_line is None and sys.stderr is not None and sys.stderr.isatty()
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        keep,
    ]
    if _format == "text" or (_format == "auto" and terminal):
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(
            colors=_colours, exception_formatter=plain, pad_event_to=0, sort_keys=False
        )
        ending: list[Any] = [_for_people, renderer]
    else:
        # default=str: a value that JSON does not know must not turn an event into an error.
        ending = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return structlog.wrap_logger(
        _StandardError() if write_line is None else _Lines(write_line),
        processors=shared + ending,
        # Logger has compared the level already, without a call into structlog.
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
