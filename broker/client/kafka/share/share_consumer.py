"""A consumer of a share group: records of topics as jobs of a queue, for blocking code.

    from broker.client import ShareConsumer

    with ShareConsumer("localhost:9092", "workers", ["jobs"]) as jobs:
        for record in jobs:
            work(record.value)

Each record is locked for one consumer of the group until the consumer has accepted, released or rejected it, or until
its lock's time (30 s by default, a setting of the group) is over. Works with any broker that has share groups
(KIP-932).

The calling thread does the work of ``poll`` and ``commit`` itself, which costs least and adds no delay. Another thread
sends the heartbeats, so that the consumer stays in its group however long a record takes; a third renews locks if asked
to. Any thread may decide about records.

``Renewals`` renews locks that the user asks for, and optionally all locks of records in work. Automatic renewals happen
after half of a lock's time, and only for ``limit_s`` after the consumer last asked for records: a worker that hangs
must not keep its records forever.

``Pace`` decides how many records a loop locks at a time. Pure. Locked records are not available to other workers, and
their locks run out while they wait. So a loop holds about as many records as it finishes in a second: one at first,
then twice as many each time, as long as it finishes them in half of that.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.errors import KafkaClientError, code_name
from broker.client.kafka.share.acquired import ACCEPT, GAP, REJECT, RELEASE, Settled
from broker.client.kafka.share.engine import Engine
from broker.client.kafka.share.membership import Membership
from broker.client.kafka.share.record import AcknowledgementError, ShareRecord
from broker.errors import BrokerError, ConfigError
from broker.runtime import forks
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.entropy import SystemEntropy
from broker.runtime.threads import Condition, SystemThreads, ThreadHandle


class Renewals:
    """``renew(automatic)`` renews locks and returns when the next will be due (monotonic, s)."""

    def __init__(
        self, renew: Callable[[bool], float], on_crash: Callable[[BaseException], None], clock: Clock, limit_s: float
    ) -> None:
        self._renew = renew
        self._on_crash = on_crash
        self._clock = clock
        self._limit_s = limit_s  # 0: only renewals that the user asks for
        self._condition = Condition()
        self._is_due = False
        self._until = 0.0
        self._thread: ThreadHandle | None = None

    @property
    def is_automatic(self) -> bool:
        return self._limit_s > 0

    def look(self) -> None:
        """Wake the thread: there are new locks, or the user has asked for a renewal."""
        with self._condition:
            if self._thread is None:
                self._thread = SystemThreads().spawn("share-renewals", self, self._on_crash)
            self._until = self._clock.monotonic() + self._limit_s
            self._is_due = True
            self._condition.notify_all()

    def stop(self, timeout_s: float) -> bool:
        return self._thread is None or self._thread.stop(timeout_s)

    def wakeup(self) -> None:
        with self._condition:
            self._is_due = True
            self._condition.notify_all()

    def step(self, timeout: float | None) -> bool:
        with self._condition:
            while not self._is_due:
                self._condition.wait()
            self._is_due = False
        automatic = self.is_automatic and self._clock.monotonic() < self._until
        again_at = self._renew(automatic)
        if again_at == inf:
            return True
        with self._condition:
            wait_s = min(again_at, self._until) - self._clock.monotonic()
            if not self._is_due and wait_s > 0:
                self._condition.wait(wait_s)
            self._is_due = self._is_due or self._clock.monotonic() < self._until
        return True


_TARGET_S = 1.0


class Pace:
    """``size``: how many records to ask for next, at most ``most``."""

    __slots__ = ("_most", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = 1

    @property
    def is_fast(self) -> bool:
        """Whether the loop may get more records than it asks for."""
        return self.size == self._most

    def finished(self, count: int, seconds: float) -> None:
        """Record that a batch of ``count`` records took this long."""
        if seconds > _TARGET_S:
            self.size = max(1, min(self.size, int(count * _TARGET_S / seconds)))
        elif count >= self.size and seconds < _TARGET_S / 2:
            self.size = min(2 * self.size, self._most)


# topic, partition, offsets, and the error if they do not count
OnAcknowledged = Callable[[str, int, list[int], KafkaClientError | None], object]

_DECISIONS = {ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected"}

# A wait without an end consists of waits of this length, so that closing the consumer or Ctrl-C ends it.
_SLICE_S = 0.5

# How long a loop's decisions wait at most for the last record that was fetched with them.
_SEND_S = 1.0


class ShareConsumer:
    """``servers``: addresses separated by commas, a sequence of them, or a ``ClientConfig``.

    ``acknowledgement``: "implicit" accepts every undecided record when the next record is requested (in a loop) or with
    the next ``poll``, ``commit`` or ``close``; if an exception ends the ``with`` block, the record in work is released.
    "explicit" leaves decisions to ``record.accept()`` and its siblings, on any thread; any number of records may be in
    work.

    ``max_poll_records``: the most that one ``poll`` returns. A loop locks fewer if they take long, see ``Pace``.
    ``idle_timeout_s``: a loop ends after this time without a record (None: it continues). ``renew_while_processing``:
    keep the locks of records in work, until ``renew_limit_s`` after the last request for records.
    ``on_acknowledged(topic, partition, offsets, error)`` is called on the thread that calls ``poll``, ``commit`` or
    ``close``. ``whole_batches``: let ``poll`` lock whole batches of a producer, even if they have more records than
    requested, which costs less. A fast loop does so by itself.
    ``settings``: any other setting of a Kafka client by its name, such as security.protocol or fetch.max.wait.ms.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | ClientConfig,
        group: str,
        topics: Iterable[str] = (),
        *,
        acknowledgement: Literal["implicit", "explicit"] = "implicit",
        max_poll_records: int = 500,
        idle_timeout_s: float | None = None,
        renew_while_processing: bool = False,
        renew_limit_s: float = 3600.0,
        on_acknowledged: OnAcknowledged | None = None,
        whole_batches: bool = False,
        rack: str | None = None,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if acknowledgement not in ("implicit", "explicit"):
            raise ConfigError(f'acknowledgement must be "implicit" or "explicit", not {acknowledgement!r}.')
        if not group:
            raise ConfigError("A share consumer needs the name of its group.")
        if max_poll_records < 1:
            raise ConfigError(f"max_poll_records must be 1 or more, not {max_poll_records}.")
        config = servers if isinstance(servers, ClientConfig) else _config(servers, settings or {})
        self.group = group
        self.member_id = str(UUID(bytes=SystemEntropy.bytes(16), version=4))
        self.idle_timeout_s = idle_timeout_s
        self._implicit = acknowledgement == "implicit"
        self.max_poll_records = max_poll_records
        self._whole_batches = whole_batches
        self._on_acknowledged = on_acknowledged
        self._clock = clock or SystemClock()
        membership = Membership(
            group,
            self.member_id,
            _names(topics),
            rack,
            config.retry_backoff_ms / 1000,
            config.retry_backoff_max_ms / 1000,
        )
        self._engine = Engine(config, membership, self, self._clock)
        limit_s = renew_limit_s if renew_while_processing else 0.0
        self._renewals = Renewals(self._engine.renew, self._crashed, self._clock, limit_s)
        self._close_timeout_s = min(config.request_timeout_ms / 1000, 10.0)
        self._forks = forks.count()
        self.is_closed = False
        self._crash: BrokerError | None = None
        self._engine.heartbeats.start()

    # Life -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(release=error is not None)

    def close(self, *, release: bool = False) -> None:
        """Send the last decisions, release undecided records, and leave the group.

        With ``release``, implicit acknowledgement does not accept the records in work: they are released.
        """
        try:
            self.end(release)
        finally:
            self.report()

    def end(self, release: bool) -> None:
        """The blocking part of ``close``."""
        if self.is_closed:
            return
        self.is_closed = True
        engine = self._engine
        with engine.condition:
            for link in engine.links.values():
                if self._implicit and not release:
                    link.holdings.accept_delivered()
                link.holdings.release_held()
            engine.condition.notify_all()
        self._renewals.stop(self._close_timeout_s)
        engine.close(self._close_timeout_s)

    # Topics ---------------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics instead of the previous ones."""
        self._check()
        engine = self._engine
        with engine.condition:
            engine.membership.subscribe(_names(topics), self._clock.monotonic())
            engine.condition.notify_all()

    @property
    def subscription(self) -> frozenset[str]:
        return self._engine.membership.topics

    @property
    def has_fetched(self) -> bool:
        """Whether a broker has answered a fetch since the group last assigned partitions, with or without records."""
        return self._engine.has_fetched

    @property
    def assignment(self) -> frozenset[tuple[UUID, int]]:
        """The (topic id, partition) that the group has assigned to this consumer. Others may read the same
        partitions."""
        return self._engine.membership.assigned

    # Records --------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None = None, max_records: int | None = None) -> list[ShareRecord]:
        """Up to ``max_records``, as soon as there is one; an empty list after ``timeout_s`` (None: no end)."""
        count, deadline = self.begin_poll(timeout_s, max_records)
        while True:
            self._fill(deadline, count)
            records = self.take(count)
            if records or self.is_over(deadline):
                return records

    def __iter__(self) -> Iterator[ShareRecord]:
        """Records, one after the other. The loop ends when the consumer is closed, or after ``idle_timeout_s`` without
        a record."""
        pace = Pace(self.max_poll_records)
        clock = self._clock
        while True:
            deadline = self._deadline(self.idle_timeout_s)
            while not self._engine.buffer:
                if self.is_over(deadline):
                    return
                self._check()
                self._fill(deadline, pace.size, strict=not pace.is_fast)
            began_at = sent_at = clock.monotonic()
            count = 0
            while not self.is_closed and (records := self.take(1)):
                (record,) = records
                count += 1
                yield record
                self.done(record)
                if self.is_late(sent_at):
                    self.send()
                    self.report()
                    sent_at = clock.monotonic()
            pace.finished(count, clock.monotonic() - began_at)

    # Parts of both, also for coroutines ----------------------------------------------------------------------

    def begin_poll(self, timeout_s: float | None, max_records: int | None) -> tuple[int, float]:
        """The number of records to take and the end of the wait (monotonic, s)."""
        self._check()
        self._accept_delivered()
        count = self.max_poll_records if max_records is None else max_records
        if count < 1:
            raise ValueError(f"max_records must be 1 or more, not {count}")
        return count, self._deadline(timeout_s)

    def fill(self, deadline: float, count: int, strict: bool = True) -> None:
        """Wait for records to ``take``, until ``deadline`` or for half a second. The only part that waits for
        brokers."""
        self._engine.fill(min(deadline, self._clock.monotonic() + _SLICE_S), count, strict and not self._whole_batches)

    def _fill(self, deadline: float, count: int, strict: bool = True) -> None:
        try:
            self.fill(deadline, count, strict)
        finally:
            self.report()

    def take(self, count: int) -> list[ShareRecord]:
        """Take the buffered records, without waiting."""
        records = self._engine.take(count)
        if records and self._renewals.is_automatic:
            self._engine.check_renewals()
            self._renewals.look()
        return records

    def is_over(self, deadline: float) -> bool:
        return self.is_closed or self._clock.monotonic() >= deadline

    def _deadline(self, timeout_s: float | None) -> float:
        return inf if timeout_s is None else self._clock.monotonic() + timeout_s

    def is_late(self, sent_at: float) -> bool:
        """Whether a loop has become slow, so that its decisions should not wait for its next fetch."""
        return self._clock.monotonic() - sent_at > _SEND_S and bool(self._engine.buffer) and not self.is_closed

    def send(self) -> None:
        """Send the decisions and wait. The callback is told of those that do not count."""
        self._engine.flush()

    def done(self, record: ShareRecord) -> None:
        """The loop has requested the next record."""
        if self._implicit:
            with self._engine.lock:
                record.acquired.accept_if_delivered(record.offset)

    # Decisions ------------------------------------------------------------------------------------------------------

    def decide(self, record: ShareRecord, decision: int) -> None:
        """Called by the record's methods."""
        with self._engine.lock:
            decided = record.acquired.decide(record.offset, decision)
        if not decided:
            error = AcknowledgementError(
                f"The record at offset {record.offset} of {record.topic}-{record.partition} can no longer be"
                f" {_DECISIONS[decision]}: its acknowledgement has been sent, or its lock is over."
            )
            error.offsets = {(record.topic, record.partition): [record.offset]}
            raise error

    def ask_renewal(self, record: ShareRecord) -> None:
        """Called by ``record.renew``."""
        self._check()
        self._engine.check_renewals()
        with self._engine.lock:
            record.acquired.ask_renewal(record.offset)
        self._renewals.look()

    def commit(self) -> None:
        """Send the decisions and wait until the broker has stored them. Raises AcknowledgementError for those that do
        not count.

        Implicit acknowledgement accepts all records polled before.
        """
        try:
            self.flush()
        finally:
            self.report()

    def flush(self) -> None:
        """The blocking part of ``commit``."""
        self._check()
        self._accept_delivered()
        failed = self._engine.flush()
        if failed:
            raise _not_counted(failed)

    def _accept_delivered(self) -> None:
        if self._implicit:
            with self._engine.lock:
                for link in self._engine.links.values():
                    link.holdings.accept_delivered()

    # Reports --------------------------------------------------------------------------------------------------------

    def report(self) -> None:
        """Tell the callback the outcomes of acknowledgements."""
        results = self._engine.results
        while results:
            try:
                settled = results.popleft()
            except IndexError:  # another thread was faster
                return
            if self._on_acknowledged is None:
                continue
            offsets = _offsets(settled)
            if offsets:
                error = _not_counted([settled]) if settled.error else None
                self._on_acknowledged(settled.topic, settled.partition, offsets, error)

    def _check(self) -> None:
        if self.is_closed:
            raise KafkaClientError("The share consumer is closed.")
        if self._forks != forks.count():
            raise KafkaClientError("A share consumer cannot be used in a forked process: make one there.")
        if self._crash is not None:
            raise self._crash

    def _crashed(self, error: BaseException) -> None:
        if isinstance(error, BrokerError):
            self._crash = error
        else:
            self._crash = BrokerError(f"The share consumer's renewals have ended: {error!r}.")
            self._crash.__cause__ = error


def _config(servers: str | Sequence[str], settings: Mapping[str, Any]) -> ClientConfig:
    addresses = servers if isinstance(servers, str) else ",".join(servers)
    config = ClientConfig.from_properties(dict(settings) | {"bootstrap.servers": addresses})
    if config.unknown:
        raise ConfigError(f"A share consumer does not know the setting {config.unknown[0]!r}.")
    return config


def _names(topics: Iterable[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if "" in names:
        raise ConfigError(f"The topics of a share consumer must be names, not {names!r}.")
    return names


def _offsets(settled: Settled) -> list[int]:
    """The settled offsets, except those without a record."""
    offsets: list[int] = []
    for first, last, types in settled.batches:
        if len(types) == 1:
            if types[0] != GAP:
                offsets += range(first, last + 1)
        else:
            offsets += (first + index for index, kind in enumerate(types) if kind != GAP)
    return offsets


def _not_counted(failed: Sequence[Settled]) -> AcknowledgementError:
    offsets: dict[tuple[str, int], list[int]] = {}
    for settled in failed:
        offsets.setdefault((settled.topic, settled.partition), []).extend(_offsets(settled))
    count = sum(map(len, offsets.values()))
    code = failed[0].error
    error = AcknowledgementError(
        f"{count} acknowledgements of {failed[0].topic}-{failed[0].partition}"
        f"{' and others' if len(offsets) > 1 else ''} do not count: {code_name(code)}.",
        code,
    )
    error.offsets = offsets
    return error
