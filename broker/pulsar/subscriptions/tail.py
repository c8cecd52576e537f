"""The end of one log, and the subscriptions that wait there for the next entry.

A subscription that has read everything is put in with ``add`` and then looks for entries once more, because one may have been
appended meanwhile. The next append takes all of them out and has each of them go on: a few at once on the appending thread,
which costs the least time; more than that on the waker's thread, so that no processor is held up.

Producers of Pulsar append between ``begin_append`` and ``end_append``: between the two, the log has entries that are not in the
cache yet. Appends by others (Kafka's producers, the ends of transactions) are noticed by watching the log, but only while
somebody waits or has waited since the last append.

Any thread. The lock is taken below a subscription's and is not held while subscriptions are called.

Tests: tests/pulsar/subscriptions/test_subscription.py.
"""

from typing import Protocol

from broker.log import get_logger
from broker.pulsar.subscriptions.waker import Line
from broker.runtime.threads import Lock
from broker.storage.log.log import Log

log = get_logger("pulsar")

# Subscriptions that the appending thread serves itself: at most about 0.3 ms.
_AT_ONCE = 16


class Waiting(Protocol):
    def more(self) -> None:
        """There may be entries. No lock is held."""


class Reader(Protocol):
    def cursor_opened(self) -> None: ...

    def cursor_closed(self) -> None: ...


class Tail:
    def __init__(self, log: Log) -> None:
        self._log = log
        # Has something called soon, on a thread that has time for it. Set when the topic gets its subscriptions.
        self.line: Line | None = None
        self._lock = Lock()
        self._waiting: dict[Waiting, None] = {}
        self._appending = 0  # producers of Pulsar between begin and end
        self._watch = -1  # the token of the log's watcher; -1: not watched

    def __len__(self) -> int:
        return len(self._waiting)

    def consumers_came(self, reader: Reader) -> None:
        """A subscription has consumers that take entries from now on."""
        with self._lock:
            reader.cursor_opened()

    def consumers_left(self, reader: Reader) -> None:
        with self._lock:
            reader.cursor_closed()

    def add(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting[waiting] = None
            if self._watch < 0:
                self._watch = self._log.watch(self._log_grew)

    def discard(self, waiting: Waiting) -> None:
        """It does not wait any more; ``more`` may still be called once."""
        with self._lock:
            self._waiting.pop(waiting, None)

    def begin_append(self) -> None:
        with self._lock:
            self._appending += 1

    def end_append(self) -> None:
        """The entries are in the cache. The caller holds no lock."""
        with self._lock:
            self._appending -= 1
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Have all of them look again. The caller holds no lock."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if len(waiting) <= _AT_ONCE:
            for one in waiting:
                _go_on(one)
        else:
            for one in waiting:
                self._later(one)

    def _log_grew(self) -> None:
        """On the thread that has appended, or has learned that the log is gone."""
        with self._lock:
            if self._appending:
                return  # `end_append` follows
            waiting, self._waiting = self._waiting, {}
            if not waiting:
                self._log.unwatch(self._watch)
                self._watch = -1
        for one in waiting:
            self._later(one)

    def _later(self, waiting: Waiting) -> None:
        if self.line is None:
            waiting.more()
        else:
            self.line.call(waiting.more)


def _go_on(waiting: Waiting) -> None:
    try:
        waiting.more()
    except Exception as error:  # it is not the producer's fault
        log.error("subscription_failed", exc_info=error)
