"""Arrow batches through a partition. Skipped where pyarrow is not installed: it comes with the extra `spark`."""

import pytest

from broker.client import InputGate, LocalExchange
from broker.client.shuffle.errors import ShuffleError
from protocol.shuffle.ids import ResultPartitionID

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def test_batches_are_read_back(partition: ResultPartitionID) -> None:
    from broker.client.shuffle.reading import reader

    batches = [pyarrow.record_batch({"word": ["a", "b", None], "count": [number, 2, 3]}) for number in range(20)] + [
        pyarrow.record_batch({"other": list(range(20_000))})
    ]  # larger than a buffer, and of another schema
    exchange = LocalExchange()
    with exchange.writer(partition, 1, "blocking") as writer, writer.records(serializer=reader.serialize) as out:
        out.extend(batches)
    with InputGate([(exchange, partition, 0)]) as gate:
        received = list(gate.arrow_batches())
    assert len(batches) == len(received)
    assert all(batch.equals(other) for batch, other in zip(batches, received, strict=True))


def test_record_without_arrow_stream_is_an_error(partition: ResultPartitionID) -> None:
    exchange = LocalExchange()
    with exchange.writer(partition, 1, "blocking") as writer, writer.records() as out:
        out.write(b"not that")
    with InputGate([(exchange, partition, 0)]) as gate, pytest.raises(ShuffleError, match="no Arrow stream"):
        list(gate.arrow_batches())
