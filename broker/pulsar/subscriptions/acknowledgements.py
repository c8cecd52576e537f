"""The acknowledgements of a subscription: changes of its cursor, and the table of delivered entries.

An acknowledgement changes the cursor; then the dispatcher is told of the newly acknowledged messages, and its effects are carried
out before the lock is released. ``acknowledging.py`` handles an ACK command, whose entries may have to be read first.

The subscription's lock guards all of it. Methods take it unless they say that it is held.

Tests: tests/pulsar/subscriptions/test_acknowledging.py, tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.delivery.acknowledged import TooManyHoles
from broker.pulsar.dispatch.dispatcher import Consumer, Dispatcher, Effect, Now
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerNotFound
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.delivered import Delivered
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Lock

AckedEntry = tuple[int, Sequence[int] | None]  # offset, ack set


class Held(Protocol):
    """A read that may wait for acknowledgements."""

    def acknowledged(self) -> list[Effect]: ...


class Acknowledges(Protocol):
    """The subscription, as this module needs it."""

    topic: Topic
    lock: Lock
    cursor: Cursor
    saving: Saving
    dispatcher: Dispatcher | None
    connected: dict[ConnectedConsumer, None]

    @property
    def reading(self) -> Held | None: ...

    @property
    def first_offset(self) -> int: ...

    def now(self) -> Now: ...

    def carry_out(self, effects: Sequence[Effect], now: Now) -> None: ...

    def tell_end_of_topic(self) -> None: ...


class Acknowledgements:
    __slots__ = ("_cursor", "_lock", "_saving", "_subscription", "delivered")

    def __init__(self, subscription: Acknowledges) -> None:
        self._subscription = subscription
        self._lock = subscription.lock
        self._cursor = subscription.cursor
        self._saving = subscription.saving
        self.delivered: Delivered | None = None  # while there are consumers

    def consumer_came(self) -> None:
        """Entries may be delivered from now on. The lock is held."""
        if self.delivered is None:
            self.delivered = Delivered()

    def last_consumer_left(self) -> None:
        """All delivered entries will be delivered again. The lock is held."""
        self.delivered = None

    def add(self, connected: ConnectedConsumer, acked: Iterable[AckedEntry]) -> list[AckedEntry]:
        """Acknowledge entries individually. Returns the entries with an unknown number of messages. Raises TooManyHoles after
        acknowledging the entries before the failed entry; raises ConsumerNotFound before acknowledging any."""
        unknown: list[AckedEntry] = []
        with self._lock:
            self._check_connected(connected)
            delivered, cursor = self.delivered, self._cursor
            assert delivered is not None
            now = self._subscription.now()
            effects: list[Effect] = []
            try:
                for entry, ack_set in acked:
                    messages = delivered.messages(entry)
                    if messages is None:
                        if not cursor.is_acknowledged(entry):
                            unknown.append((entry, ack_set))
                        continue
                    self._acknowledge(connected.consumer, entry, messages, ack_set, now, effects)
            finally:
                self._acknowledged(effects, now)
        return unknown

    def add_whole(self, connected: ConnectedConsumer, entries: Sequence[int]) -> list[int]:
        """The same for whole entries: the cursor gets adjacent entries as a single range."""
        with self._lock:
            self._check_connected(connected)
            delivered, cursor, dispatcher = self.delivered, self._cursor, self._subscription.dispatcher
            assert delivered is not None
            assert dispatcher is not None
            now = self._subscription.now()
            effects: list[Effect] = []
            runs, unknown = delivered.take(entries)
            done = 0
            try:
                for first, end, run in runs:
                    if cursor.acknowledge(first, end - first):
                        effects += dispatcher.acknowledged_whole(run, now)
                    done += 1
            finally:
                if done < len(runs):
                    delivered.put_back(runs[done:])
                self._acknowledged(effects, now)
            return [entry for entry in unknown if not cursor.is_acknowledged(entry)] if unknown else unknown

    def add_known(self, connected: ConnectedConsumer, acked: Iterable[tuple[int, int, Sequence[int] | None]]) -> None:
        """The same for entries whose number of messages has been read: (offset, messages, ack set)."""
        with self._lock:
            self._check_connected(connected)
            now = self._subscription.now()
            effects: list[Effect] = []
            try:
                for entry, messages, ack_set in acked:
                    self._acknowledge(connected.consumer, entry, messages, ack_set, now, effects)
            finally:
                self._acknowledged(effects, now)

    def _check_connected(self, connected: ConnectedConsumer) -> None:
        """Raises ConsumerNotFound: an acknowledgement of a closed consumer must not be answered with success."""
        if connected not in self._subscription.connected:
            raise ConsumerNotFound(f"Consumer {connected.id} has been closed")

    def _acknowledge(
        self,
        consumer: Consumer | None,
        entry: int,
        messages: int,
        ack_set: Sequence[int] | None,
        now: Now,
        effects: list[Effect],
    ) -> None:
        cursor = self._cursor
        newly = cursor.acknowledge(entry, messages, ack_set)
        if newly:
            whole = ack_set is None or cursor.is_acknowledged(entry + messages - 1)
            if whole and self.delivered is not None:
                self.delivered.remove(entry)
            dispatcher = self._subscription.dispatcher
            assert dispatcher is not None
            effects += dispatcher.acknowledged(consumer, entry, newly, whole, now)

    def _acknowledged(self, effects: list[Effect], now: Now) -> None:
        subscription = self._subscription
        self._saving.changed()
        if subscription.reading is not None:
            effects += subscription.reading.acknowledged()
        if effects:
            subscription.carry_out(effects, now)
        if subscription.topic.terminated:
            subscription.tell_end_of_topic()

    def end_of(self, entry: int, *, whole: bool) -> int | None:
        """The offset after the entry with this id; ``whole``: the id may be any offset in the entry. None: the entry has to be
        read."""
        with self._lock:
            delivered, before = self.delivered, self._cursor.acknowledged_before
            if entry < before:
                return before
            if delivered is None:
                return None
            messages = delivered.messages(entry)
            if messages is not None:
                return entry + messages
            return entry + 1 if whole and entry + 1 in delivered else None

    def add_until(
        self, connected: ConnectedConsumer | None, offset: int, last: tuple[int, int, Sequence[int]] | None = None
    ) -> None:
        """Acknowledge everything before the offset, and in the entry ``last`` (offset, messages, ack set) the messages that are
        not in its ack set. ``connected`` None: the broker acknowledges."""
        with self._lock:
            if connected is not None:
                self._check_connected(connected)
            self._until(offset, last, connected.consumer if connected else None)

    def _until(self, offset: int, last: tuple[int, int, Sequence[int]] | None, consumer: Consumer | None) -> None:
        now = self._subscription.now()
        effects: list[Effect] = []
        try:
            if self._cursor.acknowledge_until(offset):
                effects += self._moved(now)
            if last is not None and self._subscription.dispatcher is not None:
                self._acknowledge(consumer, *last, now, effects)
        finally:
            self._acknowledged(effects, now)

    def _moved(self, now: Now) -> list[Effect]:
        """``acknowledged_before`` has passed entries that were not acknowledged individually."""
        before = self._cursor.acknowledged_before
        if self.delivered is not None:
            self.delivered.remove_before(before)
        dispatcher = self._subscription.dispatcher
        return dispatcher.marked_deleted(before, now) if dispatcher is not None else []

    def catch_up_with_start(self, now: Now) -> list[Effect]:
        """Acknowledge the entries that the log has deleted, which can no longer be consumed. The lock is held."""
        start = self._subscription.first_offset
        if not self._cursor.acknowledge_until(start):
            return []
        self._saving.changed()
        return self._moved(now)

    def discard(self, entries: Sequence[Entry], now: Now) -> list[Effect]:
        """Acknowledge entries that no consumer gets. The lock is held."""
        effects: list[Effect] = []
        for entry in entries:
            try:
                self._acknowledge(None, entry.offset, entry.messages, None, now, effects)
            except TooManyHoles:
                break  # it is discarded again when it is read again
        self._saving.changed()
        return effects
