"""The commit of micro-batches, killed at every step, with drivers that restart and drivers that were wrongly taken for dead.

Without Spark: the writers and the commit themselves, on a real broker. With Spark: tests/spark/test_sink_kill.py.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import pyarrow as pa

from broker.client import Broker
from broker.client.kafka import LATEST, Cluster
from broker.client.kafka.errors import JointCommitUnsupportedError, KafkaClientError, ProducerFencedError
from broker.client.kafka.producer import Producer
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.batch_sink import Task, write_task
from broker.spark.sink.commit import MicroBatch, Written, task_name
from broker.spark.sink.marks import query_name
from broker.spark.sink.options import SinkColumns, SinkOptions
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values

_names = itertools.count()

TASKS = 3
COLUMNS = SinkColumns(value=0)

# The points at which a driver may be killed, in order; "decided" is before Spark has recorded that the
# batch is done.
STEPS = ("written", "leftovers", "begun", "number", "decided")


class Killed(BaseException):
    """A kill as the code sees it: no handler of errors cleans up."""


class Mortal(MicroBatch):
    """Dies after a step, or stands still after it while another driver acts."""

    dies_after = ""
    stands_after = ""
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _step(self, name: str) -> None:
        if self.dies_after == name:
            raise Killed(name)
        if self.stands_after == name:
            self.meanwhile()

    def abort_leftovers(self) -> None:
        super().abort_leftovers()
        self._step("leftovers")

    def last_committed(self) -> int:
        last = super().last_committed()
        self._step("begun")
        return last

    def add_number(self, leader: Producer) -> None:
        super().add_number(leader)
        self._step("number")

    def decide(self, leader: Producer) -> None:
        super().decide(leader)
        self._step("decided")


class Alone(Mortal):
    """As on a broker that can decide for a single producer only."""

    def commit(self) -> bool:
        original, sink_commit.transaction.can_end_together = sink_commit.transaction.can_end_together, lambda *_: False
        try:
            return super().commit()
        finally:
            sink_commit.transaction.can_end_together = original

    def decide_for_one(self) -> None:
        super().decide_for_one()
        self._step("decided")


@attrs.define(eq=False)
class Query:
    """A streaming query and its topic; ``batch`` writes the rows of the batch with that number."""

    cluster: Cluster
    tasks: int = TASKS
    id: str = attrs.Factory(lambda: str(uuid.uuid4()))
    topic: str = attrs.Factory(lambda: f"batches-{next(_names)}")

    def options(self) -> SinkOptions:
        servers = ",".join(f"{host}:{port}" for host, port in self.cluster.config.bootstrap)
        given = {"kafka.bootstrap.servers": servers, "topic": self.topic}
        return SinkOptions.parse(given, default_guarantee="exactly-once")

    def rows(self, batch_id: int, task: int) -> list[bytes]:
        return [b"%d:%d:%d" % (batch_id, task, number) for number in range(3)]

    def write(self, batch_id: int, task: int, attempt: int = 0) -> Written:
        rows: Iterator[pa.RecordBatch] = iter(
            [pa.record_batch([pa.array([row])], names=["value"]) for row in self.rows(batch_id, task)]
        )
        place = Task(task, attempt, self.id)
        return write_task(self.options(), COLUMNS, place, query_name(self.id), rows)

    def kill_task(self, batch_id: int, task: int, attempt: int, rows: int) -> None:
        """A task that died after this many of its rows."""
        with self.cluster.producer(transactional_id=task_name(query_name(self.id), task, attempt)) as producer:
            producer.begin()
            self.cluster.make_topics([self.topic])
            for row in self.rows(batch_id, task)[:rows]:
                producer.send(self.topic, 0, build_batch([(None, row, [], 0)]), 1)
            producer.flush()

    def batch(self, batch_id: int, attempts: list[int]) -> list[Written]:
        return [self.write(batch_id, task, attempt) for task, attempt in enumerate(attempts)]

    def seen(self) -> list[bytes | None]:
        """The values that a reader of committed records gets."""
        committed: list[bytes | None] = []
        for partition in self.cluster.make_topics([self.topic])[self.topic].partitions:
            end = self.cluster.offsets({(self.topic, partition): LATEST}, "read_committed")[self.topic, partition]
            for fetched in self.cluster.fetcher(self.topic, partition, 0, end, isolation="read_committed"):
                committed += values(fetched.data, fetched.aborted)
        return sorted(committed, key=lambda value: value or b"")

    def expected(self, batches: int) -> list[bytes]:
        every = [self.rows(number, task) for number in range(batches) for task in range(self.tasks)]
        return sorted(row for rows in every for row in rows)


@pytest.fixture(scope="module")
def cluster(session_broker: Broker) -> Iterator[Cluster]:
    from broker.client.kafka import ClientConfig

    given = {"bootstrap.servers": session_broker.bootstrap_servers, "retry.backoff.ms": 1}
    with Cluster(ClientConfig.from_properties(given)) as client:
        yield client


@attrs.frozen
class Failure:
    """A life of the query that ends before its batch is done: killed after ``step``, and perhaps not dead: its driver continues
    with the commit when the next life has reached ``zombie_at``."""

    step: str
    attempts: list[int]
    killed_tasks: list[tuple[int, int, int]]  # task, attempt, rows
    zombie_at: str = ""


ATTEMPTS = st.lists(st.integers(0, 2), min_size=TASKS, max_size=TASKS)
FAILURES = st.builds(
    Failure,
    st.sampled_from(["tasks", *STEPS]),
    ATTEMPTS,
    st.lists(st.tuples(st.integers(0, TASKS - 1), st.integers(0, 2), st.integers(0, 3)), max_size=2),
    st.sampled_from(["", "", *STEPS]),
)
on_one_broker = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


@on_one_broker
@given(st.lists(st.lists(FAILURES, max_size=3), min_size=1, max_size=3))
@example([[Failure("decided", [0] * TASKS, [])], []])
@example([[Failure("number", [0] * TASKS, [], zombie_at="number")]])
@example([[Failure("written", [1] * TASKS, [], zombie_at="decided")]])
def test_each_batch_is_seen_whole_and_once(cluster: Cluster, lives: list[list[Failure]]) -> None:
    query = Query(cluster)
    for batch_id, failures in enumerate(lives):
        zombies: list[tuple[str, MicroBatch]] = []
        for failure in failures:
            live(query, batch_id, failure, zombies)
            assert query.seen() in (query.expected(batch_id), query.expected(batch_id + 1))
        live(query, batch_id, Failure("", [0] * TASKS, []), zombies)
        assert query.expected(batch_id + 1) == query.seen()
        for _, zombie in zombies:
            wake(zombie)
        assert query.expected(batch_id + 1) == query.seen()


def live(query: Query, batch_id: int, failure: Failure, zombies: list[tuple[str, MicroBatch]]) -> None:
    """A life of the query, up to the kill. Drivers of earlier lives that are not dead continue at their points."""
    for killed in failure.killed_tasks:
        query.kill_task(batch_id, *killed)
    if failure.step == "tasks":
        return
    written = query.batch(batch_id, failure.attempts)
    commit = Mortal(query.cluster, batch_id, written)
    waking = [zombie for at, zombie in zombies if at == failure.step or at == "written"]
    zombies[:] = [(at, zombie) for at, zombie in zombies if zombie not in waking]
    for zombie in waking:
        wake(zombie)
    if failure.zombie_at:
        zombies.append((failure.zombie_at, MicroBatch(query.cluster, batch_id, written)))
    if failure.step == "written":
        return
    commit.dies_after = failure.step
    try:
        commit.commit()
    except Killed:
        return
    except ProducerFencedError:  # a driver that was not dead has aborted ours: Spark aborts, and starts the query again
        sink_commit.abort(query.cluster, commit.members)
        if not failure.step:
            live(query, batch_id, failure, zombies)


def wake(zombie: MicroBatch) -> None:
    try:
        zombie.commit()
    except KafkaClientError:
        sink_commit.abort(zombie._cluster, zombie.members)


@on_one_broker
@given(st.sampled_from(STEPS[1:]), ATTEMPTS, ATTEMPTS, st.booleans())
def test_stalled_driver_adds_nothing_after_takeover(
    cluster: Cluster, step: str, attempts: list[int], attempts_of_the_other: list[int], next_batch_too: bool
) -> None:
    query = Query(cluster)

    def take_over() -> None:
        MicroBatch(cluster, 0, query.batch(0, attempts_of_the_other)).commit()
        assert query.expected(1) == query.seen()
        if next_batch_too:
            assert MicroBatch(cluster, 1, query.batch(1, attempts_of_the_other)).commit()

    slow = Mortal(cluster, 0, query.batch(0, attempts))
    slow.stands_after, slow.meanwhile = step, take_over
    if step == "decided":
        assert slow.commit()
    elif step == "leftovers":  # it has not looked yet whether the batch is committed
        assert not slow.commit()
    else:
        with pytest.raises(KafkaClientError):
            slow.commit()
        sink_commit.abort(cluster, slow.members)
    assert query.expected(2 if next_batch_too else 1) == query.seen()


# Alone -------------------------------------------------------------------------------------------------------------------


def test_batch_becomes_visible_by_its_commit(cluster: Cluster) -> None:
    query = Query(cluster)
    written = query.batch(0, [0] * TASKS)
    assert [] == query.seen()
    assert MicroBatch(cluster, 0, written).commit()
    assert query.expected(1) == query.seen()


def test_replayed_batch_is_not_written_again(cluster: Cluster) -> None:
    query = Query(cluster)
    for batch_id in (0, 1):
        assert MicroBatch(cluster, batch_id, query.batch(batch_id, [0] * TASKS)).commit()
    for batch_id in (1, 0):
        assert not MicroBatch(cluster, batch_id, query.batch(batch_id, [0] * TASKS)).commit()
    assert query.expected(2) == query.seen()
    assert [] == cluster.list_transactions(query_name(query.id))


def test_losing_attempts_are_aborted(cluster: Cluster) -> None:
    query = Query(cluster)
    query.kill_task(0, 1, 0, rows=2)
    assert MicroBatch(cluster, 0, query.batch(0, [0, 1, 0])).commit()
    assert query.expected(1) == query.seen()
    assert [] == cluster.list_transactions(query_name(query.id))


def test_attempts_of_others_are_left_alone(cluster: Cluster) -> None:
    query = Query(cluster)
    other = Query(cluster, id=f"{query.id}-2")
    other_written = other.batch(0, [0] * TASKS)
    assert MicroBatch(cluster, 0, query.batch(0, [0] * TASKS)).commit()
    assert MicroBatch(cluster, 0, other_written).commit()
    assert other.expected(1) == other.seen()


def test_tasks_without_rows_have_no_transaction(cluster: Cluster) -> None:
    query = Query(cluster)
    empty = write_task(query.options(), COLUMNS, Task(0, 0, query.id), query_name(query.id), iter(()))
    assert (0, None) == (empty.rows, empty.identity)
    assert not MicroBatch(cluster, 0, [empty]).commit()
    assert MicroBatch(cluster, 1, [empty, query.write(1, 1)]).commit()
    assert query.rows(1, 1) == query.seen()


def test_failed_task_leaves_nothing_open(cluster: Cluster) -> None:
    query = Query(cluster)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([b"a"])], names=["value"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_task(query.options(), COLUMNS, Task(0, 0, query.id), query_name(query.id), rows())
    assert [] == cluster.list_transactions(query_name(query.id))
    assert [] == query.seen()


def test_number_moves_with_the_topic(cluster: Cluster) -> None:
    query = Query(cluster)
    assert MicroBatch(cluster, 0, query.batch(0, [0] * TASKS)).commit()
    query.topic = f"batches-{next(_names)}"
    assert MicroBatch(cluster, 1, query.batch(1, [0] * TASKS)).commit()
    assert not MicroBatch(cluster, 1, query.batch(1, [0] * TASKS)).commit()


# On a broker that can decide for a single producer --------------------------------------------------------------------


@on_one_broker
@given(st.lists(st.sampled_from(["leftovers", "begun", "decided"]), max_size=3), st.integers(0, 2))
def test_one_task_is_enough_for_any_broker(cluster: Cluster, kills: list[str], attempt: int) -> None:
    query = Query(cluster, tasks=1)
    for step in kills:
        killed = Alone(cluster, 0, query.batch(0, [attempt]))
        killed.dies_after = step
        try:
            killed.commit()
        except Killed:
            pass
        assert query.seen() in ([], query.expected(1))
    Alone(cluster, 0, query.batch(0, [0])).commit()
    assert query.expected(1) == query.seen()
    assert [] == cluster.list_transactions(query_name(query.id))


def test_several_tasks_need_a_broker_with_joint_commit(cluster: Cluster) -> None:
    query = Query(cluster)
    batch = Alone(cluster, 0, query.batch(0, [0] * TASKS))
    with pytest.raises(JointCommitUnsupportedError, match=r"what 3 tasks .* deliveryGuarantee=at-least-once"):
        batch.commit()
    sink_commit.abort(cluster, batch.members)
    assert [] == query.seen()


# Batch writes -------------------------------------------------------------------------------------------------------------


def job_of(query: Query) -> tuple[str, list[Written]]:
    job = f"job-{query.id}"
    written = []
    for task in range(TASKS):
        rows = iter([pa.record_batch([pa.array(query.rows(0, task))], names=["value"])])
        written.append(write_task(query.options(), COLUMNS, Task(task, 0), job, rows))
    return job, written


def test_job_is_seen_whole(cluster: Cluster) -> None:
    query = Query(cluster)
    job, written = job_of(query)
    assert [] == query.seen()
    sink_commit.commit_job(cluster, job, written)
    assert query.expected(1) == query.seen()


def test_job_with_lost_task_shows_nothing(cluster: Cluster) -> None:
    query = Query(cluster)
    job, written = job_of(query)
    cluster.abort_transaction(task_name(job, 1, 0))
    with pytest.raises(ProducerFencedError, match=f"{job}/1/0"):
        sink_commit.commit_job(cluster, job, written)
    sink_commit.abort(cluster, [message.identity for message in written if message.identity is not None])
    assert [] == query.seen()
    assert [] == cluster.list_transactions(job)
