"""What the driver does when all tasks have written, or when one has failed: the exactly-once side of the sink.

Each task writes in a transaction of its own and leaves it open; its commit message says which. Then *one* durable decision of
the broker (EndTxns) commits them all, so that nobody ever sees a part of a batch. The decision also commits the batch's number
(``sink_marks.py``): a batch that Spark replays, because it was killed before it had written down that the batch was done, is
recognised by it and not written again.

| killed                               | the transactions                | after the restart the batch is             |
|--------------------------------------|---------------------------------|--------------------------------------------|
| while tasks write, or before EndTxns | open; fenced when it is replayed | written again; what was open is aborted    |
| after the broker decided             | committed, number and all       | recognised; the replay's writing is aborted |

A driver that was believed dead and is not: the driver's own producer is part of the decision, and taking its name (the job's)
fences whoever had it.

A broker without EndTxns (Kafka itself) can decide for one producer only, so there a batch must be written by one task.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

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
from broker.client.kafka.values import Identity
from broker.spark.sink.marks import LEADER_TIMEOUT_MS, Marks, QueryMarks, WriteMarks

_log = logging.getLogger(__name__)


@attrs.frozen
class Written(WriterCommitMessage):
    """A task's commit message. ``identity`` is its open transaction; None without one, or if it had no rows. ``run``: of the
    streaming query that it was written for, between two restarts."""

    rows: int
    topics: tuple[str, ...] = ()
    identity: Identity | None = None
    query_id: str | None = None
    run: str | None = None


def task_name(job: str, partition: int, attempt: int) -> str:
    """The transactional id of a task: an attempt that is run again has its own, a batch that is replayed the same."""
    return f"{job}/{partition}/{attempt}"


class MicroBatch:
    """One batch's commit, step by step: ``commit`` runs all of them. ``marks`` says which batches the broker has: those of a
    streaming query if nothing else is said."""

    def __init__(self, cluster: Cluster, batch_id: int, written: Sequence[Written], marks: Marks | None = None) -> None:
        self._cluster = cluster
        self.batch_id = batch_id
        self.members = [one.identity for one in written if one.identity is not None]
        self.marks = marks or query_marks(cluster, written)

    def commit(self) -> bool:
        """Whether it was committed now: False for one that had been before, or that nobody has written to."""
        if not self.members:
            return False
        self.abort_leftovers()
        with self._cluster.producer(
            transactional_id=self.marks.job, transaction_timeout_ms=LEADER_TIMEOUT_MS
        ) as leader:
            leader.begin()  # whoever drove this query before us can decide nothing more
            if self.batch_id <= self.last_committed():
                abort(self._cluster, self.members)
                self.marks.repeated(leader, self.batch_id)
                return False
            if transaction.can_end_together(self._cluster.routing, self.marks.job):
                self.add_number(leader)
                self.decide(leader)
            else:
                self.decide_for_one()
        return True

    def abort_leftovers(self) -> None:
        """Of attempts that failed or lost; also fences the tasks of a driver that is not dead."""
        abort_leftovers(self._cluster, self.marks.prefix, self.marks.is_mine, self.members)

    def last_committed(self) -> int:
        """The number of the last batch, -1 for none."""
        return self.marks.last()

    def add_number(self, leader: Producer) -> None:
        leader.commit_offsets(self.marks.group, self.marks.to_commit(self.batch_id))

    def decide(self, leader: Producer) -> None:
        self._cluster.end_together(leader, self.members)

    def decide_for_one(self) -> None:
        """Without EndTxns: the one task's transaction takes the number, too."""
        (member,) = require_one(self.members)
        transaction.commit_offsets(self._cluster.routing, member, self.marks.group, self.marks.to_commit(self.batch_id))
        transaction.end(self._cluster.routing, member, committed=True)


def query_marks(cluster: Cluster, written: Sequence[Written]) -> QueryMarks:
    query_id = next((one.query_id for one in written if one.query_id is not None), None)
    assert query_id is not None or not written
    return QueryMarks(cluster, query_id or "", _topics(written))


def write_marks(cluster: Cluster, app: str, topic: str | None, written: Sequence[Written]) -> WriteMarks:
    """Of a write of the application ``app``. ``topic``: of the option; None if the rows say it."""
    query = next((one.query_id for one in written if one.query_id is not None), None)
    run = next((one.run for one in written if one.run is not None), None)
    return WriteMarks(cluster, app, topic, _topics(written), sum(one.rows for one in written), query, run)


def _topics(written: Iterable[Written]) -> list[str]:
    return sorted({topic for one in written for topic in one.topics})


def commit_job(cluster: Cluster, job: str, written: Iterable[Written]) -> None:
    """All that the tasks of a batch write have written, or nothing of it."""
    members = [one.identity for one in written if one.identity is not None]
    abort_job_leftovers(cluster, job, members)
    if not members:
        return
    if len(members) > 1 and transaction.can_end_together(cluster.routing, members[0].transactional_id):
        transaction.end_together(cluster.routing, members)
    else:
        (member,) = require_one(members)
        transaction.end(cluster.routing, member, committed=True)


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
            transaction.end(cluster.routing, member, committed=False)
        except (TransactionError, ProducerFencedError):
            pass  # it has ended
        except KafkaClientError as error:
            _log.warning("the transaction %s stays open until it times out: %s", member.transactional_id, error)
            return


def abort_job(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """``abort``, and what else of this job is open."""
    abort(cluster, members)
    try:
        abort_job_leftovers(cluster, job, ())
    except KafkaClientError as error:
        _log.warning("transactions of %s may stay open until they time out: %s", job, error)


def abort_job_leftovers(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """Open transactions of tasks of this job that are none of ``members``."""
    abort_leftovers(cluster, f"{job}/", lambda _: True, members)


def abort_leftovers(cluster: Cluster, prefix: str, is_mine: Callable[[str], bool], members: Iterable[Identity]) -> None:
    """Open transactions whose ids begin with ``prefix`` and are ours, but none of ``members``."""
    current = {(one.transactional_id, one.producer_id) for one in members}
    try:
        for one in cluster.list_transactions(prefix):
            if is_mine(one.transactional_id) and (one.transactional_id, one.producer_id) not in current:
                cluster.abort_transaction(one.transactional_id)
    except UnsupportedVersionError:
        pass  # before Kafka 3.0: they time out
