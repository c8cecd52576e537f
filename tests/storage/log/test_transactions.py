"""Transactions in a log: who may write, what is stable, what was aborted; after crashes and compaction, too."""

import itertools
import struct
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import Refusal, StorageError
from broker.storage.log import state as aborted_checkpoint
from broker.storage.log.log import Log
from broker.storage.log.producer_state import ProducerState
from broker.storage.refusals import InvalidBatch, InvalidTransactionState, OldProducerEpoch, OutOfOrderSequence
from broker.storage.segments.index_file import TransactionIndex
from broker.storage.upkeep import cleaner, kept_records
from protocol.kafka.records.batch import DELETE_HORIZON, TRANSACTIONAL, batches
from protocol.kafka.records.records import Record
from tests.storage.helpers import NOW_MS, Storage, append, append_many, read_bytes, records_in, values


def write(log: Log, producer_id: int, *contents: bytes, epoch: int = 0, sequence: int = -1, **options: object) -> int:
    """A batch of a transaction, as its next one; its offset."""
    if sequence < 0:
        known = log.producers.get(producer_id)
        sequence = known.next_sequence if known is not None and known.epoch == epoch else 0
    return append(
        log, *contents, producer=(producer_id, epoch, sequence), attributes=TRANSACTIONAL, **options
    ).base_offset


def transact(log: Log, producer_id: int, *contents: bytes, epoch: int = 0, **options: object) -> int:
    log.transactions.allow(producer_id, epoch)
    return write(log, producer_id, *contents, epoch=epoch, **options)


def end(log: Log, producer_id: int, commit: bool, epoch: int = 0, **options: object) -> int:
    return log.transactions.append_marker(
        producer_id,
        epoch,
        commit=commit,
        coordinator_epoch=0,
        now_ms=NOW_MS,
        **options,  # type: ignore[arg-type]
    )


def aborted(log: Log, offset: int = 0) -> list[tuple[int, int]]:
    stable = log.last_stable_offset
    read = log.read(offset, 1 << 30, up_to=stable)
    return [(one.producer_id, one.first_offset) for one in log.transactions.aborted(offset, read, stable)]


def committed(log: Log) -> list[bytes | None]:
    """What a read_committed consumer makes of the log."""
    return [record.value for record in committed_records(log)]


def read_committed(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The same by offset, with keys."""
    return {record.offset: (record.key, record.value) for record in committed_records(log)}


def committed_records(log: Log) -> list[Record]:
    """With the rules of Kafka's clients."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        stable = log.last_stable_offset
        read = log.read(offset, 300, up_to=stable)
        waiting = sorted((one.first_offset, one.producer_id) for one in log.transactions.aborted(offset, read, stable))
        skipping: set[int] = set()
        data = read_bytes(log, offset, 300, up_to=stable)
        if not data:
            break
        for position, header in batches(data):
            while waiting and waiting[0][0] <= header.last_offset:
                skipping.add(waiting.pop(0)[1])
            offset = header.next_offset
            if header.is_control:
                skipping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipping):
                found += records_in(data[position : position + header.size])
    return found


def refused(log: Log, *args: object, **options: object) -> type[Refusal]:
    with pytest.raises(Refusal) as error:
        write(log, *args, **options)  # type: ignore[arg-type]
    return type(error.value)


# Who may write -------------------------------------------------------------------------------------------------------


def test_only_allowed_producer_may_write_to_transaction(storage: Storage) -> None:
    log = storage.create()
    assert refused(log, 7, b"a") == InvalidTransactionState
    log.transactions.allow(7, 1)
    assert refused(log, 7, b"a", epoch=0) == InvalidTransactionState
    assert write(log, 7, b"a", epoch=1) == 0
    assert refused(log, 8, b"a") == InvalidTransactionState


def test_nobody_writes_to_a_transaction_that_has_ended(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    assert refused(log, 7, b"b") == InvalidTransactionState


def test_batch_repeated_after_the_end_is_duplicate(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    assert write(log, 7, b"a", sequence=0) == 0
    assert log.log_end_offset == 2


def test_marker_with_higher_epoch_fences_lower_epoch(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, False, epoch=1)
    assert refused(log, 7, b"b") == OldProducerEpoch
    assert transact(log, 7, b"c", epoch=2) == 2


def test_producer_with_open_transaction_cannot_write_outside_it(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    with pytest.raises(Refusal) as error:
        append(log, b"b", producer=(7, 0, 1))
    assert type(error.value) is InvalidTransactionState
    append(log, b"b", producer=(8, 0, 0))
    end(log, 7, True)
    append(log, b"b", producer=(7, 0, 1))


def test_a_batch_of_a_transaction_needs_a_producer(storage: Storage) -> None:
    log = storage.create()
    with pytest.raises(Refusal) as error:
        append(log, b"a", attributes=TRANSACTIONAL)
    assert type(error.value) is InvalidBatch


def test_sequence_numbers_go_on_in_the_next_transaction(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a", b"b")
    end(log, 7, True)
    log.transactions.allow(7, 0)
    assert refused(log, 7, b"c", sequence=3) == OutOfOrderSequence
    assert write(log, 7, b"c", sequence=2) == 3


def test_recompressed_batch_still_belongs_to_its_transaction(storage: Storage) -> None:
    log = storage.create(compression_type="lz4")
    transact(log, 7, b"a")
    assert log.last_stable_offset == 0


# What is stable ------------------------------------------------------------------------------------------------------


def test_nothing_stable_from_oldest_open_transaction_on(storage: Storage) -> None:
    log = storage.create()
    append(log, b"plain")
    assert log.last_stable_offset == 1
    transact(log, 7, b"a")
    transact(log, 8, b"b")
    append(log, b"plain")
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    end(log, 7, True)
    assert log.last_stable_offset == 2
    end(log, 8, False)
    assert log.last_stable_offset == log.high_watermark == 6


def test_a_marker_without_a_transaction_changes_nothing(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    assert end(log, 9, False) == 2
    assert log.last_stable_offset == 0
    assert end(log, 9, False, if_open=True) == 2
    assert log.log_end_offset == 2


def test_stable_begins_no_earlier_than_the_log(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    append_many(log, 5)
    log.trimming.delete_records(3)
    assert log.last_stable_offset == 3


def test_a_reader_is_woken_by_a_marker(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    woken: list[int] = []
    log.watch(lambda: woken.append(log.last_stable_offset))
    end(log, 7, True)
    assert woken == [2]


# What was aborted ----------------------------------------------------------------------------------------------------


def test_readers_are_told_what_was_aborted(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    transact(log, 8, b"b")
    end(log, 8, True)
    end(log, 7, False)
    transact(log, 7, b"c")
    end(log, 7, False)
    assert aborted(log) == [(7, 0), (7, 4)]
    assert aborted(log, 3) == [(7, 0), (7, 4)]
    assert aborted(log, 4) == [(7, 4)]
    assert committed(log) == [b"b"]


@pytest.mark.parametrize("restart", [lambda storage: storage, Storage.restart])
def test_partial_read_lists_few_transactions_far_behind_it(storage: Storage, restart: object) -> None:
    log = storage.create(index_interval_bytes=1000)
    for number in range(60):
        transact(log, 7, b"%d" % number, b"." * 100)
        end(log, 7, False)
    restart(storage)  # type: ignore[operator]
    log = storage.log()
    stable = log.last_stable_offset
    for offset in range(0, stable, 3):
        read = log.read(offset, 600, up_to=stable)
        told = [one.first_offset for one in log.transactions.aborted(offset, read, stable)]
        data = b"".join(region.file.pread(region.size, region.offset) for region in read.regions)
        behind = list(batches(data))[-1][1].next_offset
        assert set(range(offset, behind, 3)) <= set(told)
        assert len(told) < 20


def test_the_index_has_kafkas_format(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    transact(log, 8, b"b")
    end(log, 7, False)
    end(log, 8, False)
    (name,) = storage.files(".txnindex")
    data = (storage.path() / name).read_bytes()
    assert [(0, 7, 0, 2, 1), (0, 8, 1, 3, 4)] == list(struct.iter_unpack(">hqqqq", data))


def test_log_without_aborted_transactions_has_no_index_file(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    storage.restart()
    assert storage.files(".txnindex") == []
    assert aborted(storage.log()) == []


def test_transactions_over_many_segments(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    expected: list[bytes | None] = []
    for number in range(40):
        content = [b"%d" % number]
        transact(log, number % 3, *content)
        end(log, number % 3, number % 4 != 0)
        expected += content if number % 4 else []
    assert len(log.view.segments) > 5
    assert committed(log) == expected
    for _ in range(2):
        storage.crash()
        assert committed(storage.log()) == expected
        storage.restart()
        assert committed(storage.log()) == expected


def test_a_transaction_that_ends_many_segments_later(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    transact(log, 7, b"bad")
    append_many(log, 30)
    good = values(log)[1:]
    end(log, 7, False)
    assert aborted(log) == [(7, 0)]
    assert committed(log) == good
    storage.crash()
    assert committed(storage.log()) == good


def test_committed_reader_skips_later_segments_without_aborted_transactions(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = storage.create()

    def roll(times: int = 1) -> None:
        for _ in range(times):
            append(log, b"x")
            with log.lock:
                log.rolling.roll(NOW_MS)

    roll(20)
    first = transact(log, 7, b"a")
    roll(20)
    end(log, 7, False)
    roll(20)
    looked_at: list[TransactionIndex] = []
    length = TransactionIndex.__len__
    monkeypatch.setattr(TransactionIndex, "__len__", lambda index: (looked_at.append(index), length(index))[1])
    assert aborted(log) == [(7, first)]
    for offset in (0, first, first + 20, log.log_end_offset - 1):
        looked_at.clear()
        assert aborted(log, offset) == ([(7, first)] if offset <= first + 20 else [])
        assert len(looked_at) <= 4
    # What is written to the newest segment is seen, and still is when it is not the newest any more.
    second = transact(log, 8, b"b")
    end(log, 8, False)
    for _ in range(2):
        assert aborted(log) == [(7, first), (8, second)]
        assert aborted(log, second) == [(8, second)]
        roll()
    third = transact(log, 7, b"c")
    end(log, 7, False)
    monkeypatch.undo()
    log.trimming.delete_records(second)
    assert aborted(log, second) == [(8, second), (7, third)]


def test_a_full_disk_leaves_the_transaction_open(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    storage.disk.room = 40
    with pytest.raises(StorageError):
        end(log, 7, False)
    storage.disk.room = None
    assert (log.last_stable_offset, log.log_end_offset) == (0, 1)
    end(log, 7, False)
    assert aborted(log) == [(7, 0)]


# After a restart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [Storage.restart, Storage.crash])
@pytest.mark.parametrize("checkpoint_after", range(5))
def test_recovery_finds_open_and_aborted_transactions(storage: Storage, restart: object, checkpoint_after: int) -> None:
    log = storage.create(segment_bytes=250)
    steps = [
        lambda: transact(log, 7, b"a"),
        lambda: transact(log, 8, b"b"),
        lambda: end(log, 7, False),
        lambda: transact(log, 9, b"c"),
        lambda: end(log, 9, True),
    ]
    for number, step in enumerate(steps):
        step()
        if number == checkpoint_after:
            storage.manager.checkpoint()
    restart(storage)  # type: ignore[operator]
    log = storage.log()
    assert log.last_stable_offset == 1
    assert dict(log.producers.open) == {8: 1}
    assert refused(log, 8, b"d") == InvalidTransactionState  # until the coordinator says that it may
    transact(log, 8, b"d")
    end(log, 8, True)
    assert log.last_stable_offset == log.high_watermark
    assert aborted(log) == [(7, 0)]
    assert committed(log) == [b"b", b"c", b"d"]


def test_a_torn_marker_leaves_the_transaction_open(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, False)
    storage.kill()
    path = storage.path() / storage.files(".log")[0]
    path.write_bytes(path.read_bytes()[:-5])
    storage.open()
    log = storage.log()
    assert (log.last_stable_offset, log.log_end_offset) == (0, 1)
    assert end(log, 7, True, if_open=True) == 2
    assert aborted(log) == []
    assert committed(log) == [b"a"]


def test_open_transactions_are_in_the_snapshot(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a", epoch=3)
    transact(log, 5, b"b")
    end(log, 6, True, epoch=2)
    state = ProducerState.from_snapshot(log.producers.freeze().to_snapshot())
    assert list(state.open.items()) == [(7, 0), (5, 1)]
    marked = state.get(6)
    assert marked is not None
    assert (marked.epoch, marked.coordinator_epoch, marked.batches) == (2, 0, [])


def test_producer_with_open_transaction_does_not_expire(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    append(log, b"b", producer=(8, 0, 0))
    assert log.producers.expire(NOW_MS + 1_000, 1_000) == 1
    assert log.producers.get(7) is not None
    assert log.producers.get(8) is None


# Compaction ----------------------------------------------------------------------------------------------------------


def compacted(storage: Storage) -> Log:
    return storage.create(
        cleanup_policy="compact", segment_bytes=250, min_cleanable_dirty_ratio=0, delete_retention_ms=0
    )


def clean(storage: Storage) -> None:
    storage.housekeep()
    storage.housekeep()


def test_compaction_drops_aborted_records_which_replace_nothing(storage: Storage) -> None:
    log = compacted(storage)
    transact(log, 7, b"good", keys=[b"k"])
    end(log, 7, True)
    transact(log, 7, b"bad", keys=[b"k"])
    end(log, 7, False)
    for number in range(8):
        transact(log, 8, b"%d" % number, keys=[b"other %d" % (number % 2)])
        end(log, 8, True)
    clean(storage)
    assert log.first_dirty_offset > 4
    assert b"bad" not in values(log)
    assert b"good" in committed(log)
    assert b"0" not in committed(log)
    before = committed(log)
    storage.crash()
    assert committed(storage.log()) == before


def test_compaction_stops_at_the_first_unstable_offset(storage: Storage) -> None:
    log = compacted(storage)
    append(log, b"1", keys=[b"k"])
    transact(log, 7, b"open", keys=[b"k"])
    for number in range(20):
        append(log, b"%d" % number, keys=[b"x"])
    clean(storage)
    assert log.first_dirty_offset <= 1
    end(log, 7, False)
    for number in range(10):
        append(log, b"%d" % number, keys=[b"y"])
    clean(storage)
    assert b"1" in committed(log)
    assert b"open" not in values(log)


def test_aborted_transactions_known_while_part_is_not_compacted(storage: Storage) -> None:
    """The marker is in a part that is compacted together with others; a crash in the middle keeps its entry."""
    log = compacted(storage)
    transact(log, 7, b"bad 1", keys=[b"a"])
    append(log, b"x", keys=[b"b"])
    write(log, 7, b"bad 2", keys=[b"c"])
    end(log, 7, False)
    for number in range(12):
        append(log, b"%d" % number, keys=[b"x"])
    clean(storage)
    assert b"bad 1" not in values(log)
    assert [b"x", b"11"] == [value for value in committed(log) if value in (b"x", b"11", b"bad 1", b"bad 2")]


def again(storage: Storage, wait_ms: int = 0) -> None:
    """One compaction. There must be something new to compact."""
    storage.clock.sleep_ms(wait_ms)
    log, now_ms = storage.log(), storage.clock.time_ms()
    for _ in range(4):
        append(log, b"." * 60, keys=[b"filler"])
    storage.manager.checkpoint()
    plan = cleaner.cleanable(log, now_ms)
    assert plan is not None
    assert list(cleaner.clean(plan, 1 << 20, now_ms))[-1]


def markers(log: Log) -> list[tuple[int, bool]]:
    """Offset of each, and whether it has a time when it goes."""
    data = read_bytes(log, log.log_start_offset)
    return [
        (header.base_offset, header.attributes & DELETE_HORIZON != 0)
        for _, header in batches(data)
        if header.is_control
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_removed_some_time_after_last_record(storage: Storage, commit: bool) -> None:
    log = storage.create(
        cleanup_policy="compact", segment_bytes=250, min_cleanable_dirty_ratio=0, delete_retention_ms=10_000
    )
    transact(log, 7, b"first", keys=[b"f"])
    end(log, 7, True)
    transact(log, 7, b"gone", keys=[b"k"])
    end(log, 7, commit)
    transact(log, 7, b"stays", keys=[b"k"])
    end(log, 7, True)
    again(storage)
    assert b"gone" not in values(log)
    assert markers(log) == [(1, False), (3, False), (5, False)], "its records go first"
    again(storage)
    assert markers(log) == [(1, False), (3, True), (5, False)], "now its time runs"
    again(storage, 9_999)
    assert markers(log) == [(1, False), (3, True), (5, False)]
    again(storage, 1)
    assert markers(log) == [(1, False), (5, False)]
    again(storage, 100_000)
    assert markers(log) == [(1, False), (5, False)], "of these there are records"
    assert {b"first", b"stays"} < set(committed(log))
    assert aborted(log) == [] == [entry for segment in log.view.segments for entry in segment.aborted.entries()]
    storage.crash()
    log = storage.log()
    assert {b"first", b"stays"} < set(committed(log))
    assert log.state.first_unstable is None


def test_marker_stays_while_empty_batch_of_transaction_does(storage: Storage) -> None:
    """The batch has the producer's last sequence number; without its marker it would open a transaction again."""
    log = compacted(storage)
    transact(log, 7, b"bad", keys=[b"k"])
    end(log, 7, False)
    for _ in range(5):
        again(storage, 1)
    assert markers(log) == [(1, False)]
    assert b"bad" not in values(log)
    storage.kill()
    for path in storage.path().glob("*.snapshot"):
        path.unlink()
    storage.open()
    log = storage.log()
    assert log.state.first_unstable is None
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.next_sequence == 1


def test_fencing_marker_stays_while_its_producer_is_known(storage: Storage) -> None:
    log = compacted(storage)
    transact(log, 7, b"bad", keys=[b"k"])
    end(log, 7, False, epoch=5)
    for _ in range(5):
        again(storage, 1)
    assert markers(log) == [(1, False)]
    storage.kill()
    for path in storage.path().glob("*.snapshot"):
        path.unlink()
    storage.open()
    log = storage.log()
    log.transactions.allow(7, 0)
    assert refused(log, 7, b"zombie", keys=[b"k"], sequence=1) == OldProducerEpoch
    assert log.producers.expire(NOW_MS + 1_000_000, 1) > 0
    for _ in range(5):
        again(storage, 1)
    assert markers(log) == []


class Dies(BaseException):
    pass


@pytest.mark.parametrize("die_at", range(1, 60))
def test_crash_during_compaction_keeps_aborted_transactions_aborted(storage: Storage, die_at: int) -> None:
    """The memory is enough for some of the keys: what is aborted behind those stays in the segment, with its entry. And there is
    no checkpoint by which it would be made again."""
    log = storage.create(cleanup_policy="compact", segment_bytes=1000, min_cleanable_dirty_ratio=0)
    for number in range(4):
        append(log, b"old %d" % number, keys=[b"k%d" % (number // 2)])
    transact(log, 7, b"bad", keys=[b"a"])
    end(log, 7, False)
    for number in range(12):
        append(log, b"new %d" % number, keys=[b"x%d" % number])
    storage.manager.checkpoint()
    plan = cleaner.cleanable(log, NOW_MS)
    assert plan is not None
    storage.manager.files.close_all()
    operations = itertools.count(1)

    def die(what: str, path: str) -> None:
        if next(operations) == die_at:
            raise Dies

    storage.disk.before = die
    key_bytes = 2 * kept_records.KEY_OVERHEAD_BYTES  # k0 and k1
    try:
        for _ in cleaner.clean(plan, key_bytes, NOW_MS):
            pass
        assert b"old 0" not in values(log)
        assert b"bad" in values(log)
    except Dies:
        pass
    storage.disk.before = lambda what, path: None
    for _ in range(2):
        storage.kill()
        (storage.path() / aborted_checkpoint.NAME).unlink(missing_ok=True)
        storage.open()
        log = storage.log()
        assert aborted(log, 4) == [(7, 4)]
        assert b"bad" not in committed(log)
        assert {b"old 1", b"old 3", b"new 11"} < set(committed(log))


KEYS = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([7, 8]), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.sampled_from([7, 8]), st.booleans()),
    st.tuples(st.just("plain"), st.just(0), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(
        st.sampled_from(["clean", "clean", "crash", "lose snapshots", "lose indexes", "expire"]), st.just(0), st.none()
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=40), st.sampled_from([400, 1 << 20]))
def test_committed_reader_sees_last_values_whatever_is_compacted(
    steps: list[tuple[str, int, Any]], key_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        storage = Storage(directory)
        storage.create(cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0, delete_retention_ms=5)
        # Offset -> key and value, once it is decided.
        decided: dict[int, tuple[bytes, bytes]] = {}
        waiting: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        number = 0

        def put(producer: int, keys: list[bytes]) -> dict[int, tuple[bytes, bytes]]:
            nonlocal number
            contents = [b"%d" % (number + i) for i in range(len(keys))]
            number += len(keys)
            log = storage.log()
            if producer:
                offset = transact(log, producer, *contents, keys=keys)
            else:
                offset = append(log, *contents, keys=keys).base_offset
            return {offset + i: pair for i, pair in enumerate(zip(keys, contents, strict=True))}

        for what, producer, how in [
            *steps,
            ("end", 7, False),
            ("end", 8, True),
            ("clean", 0, None),
            ("crash", 0, None),
        ]:
            if what == "write":
                waiting.setdefault(producer, {}).update(put(producer, how))
            elif what == "plain":
                decided.update(put(0, how))
            elif what == "end":
                end(storage.log(), producer, how, if_open=True)
                if how:
                    decided.update(waiting.get(producer, {}))
                waiting.pop(producer, None)
            elif what == "clean":
                storage.clock.sleep_ms(3)
                log, now_ms = storage.log(), storage.clock.time_ms()
                storage.manager.checkpoint()
                plan = cleaner.cleanable(log, now_ms)
                if plan is not None:
                    assert list(cleaner.clean(plan, key_bytes, now_ms))[-1]
            elif what == "expire":
                with storage.log().lock:
                    storage.log().producers.expire(NOW_MS + 1_000_000, 1)
            else:
                storage.kill()
                for path in storage.path().glob(
                    {"lose snapshots": "*.snapshot", "lose indexes": "*.txnindex"}.get(what, "-")
                ):
                    path.unlink()
                storage.open()
                assert storage.log().offline is None
            log = storage.log()
            assert set(log.producers.open) == set(waiting)
            stable = {offset: pair for offset, pair in decided.items() if offset < log.last_stable_offset}
            seen = read_committed(log)
            assert seen.items() <= stable.items()
            assert dict(pair for _, pair in sorted(seen.items())) == dict(pair for _, pair in sorted(stable.items()))
        storage.kill()


def test_an_answer_counts_unless_a_marker_has_come_since_the_question(storage: Storage) -> None:
    log = storage.create()
    transactions = log.transactions
    first, second = transactions.begin_question(1), transactions.begin_question(1)
    assert transactions.end_question(1, first, 0)
    assert transactions.allows(1, 0)
    write(log, 1, b"a")
    assert not transactions.end_question(2, transactions.begin_question(1), 0)  # of another producer
    end(log, 1, True)
    late = transactions.begin_question(1)
    assert not transactions.end_question(1, second, 0)
    assert not transactions.allows(1, 0)
    other = transactions.begin_question(2)
    end(log, 1, True)
    assert not transactions.end_question(1, late, 0)
    assert transactions.end_question(2, other, 0)  # another producer's marker
    assert transactions.allows(2, 0)


def test_a_refusal_allows_nothing(storage: Storage) -> None:
    transactions = storage.create().transactions
    guard = transactions.begin_question(1)
    assert transactions.end_question(1, guard, None)
    assert not transactions.allows(1, 0)
