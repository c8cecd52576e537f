"""The acknowledgements of a subscription: changes of its cursor, and the table of delivered entries.

An acknowledgement changes the cursor; then the dispatcher is told of the newly acknowledged messages, and its effects are carried
out before the lock is released. ``acknowledging.py`` handles an ACK command, whose entries may have to be read first.

An acknowledgement names an entry, not its messages, but the cursor works with ranges of offsets. ``Delivered`` nearly always has
the number of messages. For other entries (delivered before a restart, or dropped from the full table) the acknowledgement waits
until the entry has been read again. So the table may be bounded.

The subscription's lock guards all of it. Methods of ``Acknowledgements`` take it unless they say that it is held.

Tests: tests/pulsar/subscriptions/test_acknowledging.py, tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple, Protocol

from broker.delivery.acknowledged import TooManyHoles
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, Dispatcher, Effect, Now
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerNotFound
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Lock

AckedEntry = tuple[int, Sequence[int] | None]  # offset, ack set

# Entries of a subscription in the table, about 100 bytes each.
_MOST: Final = 65_536


class Run(NamedTuple):
    """Adjacent entries: the first offset, the offset after the last entry, and the offsets of all entries."""

    first: int
    end: int
    entries: list[int]


class Delivered:
    """The number of messages of each entry that is delivered and not acknowledged. Pure."""

    __slots__ = ("_messages", "_prune_at", "_removed", "most")

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self._messages: dict[int, int] = {}  # by the entry's offset, in the order of delivery
        self._prune_at = 1024
        self._removed = 0  # from the front, since the dictionary was made

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[int]:
        return iter(self._messages)

    def __contains__(self, entry: int) -> bool:
        return entry in self._messages

    def add(self, entry: int, messages: int) -> None:
        table = self._messages
        table[entry] = messages
        if len(table) > self.most:
            self._forget_oldest()

    def add_all(self, deliveries: Iterable[Delivery]) -> None:
        table = self._messages
        for entry, _, _ in deliveries:
            table[entry.offset] = entry.messages
        if len(table) > self.most:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # Several at once: a dictionary skips the places of keys deleted at its front whenever its first key is looked for.
        table = self._messages
        for oldest in list(islice(table, len(table) - self.most + self.most // 8)):
            del table[oldest]

    def messages(self, entry: int) -> int | None:
        """None: unknown."""
        return self._messages.get(entry)

    def remove(self, entry: int) -> None:
        """The entry is acknowledged as a whole."""
        self._messages.pop(entry, None)

    def take(self, entries: Iterable[int]) -> tuple[list[Run], list[int]]:
        """Remove these entries. Returns runs of adjacent entries, and the unknown entries."""
        pop = self._messages.pop
        runs: list[Run] = []
        unknown: list[int] = []
        first = end = -1
        run: list[int] = []
        for entry in entries:
            messages = pop(entry, 0)
            if not messages:
                unknown.append(entry)
            elif entry == end:
                run.append(entry)
                end += messages
            else:
                if run:
                    runs.append(Run(first, end, run))
                first, end, run = entry, entry + messages, [entry]
        if run:
            runs.append(Run(first, end, run))
        return runs, unknown

    def put_back(self, runs: Sequence[Run]) -> None:
        """Undo ``take`` for runs that could not be acknowledged."""
        for _, end, entries in runs:
            for entry, following in zip(entries, [*entries[1:], end], strict=True):
                self._messages[entry] = following - entry

    def remove_before(self, offset: int) -> None:
        """Everything before the offset is acknowledged."""
        table = self._messages
        # Usually the oldest entries are the first, and few of them are removed.
        gone = list(takewhile(offset.__gt__, table))
        for entry in gone:
            del table[entry]
        self._removed += len(gone)
        # An entry that was delivered again stands behind newer entries, so all are checked when the table has doubled. The
        # dictionary is also rebuilt when as many keys were deleted as remain, because it keeps the places of deleted keys.
        if len(table) > self._prune_at or self._removed > max(1024, len(table)):
            self._removed = 0
            self._messages = {entry: messages for entry, messages in table.items() if entry >= offset}
            self._prune_at = max(1024, 2 * len(self._messages))

    def clear(self) -> None:
        self._messages.clear()


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
