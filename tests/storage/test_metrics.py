"""What the storage measures."""

from collections.abc import Mapping
from unittest import mock

from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Metric
from broker.metrics.names import OTHER
from broker.storage import metrics
from broker.storage.metrics import StorageMetrics
from protocol.kafka.records.batch import TRANSACTIONAL
from tests.storage.helpers import Storage, append, batch


class Measured:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._registry = Registry()
        StorageMetrics(storage.manager, storage.clock).register(self._registry)

    def __call__(self, metric: Metric) -> Mapping[Labels, float]:
        self._storage.clock.sleep_ms(60_000)  # what is cached is too old
        return self._registry.values(metric)

    def count(self, metric: Metric) -> float:
        return sum(sum(counts) for counts, _ in self._registry.ranges(metric).values())


def test_what_is_appended_is_counted_by_topic(storage: Storage) -> None:
    log, measured = storage.create("orders"), Measured(storage)
    before = log.size_bytes()
    append(log, b"a", b"b")
    grown = log.size_bytes() - before
    assert {("orders",): 2} == measured(names.MESSAGES_IN)
    assert {("orders",): grown} == measured(names.BYTES_IN) == measured(names.TOPIC_LOG_BYTES)
    log.state.sent_bytes[1] = 70
    log.state.sent_bytes[2] = 7
    assert {("orders",): 77} == measured(names.BYTES_OUT)


def test_appends_of_earlier_process_do_not_count(storage: Storage) -> None:
    append(storage.create("orders"), b"a", b"b")
    storage.restart()
    measured = Measured(storage)
    append(storage.log("orders"), b"c")
    assert {("orders",): 1} == measured(names.MESSAGES_IN)
    assert {("orders", "0"): 3} == measured(names.PARTITION_CURRENT_OFFSET)


def test_each_partition_shows_its_offsets_size_and_segments(storage: Storage) -> None:
    log = storage.create("orders", 2, segment_bytes=1000)
    for _ in range(30):
        append(log, b"x" * 50)
    log.trimming.delete_records(5)
    measured = Measured(storage)
    assert {("orders", "0"): 30, ("orders", "1"): 0} == measured(names.PARTITION_CURRENT_OFFSET)
    assert {("orders", "0"): 5, ("orders", "1"): 0} == measured(names.PARTITION_OLDEST_OFFSET)
    assert measured(names.LOG_SEGMENTS)["orders", "0"] > 1
    assert log.size_bytes() == measured(names.LOG_SIZE)["orders", "0"]
    assert {(): 2} == measured(names.PARTITIONS)


def test_topics_and_partitions_beyond_the_bounds_are_summed(storage: Storage) -> None:
    with mock.patch.object(metrics, "_TOPICS_MAX", 2), mock.patch.object(metrics, "_PARTITIONS_MAX", 3):
        for name, count in (("a", 3), ("b", 2), ("c", 1), ("d", 1)):
            log = storage.create(name, count)
            for _ in range(count):
                append(log, b"x" * 100)
        measured = Measured(storage)
        assert {("a",): 3, ("b",): 2, (OTHER,): 2} == measured(names.MESSAGES_IN)
        assert {("a",): 3, ("b",): 2, (OTHER,): 2} == measured(names.TOPIC_PARTITIONS)
        assert {"a"} == {labels[0] for labels in measured(names.LOG_SIZE)}


def test_offline_partition_is_counted_and_has_no_series(storage: Storage) -> None:
    storage.create("orders", 2)
    measured = Measured(storage)
    assert {(): 0} == measured(names.OFFLINE_PARTITIONS)
    storage.log("orders", 1).state.go_offline("a test")
    assert {(): 1} == measured(names.OFFLINE_PARTITIONS)
    assert {("orders", "0")} == set(measured(names.LOG_SIZE))


def test_fsyncs_are_timed_and_undurable_records_are_counted(storage: Storage) -> None:
    log, measured = storage.create("orders"), Measured(storage)
    before = measured.count(names.FSYNC_SECONDS)
    append(log, b"a")
    assert {(): 1} == measured(names.UNDURABLE_RECORDS)
    log.durability.flush_to(log.log_end_offset)
    assert {(): 0} == measured(names.UNDURABLE_RECORDS)
    assert before + 1 == measured.count(names.FSYNC_SECONDS)


def test_what_the_recovery_has_done_is_told(storage: Storage) -> None:
    log = storage.create("orders")
    append(log, b"a")
    with open(storage.path("orders") / "00000000000000000000.log", "ab") as file:
        file.write(b"torn")
    storage.crash()
    measured = Measured(storage)
    assert {(): 4} == measured(names.RECOVERY_TRUNCATED_BYTES)
    assert {(): 1} == measured(names.RECOVERED_LOGS)
    assert measured(names.RECOVERY_SCANNED_BYTES)[()] > 0
    assert measured(names.RECOVERY_SECONDS)[()] >= 0


def test_open_transactions_show_records_that_readers_miss(storage: Storage) -> None:
    log, measured = storage.create("orders"), Measured(storage)
    log.transactions.allow(7, 0)
    log.append(batch(b"a", producer=(7, 0, 0), attributes=TRANSACTIONAL), now_ms=storage.clock.time_ms())
    append(log, b"b")
    assert {("orders", "0"): 2} == measured(names.UNSTABLE_RECORDS)
    assert {(): 1} == measured(names.PRODUCER_IDS)
    assert 7 == (log.transactions.oldest_open() or (0, 0))[0]
    log.transactions.append_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=storage.clock.time_ms())
    assert {} == measured(names.UNSTABLE_RECORDS)
    assert None is log.transactions.oldest_open()
