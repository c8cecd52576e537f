"""Finds entries by message id or time (``offset_of``, ``locate``, ...), and probes whether a connection is alive (``Liveness``).

Entries are looked up where a subscription starts, for a seek, and for the last message id. A message id is (ledger, entry): the
ledger is the topic's generation, the entry an offset. Any offset that an entry covers means that entry, because clients compute
with ids. Nothing blocks: entries that are not in the cache are read on a reader's thread, which then calls ``done``. Only
``offset_at``, which finds an offset by time, blocks; it runs on a handler.

A connection can die without being closed. When its client returns, the client's old consumer still occupies an exclusive
subscription. So ``Liveness`` sends a PING on the old connection, which every client answers with PONG, and closes the connection
if no answer comes in time.

Any thread.

Tests: tests/pulsar/subscriptions/test_consuming.py,
tests/pulsar/subscriptions/test_operations.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.log import EventLimit, get_logger
from broker.network.service import Request
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.entry import Entry
from broker.pulsar.topics.topic import Topic
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from protocol.pulsar.frames import write_command
from protocol.pulsar.metadata import MINUS_1
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing, MessageIdData

# The offsets of a window in the backward search for the last entry, and the maximum number of windows. The log may end with ends
# of transactions and aborted messages.
_WINDOW = 64
_WINDOWS = 64

Located = Callable[[Entry | Exception | None], None]


def offset_of(topic: Topic, message_id: MessageIdData) -> int:
    """The offset that the id names; the start for "earliest" or an older generation of the topic, the end for "latest" or a newer
    generation."""
    if MINUS_1 in (message_id.ledgerId, message_id.entryId):
        return topic.log.log_start_offset
    return offset_in(topic, message_id.ledgerId, message_id.entryId)


def offset_in(topic: Topic, ledger: int, entry: int) -> int:
    """The same for numbers, neither of which means "earliest"."""
    start, end = topic.log.log_start_offset, topic.reader.end
    if ledger < topic.ledger:
        return start
    if ledger > topic.ledger:
        return end
    return min(max(entry, start), end)


def locate(topic: Topic, offset: int, done: Located) -> None:
    """Find the entry that covers the offset, or the first entry after it; None at the end."""
    _read(topic, offset, 1, partial(first_located, done))


def first_located(done: Located, result: Sequence[Entry] | Exception) -> None:
    """Call ``done`` with the first entry that was read."""
    done(result if isinstance(result, Exception) else result[0] if result else None)


def locate_last(topic: Topic, done: Located) -> None:
    """Find the last entry that consumers can see; None if there is none."""
    _look_back(topic, topic.reader.end, 1, 0, done)


def _look_back(topic: Topic, end: int, window: int, tries: int, done: Located) -> None:
    start = topic.log.log_start_offset
    if end <= start or tries > _WINDOWS:
        done(None)
        return
    first = max(start, end - window)
    _read(topic, first, window, partial(_looked_back, topic, first, end, tries, done))


def _looked_back(
    topic: Topic, first: int, end: int, tries: int, done: Located, result: Sequence[Entry] | Exception
) -> None:
    if isinstance(result, Exception):
        done(result)
        return
    visible = [entry for entry in result if entry.offset < end]
    if visible:
        done(visible[-1])
    else:
        _look_back(topic, first, _WINDOW, tries + 1, done)


def _read(topic: Topic, offset: int, entries: int, done: Callable[[Sequence[Entry] | Exception], None]) -> None:
    # A size of one byte yields one entry, however large. Several entries are read only where they are small.
    size = 1 if entries == 1 else 1024 * 1024
    try:
        entries_read = topic.reader.read(offset, entries, size)
    except Exception as error:
        done(error)
        return
    if entries_read is None:
        topic.reader.read_later(offset, entries, size, done)
    else:
        done(entries_read)


def offset_at(topic: Topic, time_ms: int) -> int:
    """The first offset whose message was published at this time or later; the end if there is none. Blocks."""
    position = topic.log.times.offset_for_timestamp(max(0, min(time_ms, 2**62)))
    return topic.reader.end if position is None else position[0]


log = get_logger("pulsar")

# Pulsar's connectionLivenessCheckTimeoutMillis.
_TIMEOUT_S = 5.0
_PING = write_command(BaseCommand.Type.PING, CommandPing())

Answered = Callable[[bool], None]


class Liveness:
    def __init__(self, clock: Clock, timer: Timer, timeout_s: float = _TIMEOUT_S) -> None:
        self._clock = clock
        self._timer = timer
        self._timeout_s = timeout_s
        self._lock = Lock()
        # The waiting callbacks by connection. One PING at a time.
        self._asked: dict[PulsarConnection, tuple[list[Answered], TimerHandle]] = {}
        self._dead = EventLimit()

    def probe(self, connection: PulsarConnection, answered: Answered) -> None:
        """Call ``answered``, on any thread, with True when the client has answered, or with False if it has not in time; then
        its connection is being closed."""
        if connection.closed or connection.connection.closed:
            answered(False)
            return
        with self._lock:
            asked = self._asked.get(connection)
            if asked is not None:
                asked[0].append(answered)
                return
            handle = self._timer.at(self._clock.monotonic() + self._timeout_s, partial(self._timed_out, connection))
            self._asked[connection] = ([answered], handle)
        connection.push(_PING)

    def heard(self, connection: PulsarConnection) -> None:
        """The client has sent PONG."""
        if connection in self._asked:
            self._end(connection, alive=True)

    def lost(self, connection: PulsarConnection) -> None:
        """The connection is closed."""
        if connection in self._asked:
            self._end(connection, alive=False)

    def _timed_out(self, connection: PulsarConnection) -> None:
        """On the timer's thread."""
        left_out = self._dead.take(self._clock.monotonic())
        if left_out is not None:
            log.info("connection_unresponsive", peer=connection.connection.peer.host, unlogged_before=left_out)
        request = Request()
        request.connection = connection.connection
        connection.outbox.close(request)
        self._end(connection, alive=False)

    def _end(self, connection: PulsarConnection, alive: bool) -> None:
        with self._lock:
            asked = self._asked.pop(connection, None)
        if asked is None:
            return
        asked[1].cancel()
        for answered in asked[0]:
            answered(alive)
