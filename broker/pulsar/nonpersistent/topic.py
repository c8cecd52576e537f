"""A non-persistent topic, or a partition of it: its producers and subscriptions, and the passing on of messages.

A message is passed to the topic's subscriptions on the thread that received it, and then forgotten. If there are more than
``_AT_ONCE`` subscriptions, the waker's thread passes it to a few of them at a time. The bytes that wait for this are bounded;
beyond the bound, messages are dropped for all subscriptions. Message ids are (0, n), where n counts the entries since the topic
was created.

Any thread. ``lock`` guards the tables; a subscription's lock is taken below it. ``_passing`` guards the queue and is held for
moments.

Tests: tests/pulsar/nonpersistent/test_topic.py.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

import attrs

from broker.pulsar.entries.cache import OVERHEAD_BYTES
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topics.topic import AnySubscription, AnyTopic
from broker.runtime.threads import Lock

# The maximum number of subscriptions that the thread that received the messages serves itself, which takes about 0.3 ms at most.
_AT_ONCE = 16
# Bytes of the messages that wait for the waker, including OVERHEAD_BYTES for each entry.
_WAITING_MAX = 16 * 1024 * 1024
# A non-persistent topic has no policies of its own, only those of its namespace.
_NO_TOPIC = UUID(int=0)
_NO_BOUND = 1 << 62


class PassingSubscription(AnySubscription, Protocol):
    """``subscription.py`` has the class."""

    @property
    def name(self) -> str: ...

    def pass_on(self, entries: Sequence[Entry]) -> None: ...


@attrs.define(eq=False, repr=False)
class NonPersistentTopic(AnyTopic):
    line: Line
    kafka_name: str  # for checking rights only: Kafka has no such topic
    # Replaced as a whole, so that ``publish`` needs no lock.
    subscriptions: Mapping[str, PassingSubscription] = attrs.Factory(dict)
    messages_in: int = 0
    bytes_in: int = 0
    dropped: int = 0  # messages that were passed to no subscription, because too many bytes waited
    _next_entry: int = 0
    _passing: Lock = attrs.Factory(Lock)
    _waiting: deque[Sequence[Entry]] = attrs.Factory(deque)
    _waiting_bytes: int = 0
    _left: deque[PassingSubscription] = attrs.Factory(
        deque
    )  # subscriptions that have yet to get the first of ``_waiting``

    ledger = 0
    terminated = False
    durable_offset = _NO_BOUND  # receipts wait for nothing
    entry_bytes_max = _NO_BOUND
    topic_id = _NO_TOPIC

    @property
    def entries_in(self) -> int:
        return self._next_entry

    def add(self, subscription: PassingSubscription) -> None:
        """``lock`` is held."""
        self.subscriptions = {**self.subscriptions, subscription.name: subscription}

    def remove(self, subscription: PassingSubscription) -> None:
        """Does nothing for an unknown subscription. ``lock`` is held."""
        if self.subscriptions.get(subscription.name) is subscription:
            self.subscriptions = {
                name: other for name, other in self.subscriptions.items() if other is not subscription
            }

    def drop(self, subscription: PassingSubscription) -> None:
        """The last consumer of this subscription, which is not durable, has left: remove it unless another has joined."""
        with self.lock:
            if not subscription.has_consumers:
                self.remove(subscription)
                subscription.close()

    # -- messages -------------------------------------------------------------------------------------------------------

    def take_ids(self, entries: int) -> int:
        """Reserve consecutive ids for this number of entries, and return the first."""
        with self._passing:
            first = self._next_entry
            self._next_entry += entries
        return first

    def publish(self, entries: Sequence[Entry]) -> None:
        """Pass these to all subscriptions. No lock is held."""
        size = sum(entry.size for entry in entries)
        kept = size + len(entries) * OVERHEAD_BYTES
        messages = sum(entry.messages for entry in entries)
        with self._passing:
            self.messages_in += messages
            self.bytes_in += size
            if not self._waiting and len(self.subscriptions) <= _AT_ONCE:
                served = list(self.subscriptions.values())
            elif self._waiting_bytes + kept > _WAITING_MAX:
                self.dropped += messages
                return
            else:
                served = []
                first = not self._waiting
                self._waiting.append(entries)
                self._waiting_bytes += kept
                if first:
                    self._left.extend(self.subscriptions.values())
                    self.line.call(self._pass_on)
        for subscription in served:
            subscription.pass_on(entries)

    def _pass_on(self) -> None:
        """On the waker's thread: pass the messages that have waited longest to the next subscriptions."""
        with self._passing:
            entries = self._waiting[0]
            served = [self._left.popleft() for _ in range(min(_AT_ONCE, len(self._left)))]
        for subscription in served:
            subscription.pass_on(entries)
        with self._passing:
            if not self._left:
                self._waiting.popleft()
                self._waiting_bytes -= sum(entry.size + OVERHEAD_BYTES for entry in entries)
                if not self._waiting:
                    return
                self._left.extend(self.subscriptions.values())
        self.line.call(self._pass_on)
