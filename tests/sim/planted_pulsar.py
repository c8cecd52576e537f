"""Mistakes in Pulsar's part of the broker, for ``planted.py``: each makes a wrong function from the right one."""

from collections.abc import Iterator, Sequence
from typing import Any

from broker.pulsar.dispatch.single_active import OnlyOne
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.topics.topic import Tail


def receipts_at_once(_: Any) -> Any:
    def pay(self: Any) -> None:
        with self.lock:
            parts = [one.error or self._receipts.receipts(one.receipts) for one in self.owed]
            count = sum(len(one.receipts) for one in self.owed)
            self.owed.clear()
            if parts:
                self.outbox.push(self.connection, [b"".join(parts)])
        if parts:
            self.on_paid(count)

    return pay


def receipts_when_appended(right: Any) -> Any:
    pay = receipts_at_once(None)

    def owe(self: Any, owed: Any) -> None:
        right(self, owed)
        pay(self)

    return owe


def all_are_admitted(right: Any) -> Any:
    def join(self: Any, subscription: Any, connection: Any, join: Any) -> Any:
        others, subscription.connected = subscription.connected, {}
        admit = OnlyOne.admit
        OnlyOne.admit = lambda self, consumers: None  # type: ignore[method-assign]
        try:
            return right(self, subscription, connection, join)
        finally:
            OnlyOne.admit = admit  # type: ignore[method-assign]
            subscription.connected = others | subscription.connected

    return join


def permits_twice(right: Any) -> Any:
    def flow(self: Any, consumer: Any, permits: int, now: Any) -> Any:
        return right(self, consumer, 2 * permits, now)

    return flow


def small_flows_forgotten(right: Any) -> Any:
    def flow(self: Any, consumer: Any, permits: int, now: Any) -> Any:
        return right(self, consumer, permits if permits > 1 else 0, now)

    return flow


def read_twice(right: Any) -> Any:
    """The read position stays before the last entry of a read."""

    def read_done(self: Any, read: Any, entries: Sequence[Any], now: Any, *, failed: bool = False) -> Any:
        effects = right(self, read, entries, now, failed=failed)
        if len(entries) > 1:
            self._cursor.read_offset = min(self._cursor.read_offset, entries[-1].offset)
        return effects

    return read_done


def left_behind(_: Any) -> Any:
    def release(self: Any, consumer: Any, records: Any) -> Iterator[None]:
        yield

    return release


def keys_unguarded(right: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        self._out_of_order = True

    return init


def always_due(_: Any) -> Any:
    def is_due(self: Any, deliver_at_ms: int, now_ms: int) -> bool:
        return True

    return is_due


def confirmed_before_saved(_: Any) -> Any:
    def save(self: Saving, done: Any) -> None:
        with self._lock:
            self.changed()
        done(None)

    return save


def unwatched(_: Any) -> Any:
    """Readers that wait at the end of a log are not told of appends by other than Pulsar's producers."""

    def add(self: Tail, waiting: Any) -> None:
        with self._lock:
            self._waiting[waiting] = None

    return add
