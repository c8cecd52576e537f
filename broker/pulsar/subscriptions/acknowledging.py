"""Applies an ACK command to the cursor.

Nearly always ``start`` does all of the work. An entry that the subscription does not know is first read, for the number of its
messages: from the cache, or on a reader's thread, which then continues the work. The subscription's lock is taken for a bounded
number of ids at a time.

Tests: tests/pulsar/subscriptions/test_acknowledging.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.errors import Refusal, StorageError
from broker.pulsar.dispatch.dispatcher import SINGLE_ACTIVE
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.acknowledgements import AckedEntry
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.locating import locate
from broker.pulsar.subscriptions.subscription import Subscription
from protocol.pulsar.acks import Ack

# Ids for which the subscription's lock is taken once: about 2 ms.
_AT_ONCE = 1000
# Unknown entries that are read at a time. Other reads of the broker may have to wait meanwhile.
_READ_AT_ONCE = 100

Finished = Callable[[Refusal | StorageError | None], None]


class Acknowledging:
    """``finished`` is called once, on any thread, with no lock held."""

    __slots__ = ("_ack", "_connected", "_finished", "_subscription", "_unknown")

    def __init__(self, subscription: Subscription, connected: ConnectedConsumer, ack: Ack, finished: Finished) -> None:
        self._subscription = subscription
        self._connected = connected
        self._ack = ack
        self._finished = finished
        self._unknown: list[AckedEntry] = []

    def start(self) -> None:
        try:
            done = self._cumulative() if self._ack.cumulative else self._individual()
        except (Refusal, StorageError) as error:
            self._finished(error)
        else:
            if done:
                self._finished(None)

    # -- individual ----------------------------------------------------------------------------------------------------

    def _individual(self) -> bool:
        """False: the work continues later."""
        subscription, ids = self._subscription, self._ack.ids
        topic = subscription.topic
        ledger, end = topic.ledger, topic.log.log_end_offset
        whole = self._ack.whole
        if whole and self._ack.ledger_id == ledger:
            if max(whole) >= end:
                whole = [entry for entry in whole if entry < end]
            for at in range(0, len(whole), _AT_ONCE):
                unknown = subscription.acknowledgements.add_whole(self._connected, whole[at : at + _AT_ONCE])
                self._unknown += [(entry, None) for entry in unknown]
        # Ids of another generation of the topic, or beyond the end of the log, are ignored.
        acked: list[AckedEntry] = [
            (entry, ack_set or None) for of_ledger, entry, ack_set in ids if of_ledger == ledger and entry < end
        ]
        for at in range(0, len(acked), _AT_ONCE):
            self._unknown += subscription.acknowledgements.add(self._connected, acked[at : at + _AT_ONCE])
        return not self._unknown or self._resolve()

    def _resolve(self) -> bool:
        """Read the unknown entries. False: a reader's thread continues."""
        reader = self._subscription.reader
        while self._unknown:
            # A command may have several ack sets of the same batch.
            asked, self._unknown = self._unknown[:_READ_AT_ONCE], self._unknown[_READ_AT_ONCE:]
            offsets = sorted({entry for entry, _ in asked})
            entries = reader.replay(offsets)
            if entries is None:
                reader.replay_later(offsets, partial(self._read, asked))
                return False
            self._apply(asked, entries)
        return True

    def _read(self, asked: Sequence[AckedEntry], result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread."""
        try:
            if isinstance(result, Refusal | StorageError):
                raise result
            if isinstance(result, Exception):
                raise StorageError(f"The entries could not be read: {result}.")
            self._apply(asked, result)
            done = self._resolve()
        except (Refusal, StorageError) as error:
            self._finished(error)
        else:
            if done:
                self._finished(None)

    def _apply(self, asked: Sequence[AckedEntry], found: Sequence[Entry]) -> None:
        messages = {entry.offset: entry.messages for entry in found}
        self._subscription.acknowledgements.add_known(
            self._connected,
            [(entry, messages[entry], ack_set) for entry, ack_set in asked if entry in messages],
        )

    # -- cumulative ----------------------------------------------------------------------------------------------------

    def _cumulative(self) -> bool:
        subscription, ids = self._subscription, self._ack.ids
        topic = subscription.topic
        # With several ids, or on a shared subscription, a cumulative ACK has no meaning. Pulsar ignores it as well.
        if len(ids) != 1 or subscription.kind not in SINGLE_ACTIVE:
            return True
        ledger, entry, ack_set = ids[0]
        if ledger != topic.ledger or entry >= topic.log.log_end_offset:
            return True
        end = subscription.acknowledgements.end_of(entry, whole=not ack_set)
        if end is None:
            locate(topic, entry, partial(self._located, entry, ack_set or None))
            return False
        self._until(entry, end, ack_set or None)
        return True

    def _located(self, entry: int, ack_set: Sequence[int] | None, result: Entry | Exception | None) -> None:
        """On a reader's thread, or at once."""
        if isinstance(result, Refusal | StorageError):
            self._finished(result)
            return
        try:
            if result is None or isinstance(result, Exception) or result.offset > entry:
                self._until(entry, entry + 1, None)  # there is no entry at this offset (any more)
            else:
                self._until(result.offset, result.offset + result.messages, ack_set)
        except (Refusal, StorageError) as error:
            self._finished(error)
        else:
            self._finished(None)

    def _until(self, entry: int, end: int, ack_set: Sequence[int] | None) -> None:
        if ack_set is None:
            self._subscription.acknowledgements.add_until(self._connected, end)
        else:
            self._subscription.acknowledgements.add_until(self._connected, entry, (entry, end - entry, ack_set))
