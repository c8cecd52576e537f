"""When a cleaning may drop the records of an aborted transaction, and when the marker after them."""

from broker.storage.segments.index_file import AbortedTransaction
from broker.storage.upkeep.kept_records import CleanedTransactions
from protocol.kafka.records.batch import TRANSACTIONAL, BatchHeader, read_header
from protocol.kafka.records.records import build_marker
from tests.storage.helpers import NOW_MS, batch


def data(offset: int, producer_id: int, *, transactional: bool = True) -> BatchHeader:
    view = batch(b"v", producer=(producer_id, 0, 0), attributes=TRANSACTIONAL if transactional else 0)
    return read_header(view)._replace(base_offset=offset)


def marker(offset: int, producer_id: int) -> BatchHeader:
    view = build_marker(producer_id, 0, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS)
    return read_header(view)._replace(base_offset=offset)


def test_only_producer_records_within_aborted_range_are_aborted() -> None:
    cleaned = CleanedTransactions([AbortedTransaction(7, 10, 19, 10), AbortedTransaction(7, 30, 39, 30)])
    aborted = [offset for offset in (9, 10, 19, 20, 30, 39, 40) if cleaned.is_aborted(data(offset, 7))]
    assert aborted == [10, 19, 30, 39]
    assert not cleaned.is_aborted(data(15, 8))
    assert not cleaned.is_aborted(data(15, 7, transactional=False))
    assert not cleaned.is_aborted(marker(15, 7))


def test_marker_expires_once_its_transaction_has_no_records() -> None:
    cleaned = CleanedTransactions([])
    for header in (data(1, 7), data(2, 8), marker(3, 7), marker(4, 7), marker(5, 8), data(6, 9, transactional=False)):
        cleaned.saw(header)
    assert [offset for offset in (3, 4, 5) if cleaned.is_over(offset)] == [4]


def test_records_outside_of_transaction_do_not_hold_marker() -> None:
    cleaned = CleanedTransactions([])
    cleaned.saw(data(1, 7, transactional=False))
    cleaned.saw(marker(2, 7))
    assert cleaned.is_over(2)
