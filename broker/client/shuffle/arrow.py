"""Arrow record batches as records: each is a small Arrow IPC stream, schema and batch. Needs pyarrow, imported at first use.

>>> writer.records(serializer=arrow.serialize).write(batch)
>>> for batch in gate.arrow_batches(): ...
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.client.shuffle.errors import ShuffleError

if TYPE_CHECKING:
    import pyarrow


def serialize(batch: "pyarrow.RecordBatch | pyarrow.Table") -> bytes:
    """An Arrow IPC stream of the batch, which any Arrow implementation reads."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def deserialize(record: bytes) -> "Iterator[pyarrow.RecordBatch]":
    """The batches of an IPC stream; their columns point into ``record``. Raises ShuffleError for other bytes."""
    import pyarrow

    try:
        with pyarrow.ipc.open_stream(pyarrow.py_buffer(record)) as stream:
            yield from stream
    except pyarrow.ArrowInvalid as error:
        raise ShuffleError(f"a record is no Arrow stream: {error}") from error
