"""Finds entries by the ids and times that clients name: where a subscription starts, where a seek leads to, what comes last.

Nothing here blocks: what is not in the cache is read on a reader's thread, which then calls ``done``. Finding an offset by time
does block (``offset_at``); it runs on a handler.

A message id is (ledger, entry): the ledger is the topic's generation, the entry an offset. Any offset that an entry covers means
that entry, because clients compute with ids.

Whether a connection is alive, for a client that wants the place of another one.

The network can lose a connection without a word. The client that comes back finds its own old consumer in an exclusive
subscription. So the connection of that one is asked: a PING, to which every client answers with PONG. One that does not answer in
time is closed.

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

# Offsets before the end in which the last entry is looked for at a time, and how often. Behind it there may be ends of
# transactions and what was aborted.
_WINDOW = 64
_WINDOWS = 64

Located = Callable[[Entry | Exception | None], None]


def offset_of(topic: Topic, message_id: MessageIdData) -> int:
    """The offset that the id names. Of another generation of the topic, and of "earliest" and "latest": the start or the end."""
    if MINUS_1 in (message_id.ledgerId, message_id.entryId):
        return topic.log.log_start_offset
    return offset_in(topic, message_id.ledgerId, message_id.entryId)


def offset_in(topic: Topic, ledger: int, entry: int) -> int:
    """The same for numbers of which none means "earliest"."""
    start, end = topic.log.log_start_offset, topic.reader.end
    if ledger < topic.ledger:
        return start
    if ledger > topic.ledger:
        return end
    return min(max(entry, start), end)


def locate(topic: Topic, offset: int, done: Located) -> None:
    """Find the entry that covers the offset, or the first one after it; None at the end."""
    _read(topic, offset, 1, partial(first_located, done))


def first_located(done: Located, result: Sequence[Entry] | Exception) -> None:
    """Tell ``done`` the first of what was read."""
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
    found = [entry for entry in result if entry.offset < end]
    if found:
        done(found[-1])
    else:
        _look_back(topic, first, _WINDOW, tries + 1, done)


def _read(topic: Topic, offset: int, entries: int, done: Callable[[Sequence[Entry] | Exception], None]) -> None:
    # One byte: one entry, whatever its size. Several are only looked for where they are small.
    size = 1 if entries == 1 else 1024 * 1024
    try:
        found = topic.reader.read(offset, entries, size)
    except Exception as error:
        done(error)
        return
    if found is None:
        topic.reader.read_later(offset, entries, size, done)
    else:
        done(found)


def offset_at(topic: Topic, time_ms: int) -> int:
    """The first offset whose message was published at this time or later; the end if there is none. Blocks."""
    found = topic.log.times.offset_for_timestamp(max(0, min(time_ms, 2**62)))
    return topic.reader.end if found is None else found[0]


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
        # Who waits for an answer of which connection. One PING at a time.
        self._asked: dict[PulsarConnection, tuple[list[Answered], TimerHandle]] = {}
        self._dead = EventLimit()

    def probe(self, connection: PulsarConnection, answered: Answered) -> None:
        """Call ``answered``, on any thread, with True when the client has answered, or with False when it has not in time: then
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
        """It has sent PONG."""
        if connection in self._asked:
            self._end(connection, alive=True)

    def lost(self, connection: PulsarConnection) -> None:
        """It is closed."""
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
