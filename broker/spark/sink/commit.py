"""The driver's commit or abort after the tasks have written: the exactly-once side of the sink.

Each task writes in a transaction of its own, leaves it open and names it in its commit message. Then *one* durable
decision of the broker (EndTxns) commits all of them, so that no reader ever sees a part of a batch. The decision also
commits the batch's number (``marks.py``). If Spark replays a batch, because it was killed before it had recorded the
end of the batch, the number shows that the batch is written, and it is not written again.

| killed                               | the transactions                | after the restart the batch is               |
|--------------------------------------|---------------------------------|----------------------------------------------|
| while tasks write, or before EndTxns | open; fenced by the replay      | written again; open transactions are aborted |
| after the broker decided             | committed, with the number      | recognised; the replay's rows are aborted    |

A driver that was taken for dead may still run. The driver's own producer is part of the decision, and a new driver
fences the old driver by taking over its transactional id (the job's name).

A broker without EndTxns (Kafka itself) can decide for one producer only, so there a single task must write the batch.
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
    """A task's commit message. ``identity`` is its open transaction, or None without a transaction or without rows.

    ``run``: the run of the streaming query, between two restarts, for which the task wrote.
    """

    rows: int
    topics: tuple[str, ...] = ()
    identity: Identity | None = None
    query_id: str | None = None
    run: str | None = None


def task_name(job: str, partition: int, attempt: int) -> str:
    """The transactional id of a task. Another attempt has another id; a replayed batch has the same ids."""
    return f"{job}/{partition}/{attempt}"


class MicroBatch:
    """The commit of a batch, in steps that ``commit`` runs.

    ``marks`` knows which batches the broker has; by default those of a streaming query.
    """

    def __init__(self, cluster: Cluster, batch_id: int, written: Sequence[Written], marks: Marks | None = None) -> None:
        self._cluster = cluster
        self.batch_id = batch_id
        self.members = [task.identity for task in written if task.identity is not None]
        self.marks = marks or query_marks(cluster, written)

    def commit(self) -> bool:
        """Return whether the batch was committed now: False if it was committed before, or if no task has written
        rows."""
        if not self.members:
            return False
        self.abort_leftovers()
        with self._cluster.producer(
            transactional_id=self.marks.job, transaction_timeout_ms=LEADER_TIMEOUT_MS
        ) as leader:
            leader.begin()  # fences an earlier driver of this query
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
        """Abort the transactions of failed and losing attempts; this also fences the tasks of an earlier driver."""
        abort_leftovers(self._cluster, self.marks.prefix, self.marks.is_mine, self.members)

    def last_committed(self) -> int:
        """The number of the last committed batch, -1 for none."""
        return self.marks.last()

    def add_number(self, leader: Producer) -> None:
        leader.commit_offsets(self.marks.group, self.marks.to_commit(self.batch_id))

    def decide(self, leader: Producer) -> None:
        self._cluster.end_together(leader, self.members)

    def decide_for_one(self) -> None:
        """Without EndTxns: commit the number in the transaction of the only task."""
        (member,) = require_one(self.members)
        transaction.commit_offsets(self._cluster.routing, member, self.marks.group, self.marks.to_commit(self.batch_id))
        transaction.end(self._cluster.routing, member, committed=True)


def query_marks(cluster: Cluster, written: Sequence[Written]) -> QueryMarks:
    query_id = next((task.query_id for task in written if task.query_id is not None), None)
    assert query_id is not None or not written
    return QueryMarks(cluster, query_id or "", _topics(written))


def write_marks(cluster: Cluster, app: str, topic: str | None, written: Sequence[Written]) -> WriteMarks:
    """The marks of a write of the application ``app``. ``topic``: that of the option, or None if the rows have a topic."""
    query = next((task.query_id for task in written if task.query_id is not None), None)
    run = next((task.run for task in written if task.run is not None), None)
    return WriteMarks(cluster, app, topic, _topics(written), sum(task.rows for task in written), query, run)


def _topics(written: Iterable[Written]) -> list[str]:
    return sorted({topic for task in written for topic in task.topics})


def commit_job(cluster: Cluster, job: str, written: Iterable[Written]) -> None:
    """Commit everything that the tasks of a batch write have written, or nothing."""
    members = [task.identity for task in written if task.identity is not None]
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
    """Abort the transactions that are still open. If that is impossible now, the broker aborts them when they time
    out."""
    for member in members:
        try:
            transaction.end(cluster.routing, member, committed=False)
        except (TransactionError, ProducerFencedError):
            pass  # it has ended already
        except KafkaClientError as error:
            _log.warning("the transaction %s stays open until it times out: %s", member.transactional_id, error)
            return


def abort_job(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """Abort ``members`` and all other open transactions of this job."""
    abort(cluster, members)
    try:
        abort_job_leftovers(cluster, job, ())
    except KafkaClientError as error:
        _log.warning("transactions of %s may stay open until they time out: %s", job, error)


def abort_job_leftovers(cluster: Cluster, job: str, members: Iterable[Identity]) -> None:
    """Abort the open transactions of this job's tasks except ``members``."""
    abort_leftovers(cluster, f"{job}/", lambda _: True, members)


def abort_leftovers(cluster: Cluster, prefix: str, is_mine: Callable[[str], bool], members: Iterable[Identity]) -> None:
    """Abort the open transactions with ids that begin with ``prefix`` and satisfy ``is_mine``, except ``members``."""
    current = {(member.transactional_id, member.producer_id) for member in members}
    try:
        for opened in cluster.list_transactions(prefix):
            if is_mine(opened.transactional_id) and (opened.transactional_id, opened.producer_id) not in current:
                cluster.abort_transaction(opened.transactional_id)
    except UnsupportedVersionError:
        pass  # before Kafka 3.0: they time out
