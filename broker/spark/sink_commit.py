"""What the driver does when all tasks have written, or when one has failed: the exactly-once side of the sink.

Each task writes in a transaction of its own and leaves it open; its commit message says which. Then *one* durable decision of
the broker (EndTxns) commits them all, so that nobody ever sees a part of a batch. A micro-batch's decision also commits its
number, as an offset of the group ``spark-<query id>``: a batch that Spark replays, because it was killed before it had written
down that the batch was done, is recognised by it and not written again.

| killed                               | the transactions                | after the restart the batch is             |
|--------------------------------------|---------------------------------|--------------------------------------------|
| while tasks write, or before EndTxns | open; fenced when it is replayed | written again; what was open is aborted    |
| after the broker decided             | committed, number and all       | recognised; the replay's writing is aborted |

A driver that was believed dead and is not: the driver's own producer ``spark-<query id>`` is part of the decision, and taking
its name fences whoever had it.

A broker without EndTxns (Kafka itself) can decide for one producer only, so there a batch must be written by one task.
"""

import logging
from collections.abc import Iterable, Sequence

import attrs
from pyspark.sql.datasource import WriterCommitMessage

from broker.client.kafka import transaction
from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import (
    JointCommitUnsupportedError,
    KafkaClientError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
)
from broker.client.kafka.producer import Producer
from broker.client.kafka.values import Identity, TopicPartition

_log = logging.getLogger(__name__)

# The driver's own transaction lasts from its begin to the decision (ms).
_LEADER_TIMEOUT_MS = 60_000


@attrs.frozen
class Written(WriterCommitMessage):
    """A task's commit message. ``identity`` is its open transaction; None without one, or if it had no rows."""

    rows: int
    topics: tuple[str, ...] = ()
    identity: Identity | None = None
    query_id: str | None = None


def task_name(job: str, partition: int, attempt: int) -> str:
    """The transactional id of a task: an attempt that is run again has its own, a batch that is replayed the same."""
    return f"{job}/{partition}/{attempt}"


def query_name(query_id: str) -> str:
    """The transactional id of a query's driver, and the group that has the number of the last batch."""
    return f"spark-{query_id}"


class MicroBatch:
    """One micro-batch's commit, step by step: ``commit`` runs all of them."""

    def __init__(self, cluster: Cluster, batch_id: int, written: Sequence[Written]) -> None:
        self._cluster = cluster
        self.batch_id = batch_id
        self.members = [one.identity for one in written if one.identity is not None]
        self.topics = sorted({topic for one in written for topic in one.topics})
        self.query_id = next((one.query_id for one in written if one.query_id is not None), None)

    def commit(self) -> bool:
        """Whether it was committed now: False for one that had been before, or that nobody has written to."""
        if not self.members:
            return False
        assert self.query_id is not None
        self.abort_leftovers()
        with self._cluster.producer(
            transactional_id=query_name(self.query_id), transaction_timeout_ms=_LEADER_TIMEOUT_MS
        ) as leader:
            leader.begin()  # whoever drove this query before us can decide nothing more
            if self.batch_id <= self.last_committed():
                _log.warning("batch %d of query %s is committed already", self.batch_id, self.query_id)
                abort(self._cluster, self.members)
                return False
            if transaction.can_end_together(self._cluster, query_name(self.query_id)):
                self.add_number(leader)
                self.decide(leader)
            else:
                self.decide_for_one()
        return True

    @property
    def number_is_at(self) -> TopicPartition:
        """An offset has to be of some partition: the first of the first topic that is written to."""
        return self.topics[0], 0

    def abort_leftovers(self) -> None:
        """Of attempts that failed or lost; also fences the tasks of a driver that is not dead."""
        assert self.query_id is not None
        abort_leftovers(self._cluster, query_name(self.query_id), self.members)

    def last_committed(self) -> int:
        """The number of the last batch, -1 for none. The topics may change from batch to batch, so all are looked at; only
        one that is named is waited for while a transaction is about to commit it."""
        assert self.query_id is not None
        group = query_name(self.query_id)
        found = self._cluster.committed(group) | self._cluster.committed(group, [self.number_is_at], stable=True)
        return max((one.offset for one in found.values()), default=-1)

    def add_number(self, leader: Producer) -> None:
        assert self.query_id is not None
        leader.commit_offsets(query_name(self.query_id), {self.number_is_at: self.batch_id})

    def decide(self, leader: Producer) -> None:
        self._cluster.end_together(leader, self.members)

    def decide_for_one(self) -> None:
        """Without EndTxns: the one task's transaction takes the number, too."""
        assert self.query_id is not None
        (member,) = require_one(self.members)
        transaction.commit_offsets(self._cluster, member, query_name(self.query_id), {self.number_is_at: self.batch_id})
        transaction.end(self._cluster, member, committed=True)


def commit_job(cluster: Cluster, job: str, written: Iterable[Written]) -> None:
    """All that the tasks of a batch write have written, or nothing of it."""
    members = [one.identity for one in written if one.identity is not None]
    abort_leftovers(cluster, job, members)
    if not members:
        return
    if len(members) > 1 and transaction.can_end_together(cluster, members[0].transactional_id):
        transaction.end_together(cluster, members)
    else:
        (member,) = require_one(members)
        transaction.end(cluster, member, committed=True)


def require_one(members: Sequence[Identity]) -> Sequence[Identity]:
    if len(members) == 1:
        return members
    raise JointCommitUnsupportedError(
        f"This broker cannot commit what {len(members)} tasks have written as one: set deliveryGuarantee=at-least-once,"
        f" write with one task (coalesce(1)), or write to a reactor-broker."
    )


def abort(cluster: Cluster, members: Iterable[Identity]) -> None:
    """Whatever of these is still open. What cannot be aborted now, the broker aborts when its time is over."""
    for member in members:
        try:
            transaction.end(cluster, member, committed=False)
        except (TransactionError, ProducerFencedError):
            pass  # it has ended
        except KafkaClientError as error:
            _log.warning("the transaction %s stays open until it times out: %s", member.transactional_id, error)
            return


def abort_job(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """``abort``, and what else of this job is open."""
    abort(cluster, members)
    try:
        abort_leftovers(cluster, job, ())
    except KafkaClientError as error:
        _log.warning("transactions of %s may stay open until they time out: %s", job, error)


def abort_leftovers(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """Open transactions of tasks of this job that are none of ``members``."""
    mine = {(one.transactional_id, one.producer_id) for one in members}
    try:
        for one in cluster.list_transactions(f"{job}/"):
            if (one.transactional_id, one.producer_id) not in mine:
                cluster.abort_transaction(one.transactional_id)
    except UnsupportedVersionError:
        pass  # before Kafka 3.0: they time out
