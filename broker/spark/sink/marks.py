"""Marks of written batches on the broker, so that a repeated batch is not written again. On the driver's thread.

A mark is a committed offset: the number of the last batch, at partition 0 of the first topic that was written to. The
decision that commits the rows also commits the mark (``commit.py``). The mark's group identifies the counted batches:

| write                                       | job: its transactional ids begin so  | group of the mark         |
|---------------------------------------------|--------------------------------------|---------------------------|
| a stream                                    | ``spark-<query>``                    | the same                  |
| txnAppId, txnVersion and the option topic   | ``spark-<app>/topic/<topic>``        | the same                  |
| txnAppId, txnVersion and the column topic   | ``spark-<app>/column``               | ``<job>/<hash of topics>``|

So numbered writes of one application to different topics, or to different sets of topics, are counted separately, as
Delta counts them by table. By the numbers alone, two writes with the same number to the same target look like a write
and its repetition. The mark therefore also names the streaming query of the write, and the run of that query in which
the number came last: a batch is repeated only in the same query, and comes only once within a run.

Older versions counted all numbered writes of an application together, in the group ``spark-<app>``. A mark in that
group belongs to the last write with that first topic, without naming the write: the first write with its number claims
it.
"""

import hashlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import TransactionError
from broker.client.kafka.producer import Producer
from broker.client.kafka.values import OffsetAndMetadata, TopicPartition
from broker.errors import ConfigError

_log = logging.getLogger(__name__)

# The timeout (ms) of the driver's own transactions, which last from their begin to the decision.
LEADER_TIMEOUT_MS = 60_000

# The end of a task's transactional id in older versions, after the application: partition and attempt.
_OLD_TASK = re.compile("/[0-9]+/[0-9]+")


def query_name(query_id: str) -> str:
    """The transactional id of a query's driver, and the group that keeps the number of the last batch."""
    return f"spark-{query_id}"


def write_name(app: str, topic: str | None) -> str:
    """The transactional id of the driver of a numbered write. ``topic`` None: the rows have a topic."""
    return f"{query_name(app)}/column" if topic is None else f"{query_name(app)}/topic/{topic}"


class Marks(Protocol):
    """Call ``last`` first. Then commit the offsets of ``to_commit`` with the rows, or call ``repeated`` for a repeated batch."""

    @property
    def job(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def prefix(self) -> str:
        """The text with which every id that ``is_mine`` begins."""

    def is_mine(self, transactional_id: str) -> bool:
        """Whether this is a transaction of an earlier attempt to write such a batch, usually a task's."""

    def last(self) -> int:
        """The number of the last batch on the broker; -1 for none."""

    def to_commit(self, number: int) -> Mapping[TopicPartition, OffsetAndMetadata]: ...

    def repeated(self, leader: Producer, number: int) -> None:
        """The broker has the batch already. ``leader`` is in a transaction, which ends here."""


@attrs.frozen
class QueryMarks:
    """The marks of a streaming query. It has one sink, so a batch is written once, to any topics."""

    cluster: Cluster
    query_id: str
    topics: Sequence[str]

    @property
    def job(self) -> str:
        return query_name(self.query_id)

    @property
    def group(self) -> str:
        return self.job

    @property
    def prefix(self) -> str:
        return f"{self.job}/"

    def is_mine(self, transactional_id: str) -> bool:
        return transactional_id.startswith(self.prefix)

    def last(self) -> int:
        """The highest number at all topics, because they may change from batch to batch.

        Waits for transactions that are committing the mark, but only at the present topic.
        """
        marks = self.cluster.committed(self.group)
        marks |= self.cluster.committed(self.group, [_place(self.topics)], stable=True)
        return max((mark.offset for mark in marks.values()), default=-1)

    def to_commit(self, number: int) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return {_place(self.topics): OffsetAndMetadata(number)}

    def repeated(self, leader: Producer, number: int) -> None:
        _log.warning("batch %d of query %s is committed already", number, self.query_id)


@attrs.frozen
class _Mark:
    """``rows``: the rows of the last write. ``query``: its streaming query. ``run``: the run in which a number came last, and
    ``seen``: that number."""

    number: int
    rows: int = -1
    query: str | None = None
    run: str | None = None
    seen: int = -1

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> "_Mark":
        try:
            stored: Any = json.loads(committed.metadata)
            query, run = (None if stored[name] is None else str(stored[name]) for name in ("query", "run"))
            return cls(committed.offset, int(stored["rows"]), query, run, int(stored["seen"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls(committed.offset)  # an administrator has set it

    def stored(self, topics: str) -> OffsetAndMetadata:
        fields = {"query": self.query, "run": self.run, "seen": self.seen, "rows": self.rows, "topics": topics}
        return OffsetAndMetadata(self.number, json.dumps(fields))


@attrs.define(eq=False)
class WriteMarks:
    """The marks of an application's writes to a target: the topic of the option, or the set of the rows' topics."""

    cluster: Cluster
    app: str
    topic: str | None
    topics: Sequence[str]
    rows: int
    query: str | None = None
    run: str | None = None
    _mark: _Mark | None = None

    @property
    def job(self) -> str:
        return write_name(self.app, self.topic)

    @property
    def group(self) -> str:
        return self.job if self.topic is not None else f"{self.job}/{_digest(','.join(self.topics))}"

    @property
    def prefix(self) -> str:
        return query_name(self.app)

    def is_mine(self, transactional_id: str) -> bool:
        """Includes transactions that a driver of an older version has left open, and that driver's own."""
        if transactional_id == self.prefix or transactional_id.startswith(f"{self.job}/"):
            return True
        return _OLD_TASK.fullmatch(transactional_id.removeprefix(self.prefix)) is not None

    def last(self) -> int:
        place = _place(self.topics)
        committed = self.cluster.committed(self.group, [place], stable=True).get(place)
        self._mark = None if committed is None else _Mark.of(committed)
        return max(-1 if self._mark is None else self._mark.number, self._last_by_an_older_version())

    def _last_by_an_older_version(self) -> int:
        place = _place(self.topics)
        old = self.cluster.committed(query_name(self.app), [place], stable=True).get(place)
        if old is None:
            return -1
        # Writes before the last write cannot be told apart, so they count for every target.
        return old.offset if old.metadata in ("", self._claim) else old.offset - 1

    @property
    def _claim(self) -> str:
        return f"claimed {_digest(self.group)}"

    def to_commit(self, number: int) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return {_place(self.topics): _Mark(number, self.rows, self.query, self.run, number).stored(self._topics)}

    def repeated(self, leader: Producer, number: int) -> None:
        """Raises ConfigError if this is another write with the same number."""
        mark = self._mark
        if mark is not None and None not in (self.query, mark.query) and mark.query != self.query:
            raise ConfigError(
                f"txnAppId {self.app!r} has come to txnVersion {mark.number} for {self._topics} in another query"
                f" ({mark.query}), so these {self.rows} rows with txnVersion {number} would be lost: a query with a new"
                f" checkpoint counts from 0 on, give it a txnAppId of its own."
            )
        if mark is not None and self.run is not None and mark.run == self.run and number <= mark.seen:
            raise ConfigError(
                f"txnAppId {self.app!r} has written to {self._topics} with txnVersion {mark.seen} in this run of the query"
                f" already, so these {self.rows} rows with txnVersion {number} would be lost: give each of the writes of a"
                f" batch a txnAppId of its own, or write them as one."
            )
        if mark is not None and mark.number == number and mark.rows not in (-1, self.rows):
            _log.warning(
                "txnVersion %d of txnAppId %r is in %s already, with %d rows; it came again with %d, which are NOT written."
                " If they are other rows, give their write a txnAppId of its own",
                number, self.app, self._topics, mark.rows, self.rows,
            )  # fmt: skip
        else:
            _log.warning(
                "txnVersion %d of txnAppId %r is in %s already: its %d rows are not written again",
                number, self.app, self._topics, self.rows,
            )  # fmt: skip
        known = -1 if mark is None else mark.number
        if known < number:
            self._take_over(number)
        if self.run is not None:
            again = _Mark(max(known, number), -1 if mark is None else mark.rows, self.query, self.run, number)
            leader.commit_offsets(self.group, {_place(self.topics): again.stored(self._topics)})
            leader.commit()

    def _take_over(self, number: int) -> None:
        """Claim the mark of an older version if it has this number. A driver that claims at the same time is fenced."""
        place, group = _place(self.topics), query_name(self.app)
        with self.cluster.producer(transactional_id=group, transaction_timeout_ms=LEADER_TIMEOUT_MS) as claimer:
            claimer.begin()
            old = self.cluster.committed(group, [place], stable=True).get(place)
            if old is not None and old.offset == number and old.metadata != self._claim:
                if old.metadata:
                    raise TransactionError(
                        f"Another write of txnAppId {self.app!r} with txnVersion {number} has just taken the mark of an older"
                        f" version: write to {self._topics} again."
                    )
                claimer.commit_offsets(group, {place: OffsetAndMetadata(number, self._claim)})
            claimer.commit()

    @property
    def _topics(self) -> str:
        """The topics for messages, of many only the first: an offset's metadata holds 4096 bytes."""
        named = [repr(topic) for topic in self.topics[:5]]
        return ", ".join(named) + (f" and {len(self.topics) - 5} more" if len(self.topics) > 5 else "")


def _place(topics: Collection[str]) -> TopicPartition:
    """The partition at which the mark is committed; an offset must belong to a partition."""
    return min(topics), 0


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
