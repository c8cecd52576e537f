"""Transactions in a log: who may write, what is stable, what was aborted; after crashes and compaction, too."""

import struct

import pytest

from broker.errors import RequestError, StorageError
from broker.storage.log import Log
from broker.storage.producer_state import ProducerState
from protocol.kafka.batch import TRANSACTIONAL
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records import batches
from tests.storage.helpers import NOW_MS, Storage, append, append_many, read_bytes, values


def write(log: Log, producer_id: int, *contents: bytes, epoch: int = 0, sequence: int = -1, **options: object) -> int:
    """A batch of a transaction, as its next one; its offset."""
    if sequence < 0:
        known = log.producers.get(producer_id)
        sequence = known.next_sequence if known is not None and known.epoch == epoch else 0
    return append(
        log, *contents, producer=(producer_id, epoch, sequence), attributes=TRANSACTIONAL, **options
    ).base_offset


def transact(log: Log, producer_id: int, *contents: bytes, epoch: int = 0, **options: object) -> int:
    log.allow_transaction(producer_id, epoch)
    return write(log, producer_id, *contents, epoch=epoch, **options)


def end(log: Log, producer_id: int, commit: bool, epoch: int = 0, **options: object) -> int:
    return log.append_marker(
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
    return [(one.producer_id, one.first_offset) for one in log.aborted_transactions(offset, read, stable)]


def committed(log: Log) -> list[bytes | None]:
    """What a read_committed consumer makes of the log, with the rules of Kafka's clients."""
    from tests.storage.helpers import records_in

    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        stable = log.last_stable_offset
        read = log.read(offset, 300, up_to=stable)
        waiting = sorted((one.first_offset, one.producer_id) for one in log.aborted_transactions(offset, read, stable))
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
                found += [record.value for record in records_in(data[position : position + header.size])]
    return found


def refused(log: Log, *args: object, **options: object) -> int:
    with pytest.raises(RequestError) as error:
        write(log, *args, **options)  # type: ignore[arg-type]
    return error.value.code


# Who may write -------------------------------------------------------------------------------------------------------


def test_only_who_was_allowed_may_write_to_a_transaction(storage: Storage) -> None:
    log = storage.create()
    assert refused(log, 7, b"a") == ErrorCode.invalid_txn_state
    log.allow_transaction(7, 1)
    assert refused(log, 7, b"a", epoch=0) == ErrorCode.invalid_txn_state
    assert write(log, 7, b"a", epoch=1) == 0
    assert refused(log, 8, b"a") == ErrorCode.invalid_txn_state


def test_nobody_writes_to_a_transaction_that_has_ended(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    assert refused(log, 7, b"b") == ErrorCode.invalid_txn_state


def test_a_batch_that_is_sent_again_after_the_end_is_a_duplicate(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    assert write(log, 7, b"a", sequence=0) == 0
    assert log.log_end_offset == 2


def test_a_marker_with_a_higher_epoch_fences_the_lower_one(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, False, epoch=1)
    assert refused(log, 7, b"b") == ErrorCode.invalid_producer_epoch
    assert transact(log, 7, b"c", epoch=2) == 2


def test_a_producer_with_an_open_transaction_may_not_write_outside_of_it(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    with pytest.raises(RequestError) as error:
        append(log, b"b", producer=(7, 0, 1))
    assert error.value.code == ErrorCode.invalid_txn_state
    append(log, b"b", producer=(8, 0, 0))
    end(log, 7, True)
    append(log, b"b", producer=(7, 0, 1))


def test_a_batch_of_a_transaction_needs_a_producer(storage: Storage) -> None:
    log = storage.create()
    with pytest.raises(RequestError) as error:
        append(log, b"a", attributes=TRANSACTIONAL)
    assert error.value.code == ErrorCode.invalid_record


def test_sequence_numbers_go_on_in_the_next_transaction(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a", b"b")
    end(log, 7, True)
    log.allow_transaction(7, 0)
    assert refused(log, 7, b"c", sequence=3) == ErrorCode.out_of_order_sequence_number
    assert write(log, 7, b"c", sequence=2) == 3


def test_a_recompressed_batch_is_still_part_of_its_transaction(storage: Storage) -> None:
    log = storage.create(compression_type="lz4")
    transact(log, 7, b"a")
    assert log.last_stable_offset == 0


# What is stable ------------------------------------------------------------------------------------------------------


def test_nothing_is_stable_from_the_oldest_open_transaction_on(storage: Storage) -> None:
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
    log.delete_records(3)
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
def test_readers_of_a_part_are_told_little_of_what_is_far_behind_it(storage: Storage, restart: object) -> None:
    log = storage.create(index_interval_bytes=1000)
    for number in range(60):
        transact(log, 7, b"%d" % number, b"." * 100)
        end(log, 7, False)
    restart(storage)  # type: ignore[operator]
    log = storage.log()
    stable = log.last_stable_offset
    for offset in range(0, stable, 3):
        read = log.read(offset, 600, up_to=stable)
        told = [one.first_offset for one in log.aborted_transactions(offset, read, stable)]
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


def test_a_log_without_aborted_transactions_has_no_such_file(storage: Storage) -> None:
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
    assert refused(log, 8, b"d") == ErrorCode.invalid_txn_state  # until the coordinator says that it may
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
    state = ProducerState.from_snapshot(log.producers.to_snapshot())
    assert list(state.open.items()) == [(7, 0), (5, 1)]
    marked = state.get(6)
    assert marked is not None
    assert (marked.epoch, marked.coordinator_epoch, marked.batches) == (2, 0, [])


def test_a_producer_with_an_open_transaction_does_not_expire(storage: Storage) -> None:
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


def test_compaction_drops_what_was_aborted_and_lets_it_replace_nothing(storage: Storage) -> None:
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


def test_what_was_aborted_is_known_while_a_part_of_it_is_not_compacted(storage: Storage) -> None:
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
