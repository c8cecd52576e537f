"""Records in a broker's log and out of what was fetched, the slow and simple way."""

from collections.abc import Iterable

from broker.client import Broker
from protocol.kafka.batch import batches
from protocol.kafka.records import build_batch, records


def append(running: Broker, topic: str, values: Iterable[bytes], partition: int = 0, timestamp: int = 0) -> None:
    """One batch of these values."""
    log = running.server.kafka.logs.get(topic, partition)
    assert log is not None
    log.append(memoryview(build_batch([(None, value, [], timestamp) for value in values])), now_ms=timestamp)


def values(data: memoryview) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record."""
    return [(one.offset, one.value) for pos, _ in batches(data) for one in records(data, pos)]
