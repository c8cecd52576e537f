"""Numbered writes (txnAppId, txnVersion) that are counted together or apart. Without Spark, on a real broker."""

import itertools
import logging
import threading
import uuid
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import pyarrow as pa

from broker.client import Broker
from broker.client.kafka import LATEST, ClientConfig, Cluster, OffsetAndMetadata
from broker.client.kafka.errors import KafkaClientError, TransactionError
from broker.errors import ConfigError
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.batch_sink import Task, write_task
from broker.spark.sink.commit import Written, task_name, write_marks
from broker.spark.sink.marks import QueryMarks, query_name, write_name
from broker.spark.sink.options import SinkColumns, SinkOptions
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.spark.sink.test_commit import STEPS, Killed, Mortal

_names = itertools.count()

TASKS = 2
TOPICS = ("a", "b", "c")


@attrs.frozen
class Target:
    """The target of a write: the topic of the option, or by the column each of ``topics``."""

    topics: tuple[str, ...]
    by_option: bool = False


OPTION_A, OPTION_B = Target(("a",), by_option=True), Target(("b",), by_option=True)
COLUMN_A, COLUMN_AB, COLUMN_BC = Target(("a",)), Target(("a", "b")), Target(("b", "c"))
TARGETS = (OPTION_A, OPTION_B, COLUMN_A, COLUMN_AB, COLUMN_BC)


@attrs.define(eq=False)
class App:
    """An application that writes batches, each to some targets with one number."""

    cluster: Cluster
    id: str = attrs.Factory(lambda: f"app-{uuid.uuid4().hex}")
    run: str | None = attrs.Factory(lambda: str(uuid.uuid4()))
    tag: str = attrs.Factory(lambda: f"marks-{next(_names)}-")
    query: str = "q"

    def restart(self) -> None:
        self.run = str(uuid.uuid4())

    def rows(self, number: int, target: Target, task: int, marker: str = "") -> list[tuple[str, str]]:
        how = "option" if target.by_option else "column " + "".join(target.topics)
        return [(self.tag + topic, f"{number} {how} {task}{marker}") for topic in target.topics]

    def options(self, target: Target) -> SinkOptions:
        servers = ",".join(f"{host}:{port}" for host, port in self.cluster.config.bootstrap)
        given = {"kafka.bootstrap.servers": servers} | (
            {"topic": self.tag + target.topics[0]} if target.by_option else {}
        )
        return SinkOptions.parse(given, default_guarantee="exactly-once")

    def write(self, number: int, target: Target, marker: str = "", attempt: int = 0) -> list[Written]:
        """The tasks' part of a write."""
        job = write_name(self.id, self.options(target).topic)
        return [self._task(number, target, task, job, marker, attempt) for task in range(TASKS)]

    def _task(self, number: int, target: Target, task: int, job: str, marker: str, attempt: int = 0) -> Written:
        rows = self.rows(number, target, task, marker)
        batch = pa.record_batch([[value for _, value in rows], [topic for topic, _ in rows]], names=["value", "topic"])
        columns = SinkColumns(value=0, topic=None if target.by_option else 1)
        return write_task(self.options(target), columns, Task(task, attempt, self.query, self.run), job, iter([batch]))

    def commit(self, number: int, target: Target, written: list[Written], dies_after: str = "") -> bool:
        """The driver's part of a write. Returns whether the write was new."""
        marks = write_marks(self.cluster, self.id, self.options(target).topic, written)
        commit = Mortal(self.cluster, number, written, marks)
        commit.dies_after = dies_after
        return commit.commit()

    def save(self, number: int, target: Target, dies_after: str = "", marker: str = "") -> bool:
        written = self.write(number, target, marker)
        if dies_after == "written":
            raise Killed
        try:
            return self.commit(number, target, written, dies_after)
        except Exception:
            sink_commit.abort_job(self.cluster, write_name(self.id, self.options(target).topic), [])
            raise

    def save_as_older_versions_did(self, number: int, target: Target, dies_after: str = "") -> bool:
        """Counted together with all other writes of the application."""
        job = query_name(self.id)
        written = [self._task(number, target, task, job, "") for task in range(TASKS)]
        commit = Mortal(self.cluster, number, written, QueryMarks(self.cluster, self.id, sink_commit._topics(written)))
        commit.dies_after = dies_after
        return commit.commit()

    def seen(self) -> list[tuple[str, str]]:
        """The values that a reader of committed records gets."""
        committed = []
        for topic in self.cluster.make_topics([self.tag + topic for topic in TOPICS]).values():
            for partition in topic.partitions:
                end = self.cluster.offsets({(topic.name, partition): LATEST}, "read_committed")[topic.name, partition]
                for fetched in self.cluster.fetcher(topic.name, partition, 0, end, isolation="read_committed"):
                    committed += [
                        (topic.name, (value or b"").decode()) for value in values(fetched.data, fetched.aborted)
                    ]
        return sorted(committed)

    def expected(self, *writes: tuple[int, Target]) -> list[tuple[str, str]]:
        return sorted(row for number, to in writes for task in range(TASKS) for row in self.rows(number, to, task))


@pytest.fixture(scope="module")
def cluster(session_broker: Broker) -> Iterator[Cluster]:
    given = {"bootstrap.servers": session_broker.bootstrap_servers, "retry.backoff.ms": 1}
    with Cluster(ClientConfig.from_properties(given)) as client:
        yield client


@pytest.fixture
def app(cluster: Cluster) -> App:
    return App(cluster)


# One life after the other ---------------------------------------------------------------------------------------------


@attrs.frozen
class Batch:
    """The writes of a batch, in order, and where the driver is killed: the write and the step."""

    targets: list[Target]
    kills: list[tuple[int, str]]


BATCHES = st.lists(
    st.builds(
        Batch,
        st.lists(st.sampled_from(TARGETS), min_size=1, max_size=4, unique=True),
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(STEPS)), max_size=3),
    ),
    min_size=1,
    max_size=3,
)
on_one_broker = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


@on_one_broker
@given(BATCHES, st.lists(st.sampled_from(TARGETS), max_size=3), st.booleans())
@example([Batch([OPTION_A, OPTION_B], [])], [], False)
@example([Batch([OPTION_A, OPTION_B], [(0, "decided"), (1, "decided")])], [], False)
@example([Batch([COLUMN_AB, COLUMN_A], [(1, "decided")])], [COLUMN_AB], True)
@example([Batch([OPTION_A, COLUMN_AB], [])], [OPTION_A], True)
def test_every_write_of_every_batch_is_stored_once(
    cluster: Cluster, batches: list[Batch], by_older_version: list[Target], last_comes_again: bool
) -> None:
    """``by_older_version``: batches of a single write that were made before the upgrade. The first batch after it may be the
    last of these once more, with other writes behind it, which the older version lost."""
    app = App(cluster)
    done: list[tuple[int, Target]] = []
    for number, target in enumerate(by_older_version):
        assert app.save_as_older_versions_did(number, target)
        done.append((number, target))
    first = len(by_older_version)
    if by_older_version and last_comes_again:
        first -= 1
        again = by_older_version[-1]
        batches = [
            Batch([again, *(other for other in batches[0].targets if other != again)], batches[0].kills),
            *batches[1:],
        ]
    for number, batch in enumerate(batches, first):
        for kill in [*batch.kills, None]:
            app.restart()
            try:
                for index, target in enumerate(batch.targets):
                    if app.save(number, target, kill[1] if kill is not None and kill[0] == index else ""):
                        done.append((number, target))
            except Killed:
                assert kill is not None
                if kill[1] == "decided" and (number, batch.targets[kill[0]]) not in done:
                    done.append((number, batch.targets[kill[0]]))
        assert app.expected(*done) == app.seen()
        assert {(number, target) for target in batch.targets} <= set(done)
    assert len(set(done)) == len(done)
    assert [] == cluster.list_transactions(query_name(app.id))


def test_restart_with_older_number_continues_without_rewriting(app: App) -> None:
    for number in range(4):
        assert app.save(number, OPTION_A)
    app.restart()  # from a restored checkpoint
    assert [False, False, False] == [app.save(number, OPTION_A) for number in (1, 2, 3)]
    assert app.save(4, OPTION_A)
    assert app.expected(*((number, OPTION_A) for number in range(5))) == app.seen()


# Two indistinguishable writes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [OPTION_A, COLUMN_AB])
def test_repeated_number_within_run_and_target_is_error(app: App, target: Target) -> None:
    assert app.save(7, target)
    with pytest.raises(
        ConfigError, match=r"has written to 'marks-.* with txnVersion 7 in this run .* would be lost: give"
    ):
        app.save(7, target, marker=" other rows")
    assert app.expected((7, target)) == app.seen()
    assert [] == app.cluster.list_transactions(query_name(app.id))


def test_repeated_number_is_an_error_in_every_run(app: App) -> None:
    assert app.save(7, OPTION_A)
    for _ in range(2):
        app.restart()
        assert not app.save(7, OPTION_A)
        with pytest.raises(ConfigError, match="would be lost"):
            app.save(7, OPTION_A, marker=" other rows")


def test_decreasing_number_within_a_run_is_an_error(app: App) -> None:
    assert app.save(7, OPTION_A)
    with pytest.raises(ConfigError, match=r"with txnVersion 7 in this run .* rows with txnVersion 6 would be lost"):
        app.save(6, OPTION_A)


@pytest.mark.parametrize("number", [2, 3])
def test_query_counting_from_zero_again_is_an_error(app: App, number: int) -> None:
    """It has a new checkpoint and other rows."""
    assert app.save(3, OPTION_A)
    app.restart()
    app.query = "q2"
    with pytest.raises(
        ConfigError, match=rf"has come to txnVersion 3 .* in another query \(q\), .* txnVersion {number} would be"
    ):
        app.save(number, OPTION_A)
    assert app.save(4, OPTION_A)
    app.query = "q"
    with pytest.raises(ConfigError, match=r"in another query \(q2\)"):
        app.save(4, OPTION_A)
    assert app.expected((3, OPTION_A), (4, OPTION_A)) == app.seen()


def test_skipped_write_outside_a_query_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.run = None
    assert app.save(7, OPTION_A)
    with caplog.at_level(logging.WARNING):
        assert not app.save(7, OPTION_A)
        assert not app.commit(7, OPTION_A, app.write(7, OPTION_A)[:1])
    assert ["its 2 rows are not written again", "with 2 rows; it came again with 1, which are NOT written"] == [
        next(part for part in ("its 2 rows are not written again", "with 2 rows; it came again with 1, which are NOT written")
             if part in one.getMessage()) for one in caplog.records
    ]  # fmt: skip


# At the same time -----------------------------------------------------------------------------------------------------


def test_writes_to_different_topics_may_overlap(app: App) -> None:
    both = app.write(3, OPTION_A), app.write(3, OPTION_B)
    assert app.commit(3, OPTION_A, both[0])
    assert app.commit(3, OPTION_B, both[1])
    assert app.expected((3, OPTION_A), (3, OPTION_B)) == app.seen()


def test_one_of_many_concurrent_drivers_writes(session_broker: Broker, app: App) -> None:
    """The others fail, or see that the write is done: no driver takes its rows for written and loses them."""
    outcomes: list[str] = []

    def drive(run: str) -> None:
        given = {"bootstrap.servers": session_broker.bootstrap_servers, "retry.backoff.ms": 1}
        with Cluster(ClientConfig.from_properties(given)) as own:
            try:
                outcomes.append("new" if App(own, app.id, run, app.tag).save(1, OPTION_A) else "again")
            except KafkaClientError:
                outcomes.append("fenced")

    threads = [threading.Thread(target=drive, args=[str(uuid.uuid4())]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.restart()
    last = app.save(1, OPTION_A)
    assert 1 == outcomes.count("new") + last
    assert app.expected((1, OPTION_A)) == app.seen()


# Marks of an older version --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begun", "number"])
def test_transactions_of_older_version_are_aborted_and_rewritten(app: App, step: str) -> None:
    """The number is in its driver's open transaction, which must not be awaited."""
    with pytest.raises(Killed):
        app.save_as_older_versions_did(0, COLUMN_AB, dies_after=step)
    assert app.save(0, COLUMN_AB)
    assert app.expected((0, COLUMN_AB)) == app.seen()
    assert [] == app.cluster.list_transactions(query_name(app.id))


def test_older_versions_mark_is_claimed_only_once(app: App) -> None:
    assert app.save_as_older_versions_did(0, COLUMN_AB)
    marks = write_marks(app.cluster, app.id, app.tag + "a", app.write(0, OPTION_A))
    assert 0 == marks.last()
    assert not app.save(0, COLUMN_AB)  # meanwhile
    with app.cluster.producer(transactional_id=marks.job) as leader:
        leader.begin()
        with pytest.raises(TransactionError, match="has just taken the mark"):
            marks.repeated(leader, 0)
    app.restart()
    assert app.save(0, OPTION_A)
    assert app.expected((0, COLUMN_AB), (0, OPTION_A)) == app.seen()


def test_tasks_of_another_write_are_left_alone(app: App) -> None:
    other = App(app.cluster, id=f"{app.id}2")
    written = other.write(0, OPTION_A)
    with app.cluster.producer(transactional_id=task_name(write_name(app.id, "elsewhere"), 0, 0)) as producer:
        producer.begin()
        app.cluster.make_topics([app.tag + "b"])
        producer.send(app.tag + "b", 0, build_batch([(None, b"x", [], 0)]), 1)
        producer.flush()
        assert app.save(0, OPTION_A)
        producer.commit()
    assert other.commit(0, OPTION_A, written)
    assert sorted([*app.expected((0, OPTION_A)), (app.tag + "b", "x")]) == app.seen()


@pytest.mark.parametrize(
    "metadata", ["", "{", "[]", '{"run": 1}', '{"query": 1, "run": null, "rows": "x", "seen": 1}', "[" * 4000]
)
def test_mark_of_an_administrator_counts(app: App, metadata: str) -> None:
    app.cluster.make_topics([app.tag + "a"])
    group = write_name(app.id, app.tag + "a")
    app.cluster.commit(group, {(app.tag + "a", 0): OffsetAndMetadata(5, metadata)})
    assert not app.save(5, OPTION_A)
    assert app.save(6, OPTION_A)


def test_set_of_many_topics_has_a_mark_too(app: App) -> None:
    topics = [f"{'x' * 240}-{number:03}" for number in range(500)]
    app.cluster.make_topics(topics[:1])
    written = [Written(1, tuple(topics), None, "q", app.run)]
    marks = write_marks(app.cluster, app.id, None, written)
    app.cluster.commit(marks.group, marks.to_commit(3))
    assert 3 == write_marks(app.cluster, app.id, None, written).last()
    assert -1 == write_marks(app.cluster, app.id, None, [attrs.evolve(written[0], topics=tuple(topics[:-1]))]).last()
