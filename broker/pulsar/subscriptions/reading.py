"""Reads the entries that a subscription's dispatcher asks for: new entries (``Read``), and entries to redeliver (``Replay``).

Entries come from the cache at once, or later from a reader's thread. A read that cannot be done now waits

- in the log's tail, at the end of the log,
- until the reader's threads have finished the previous read,
- until messages are acknowledged, if the cursor is crowded,
- until a consumer's connection takes more, if all of the few consumers' connections are full, or
- for the subscription's next turn: the holder of the lock reads only a few batches.

Every method is called under the subscription's lock, unless it says otherwise, and returns the effects that the subscription
has to carry out before it releases the lock.

Tests: tests/pulsar/subscriptions/test_subscription.py, tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from broker.log import EventLimit, get_logger
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.dispatch.dispatcher import Dispatcher, Effect, Now, Read, Replay
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.acknowledgements import Acknowledgements
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Lock

log = get_logger("pulsar")

# With more consumers than this, a read does not check their connections before it begins.
_LOOKED_AT = 4


class Reads(Protocol):
    """The subscription, as this module needs it."""

    topic: Topic
    name: str
    lock: Lock
    cursor: Cursor
    dispatcher: Dispatcher | None
    compacted: CompactedReader | None
    connected: dict[ConnectedConsumer, None]
    acknowledgements: Acknowledgements
    saving: Saving

    @property
    def reader(self) -> EntryReader: ...

    @property
    def first_offset(self) -> int: ...

    def more(self) -> None: ...

    def now(self) -> Now: ...

    def carry_out(self, effects: Sequence[Effect], now: Now) -> None: ...

    def expect_entries(self, expects: bool) -> None: ...

    def tell_end_of_topic(self) -> None: ...


class Reading:
    """``failures`` limits how often it is logged that entries could not be read."""

    __slots__ = (
        "_cold_read",
        "_cold_replay",
        "_empty",
        "_failures",
        "_held",
        "_next_replay",
        "_read",
        "_read_waits",
        "_reader_has_read",
        "_reader_has_replay",
        "_subscription",
    )

    def __init__(self, subscription: Reads, failures: EventLimit) -> None:
        self._subscription = subscription
        self._failures = failures
        self._read: Read | None = None  # the waiting read
        # The reader's threads have at most one read and one replay of this subscription, however often consumers come and go.
        # ``_cold_...`` None: the result is no longer wanted. Later requests wait until the outstanding request is done.
        self._reader_has_read = self._reader_has_replay = False
        self._cold_read: Read | None = None
        self._cold_replay: Replay | None = None
        self._read_waits = False  # `_read` waits for the reader's threads
        self._next_replay: Replay | None = None
        self._held = False  # `_read` waits for acknowledgements
        self._empty = (-1, -1)  # (offset, end): a read found no entry between these offsets

    # -- waiting reads ------------------------------------------------------------------------------------------------------

    def put_off(self, effect: Read | Replay) -> None:
        """Keep the effect until ``take_up`` is called."""
        if type(effect) is Read:
            self._read = effect
        else:
            self._next_replay = effect  # type: ignore[assignment]

    def take_up(self) -> list[Effect]:
        """The waiting read, whatever it waits for, and the waiting replay unless it waits for the reader's threads."""
        effects = self.take_up_read()
        if self._next_replay is not None and not self._reader_has_replay:
            effects.append(self._next_replay)
            self._next_replay = None
        return effects

    def take_up_read(self) -> list[Effect]:
        read, self._read = self._read, None
        return [] if read is None else [read]

    def consumer_came(self) -> list[Effect]:
        """A waiting read may continue, because it may have waited for full connections."""
        return [] if self._held else self.take_up_read()

    def acknowledged(self) -> list[Effect]:
        if self._held and self._read is not None and not self._subscription.cursor.crowded:
            self._held = False
            return self.take_up_read()
        return []

    def cancel_read(self) -> None:
        self._cold_read = None
        self._read_waits = False
        if self._read is not None:
            self._read = None
            self._subscription.topic.tail.discard(self._subscription)

    def forget(self) -> None:
        """There are no consumers any more."""
        self.cancel_read()
        self._cold_replay = self._next_replay = None
        self._held = False

    def restart(self) -> None:
        """The cursor was set to another offset."""
        self._empty = (-1, -1)

    # -- new entries --------------------------------------------------------------------------------------------------------

    def read(self, read: Read, now: Now) -> Sequence[Effect]:
        subscription = self._subscription
        topic, cursor = subscription.topic, subscription.cursor
        reader = subscription.compacted or subscription.reader
        effects: Sequence[Effect] = ()
        start = subscription.first_offset
        if cursor.acknowledged_before < start:
            effects = subscription.acknowledgements.catch_up_with_start(now)
        if self._cannot_send():
            subscription.expect_entries(False)
            self._read = read
            return effects
        if cursor.crowded:
            self._read, self._held = read, True
            return effects
        offset = cursor.next_unacknowledged(max(read.offset, start))
        while True:
            end = reader.end
            if offset < end and self._empty != (offset, end):
                break
            self._read = read
            topic.tail.add(subscription)
            if reader.end == end:
                if topic.terminated:
                    subscription.tell_end_of_topic()
                return effects
            topic.tail.discard(subscription)  # an entry was appended between the two checks
            self._read = None
        try:
            entries = reader.read(offset, read.max_entries, read.max_bytes)
        except Exception as error:
            return [*effects, *self._read_failed(read, error, now)]
        if entries is None:
            if self._reader_has_read:
                self._read, self._read_waits = read, True
                return effects
            self._reader_has_read, self._cold_read = True, read
            done = partial(self._read_later_done, read, offset, end)
            reader.read_later(offset, read.max_entries, read.max_bytes, done, partial(self._wants_read, read))
            return effects
        return [*effects, *self._entries_read(read, offset, end, entries, now)]

    def all_paused(self) -> bool:
        """Whether there are few consumers and all of them are paused."""
        connected = self._subscription.connected
        return len(connected) <= _LOOKED_AT and all(consumer.paused for consumer in connected)

    def _cannot_send(self) -> bool:
        """Whether there are few consumers and all of their connections are full. Then they are paused."""
        connected = self._subscription.connected
        if len(connected) > _LOOKED_AT:
            return False
        for consumer in connected:
            if not consumer.paused and consumer.connection.connection.writable:
                return False
        for consumer in connected:
            consumer.pause()
        return True

    def _entries_read(self, read: Read, offset: int, end: int, entries: Sequence[Entry], now: Now) -> Sequence[Effect]:
        """``end``: the end of the log before it was read."""
        subscription = self._subscription
        if not entries:
            # There are only batches that consumers never see, such as the ends of transactions. If the log has not grown
            # meanwhile, the reader's end shows that by now; otherwise the rest is read as well.
            self._empty = (offset, end)
            if subscription.reader.end <= offset:
                subscription.cursor.skip(offset, end)
                subscription.saving.changed()
            return [read]
        expected = offset
        for entry in entries:
            if entry.offset > expected:
                subscription.cursor.skip(expected, entry.offset)
                subscription.saving.changed()
            expected = entry.offset + entry.messages
        assert subscription.dispatcher is not None
        return subscription.dispatcher.read_done(read, entries, now)

    def _wants_read(self, read: Read) -> bool:
        return self._cold_read is read

    def _read_later_done(self, read: Read, offset: int, end: int, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread, without the lock."""
        subscription = self._subscription
        with subscription.lock:
            self._reader_has_read = False
            now = subscription.now()
            effects: Sequence[Effect] = ()
            if self._cold_read is read:
                self._cold_read = None
                if isinstance(result, Exception):
                    effects = self._read_failed(read, result, now)
                else:
                    effects = self._entries_read(read, offset, end, result, now)
            if self._read_waits:
                self._read_waits = False
                effects = [*effects, *self.take_up_read()]
            subscription.carry_out(effects, now)

    def _read_failed(self, read: Read, error: Exception, now: Now) -> Sequence[Effect]:
        self._note_failure(error, now)
        assert self._subscription.dispatcher is not None
        return self._subscription.dispatcher.read_done(read, (), now, failed=True)

    # -- entries that are delivered again -----------------------------------------------------------------------------------

    def replay(self, replay: Replay, now: Now) -> Sequence[Effect]:
        subscription = self._subscription
        assert subscription.dispatcher is not None
        reader = subscription.compacted or subscription.reader
        try:
            entries = reader.replay(replay.offsets)
        except Exception as error:
            self._note_failure(error, now)
            return subscription.dispatcher.replay_done(replay, (), now, failed=True)
        if entries is None:
            if self._reader_has_replay:
                self._next_replay = replay
                return ()
            self._reader_has_replay, self._cold_replay = True, replay
            done = partial(self._replay_later_done, replay)
            reader.replay_later(replay.offsets, done, partial(self._wants_replay, replay))
            return ()
        return subscription.dispatcher.replay_done(replay, entries, now)

    def _wants_replay(self, replay: Replay) -> bool:
        return self._cold_replay is replay

    def _replay_later_done(self, replay: Replay, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread, without the lock."""
        subscription = self._subscription
        with subscription.lock:
            self._reader_has_replay = False
            now = subscription.now()
            effects: Sequence[Effect] = ()
            if self._cold_replay is replay:
                self._cold_replay = None
                assert subscription.dispatcher is not None
                if isinstance(result, Exception):
                    self._note_failure(result, now)
                    effects = subscription.dispatcher.replay_done(replay, (), now, failed=True)
                else:
                    effects = subscription.dispatcher.replay_done(replay, result, now)
            if self._next_replay is not None:
                following, self._next_replay = self._next_replay, None
                effects = [*effects, following]
            subscription.carry_out(effects, now)

    def _note_failure(self, error: Exception, now: Now) -> None:
        left_out = self._failures.take(now.monotonic)
        if left_out is not None:
            log.warning(
                "entries_not_read",
                topic=str(self._subscription.topic.name),
                subscription=self._subscription.name,
                error=str(error) or type(error).__name__,
                unlogged_before=left_out,
            )
