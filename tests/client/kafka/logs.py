"""Appends records to a broker's log and reads them from fetched bytes, slowly and simply."""

from collections.abc import Iterable, Sequence

from broker.client import Broker
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import build_batch, records


def append(running: Broker, topic: str, values: Iterable[bytes], partition: int = 0, timestamp: int = 0) -> None:
    """A batch of these values."""
    log = running.server.kafka.logs.get(topic, partition)
    assert log is not None
    log.append(memoryview(build_batch([(None, value, [], timestamp) for value in values])), now_ms=timestamp)


def offsets_and_values(data: memoryview) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record."""
    return [(record.offset, record.value) for pos, _ in batches(data) for record in records(data, pos)]


def values(data: memoryview, aborted: Sequence[tuple[int, int]] | None = None) -> list[bytes | None]:
    """The values of all records except markers and, with ``aborted``, records of aborted transactions."""
    waiting = sorted(aborted or (), key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    visible: list[bytes | None] = []
    for pos, header in batches(data):
        while waiting and waiting[0][1] <= header.base_offset:
            aborting.add(waiting.pop(0)[0])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            visible += [record.value for record in records(data, pos)]
    return visible
