"""Mistakes in Pulsar's part of the broker, for ``planted.py``: each makes a wrong function from the right one."""

from collections.abc import Iterator, Sequence
from typing import Any

from broker.pulsar.subscriptions.tail import Tail


def receipts_at_once(_: Any) -> Any:
    def pay(self: Any) -> None:
        with self.lock:
            parts = [
                one.error or self._receipts.receipt(one.sequence_id, one.offset, one.highest_sequence_id) for one in self.owed
            ]
            self.owed.clear()
            if parts:
                self.outbox.push(self.connection, [b"".join(parts)])
        if parts:
            self.on_paid(len(parts))

    return pay


def receipts_when_appended(right: Any) -> Any:
    pay = receipts_at_once(None)

    def owe(self: Any, owed: Any) -> None:
        right(self, owed)
        pay(self)

    return owe


def all_are_admitted(_: Any) -> Any:
    def admit(self: Any, consumers: Sequence[Any]) -> None:
        pass

    return admit


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


def left_behind(right: Any) -> Any:
    """Of what a consumer has that leaves, the first entry is given to nobody else."""

    def release(self: Any, consumer: Any, records: Any) -> Iterator[None]:
        yield from right(self, consumer, list(records)[1:])

    return release


def keys_unguarded(right: Any) -> Any:
    """A key that another consumer still has messages of is given to its new one."""

    def send(self: Any, entries: Any, *, new: bool) -> Any:
        self._busy.clear()
        self._lanes.clear()
        return right(self, entries, new=new)

    return send


def always_due(_: Any) -> Any:
    def is_due(self: Any, deliver_at_ms: int, now_ms: int) -> bool:
        return True

    return is_due


def confirmed_before_saved(_: Any) -> Any:
    def save(self: Any, stored: Any, done: Any) -> None:
        self.changed(stored)
        done(None)

    return save




def unwatched(_: Any) -> Any:
    """Who waits at the end of a log is not told of what others than Pulsar's producers append."""

    def add(self: Tail, waiting: Any) -> None:
        with self._lock:
            self._waiting[waiting] = None

    return add
