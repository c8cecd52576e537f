"""Rebuilding producer state and aborted transactions from the batches of a log, for recovery.

Tests: tests/storage/recovery/test_recovery.py, tests/storage/log/test_aborted_checkpoint.py.
"""

from collections.abc import Sequence

from broker.errors import StorageError
from broker.storage.log.producer_state import ProducerState
from broker.storage.segments.segment import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    CorruptSegment,
    Header,
    Segment,
)
from broker.storage.segments.txn_index import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, LOG_OVERHEAD, TRANSACTIONAL
from protocol.kafka.records.markers import read_marker


def replay_batch(
    producers: ProducerState, segment: Segment, position: int, header: Header, now_ms: int
) -> AbortedTransaction | None:
    """Apply a batch to the producer state. Returns the transaction that it aborts, if any.

    The log does not tell when the producer was last seen (the timestamps of its records may be anything). ``now_ms`` gives it a
    full period before it expires.
    """
    producer_id = header[PRODUCER_ID]
    if producer_id < 0:
        return None
    if not header[ATTRIBUTES] & CONTROL:
        producers.appended(
            producer_id,
            header[PRODUCER_EPOCH],
            header[BASE_SEQUENCE],
            header[LAST_DELTA],
            header[BASE_OFFSET] + header[LAST_DELTA],
            header[MAX_TIMESTAMP],
            now_ms,
        )
        if header[ATTRIBUTES] & TRANSACTIONAL:
            producers.began(producer_id, header[BASE_OFFSET])
        return None
    try:
        marker = read_marker(segment.log.get().pread(header[LENGTH] + LOG_OVERHEAD, position))
    except ProtocolError as error:
        raise StorageError(
            f"{segment.log.path} has a control batch at {position} that cannot be read: {error}"
        ) from error
    if marker is None:
        return None
    first = producers.ended(producer_id, header[PRODUCER_EPOCH], marker.coordinator_epoch, now_ms)
    if first is None or marker.commit:
        return None
    offset = header[BASE_OFFSET]
    stable = producers.first_unstable()
    return AbortedTransaction(producer_id, first, offset, offset + 1 if stable is None else stable)


def aborted_transactions(segments: Sequence[Segment], before: int) -> dict[Segment, list[AbortedTransaction]]:
    """The aborted transactions by the segment of their ABORT marker, from the batches before this offset. ``segments`` begin with
    the first one of the log.

    Reads all headers and markers. Raises StorageError.
    """
    producers = ProducerState()
    found: dict[Segment, list[AbortedTransaction]] = {}
    for segment in segments:
        next_offset = segment.base_offset
        try:
            for position, header in segment.walk(0, segment.size):
                if header[BASE_OFFSET] >= before:
                    break
                next_offset = header[BASE_OFFSET] + header[LAST_DELTA] + 1
                aborted = replay_batch(producers, segment, position, header, 0)
                if aborted is not None:
                    found.setdefault(segment, []).append(aborted)
        except CorruptSegment:
            if next_offset < before:
                raise
    return found
