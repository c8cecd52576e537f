"""The ways to read from a gate: item by item, by buffer, by record, by Arrow batch. Gates, unions of gates and gates
with aligned checkpoints share them. Also: the signal that wakes a reader, and Arrow record batches as records.

An Arrow record is a small IPC stream, schema and batch. Needs pyarrow, imported at first use.

>>> writer.records(serializer=arrow.serialize).write(batch)
>>> for batch in gate.arrow_batches(): ...

Tests: tests/client/shuffle/reading/test_input_gate.py,
tests/client/shuffle/test_arrow.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from broker.client.shuffle.errors import LocalTransportError, ShuffleError
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun, Item
from protocol.errors import ProtocolError
from protocol.shuffle.events import EndOfPartition, Event
from protocol.shuffle.records import RecordDecoder

if TYPE_CHECKING:
    import pyarrow


Self = TypeVar("Self", bound="Reader")
OnEvent = Callable[[BufferOrEvent], None]


class Reader:
    """Base class of ``InputGate``, ``UnionInputGate`` and ``CheckpointedInputGate``.

    Only one thread may use a reader at a time. The iterators align checkpoint barriers (``poll`` of a plain gate does not) and
    raise the error of the first channel that fails. The other channels are still usable then: iterate again.
    """

    @property
    def finished(self) -> bool:
        """Whether every channel has ended or failed, and all received items were taken."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """The number of channels."""
        raise NotImplementedError

    def poll(self, timeout: float | None = None) -> BufferOrEvent | None:
        """The next buffer or event. Waits at most ``timeout`` s, or without limit if it is None.

        Returns None when ``finished`` or after the timeout. Raises the error of a failed channel, once for each
        channel; the error's attribute ``channel`` is the channel's number.
        """
        raise NotImplementedError

    def poll_run(self, timeout: float | None = None) -> Item | None:
        """``poll``, or several buffers of one channel if available. With small buffers that is several times as
        fast."""
        raise NotImplementedError

    def resume(self, channel: int) -> None:
        """Take from the channel again, after an event that blocked it (a barrier) or after ``block``."""
        raise NotImplementedError

    def block(self, channel: int) -> None:
        """Take nothing from this channel until ``resume`` is called."""
        raise NotImplementedError

    def send_event(self, event: Event, channel: int | None = None) -> None:
        """Send an event to the producer of this channel, or of each."""
        raise NotImplementedError

    def announce_buffer_size(self, size: int, channel: int | None = None) -> None:
        """Ask the producer of this channel, or of every channel, to send buffers of ``size`` bytes from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancel unfinished requests, and release connections and threads. Calling it twice is no error."""
        raise NotImplementedError

    def buffers(self, on_event: OnEvent | None = None) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Yield (channel, data) for every data buffer. ``on_event`` is called with the events."""
        reader = self.aligned()
        while (item := reader.poll()) is not None:
            if item.data is not None:
                yield item.channel, item.data
            elif on_event is not None:
                on_event(item)

    def buffer_lists(
        self, on_event: OnEvent | None = None
    ) -> Iterator[tuple[int, Sequence[bytes | bytearray | memoryview]]]:
        """Yield (channel, [data, ...]): ``buffers``, with all available buffers of a channel at once, up to half of the
        channel's buffers.
        """
        reader = self.aligned()
        while (item := reader.poll_run()) is not None:
            if isinstance(item, BufferRun):
                yield item.channel, item.data
            elif item.data is not None:
                yield item.channel, [item.data]
            elif on_event is not None:
                on_event(item)

    def records(self, on_event: OnEvent | None = None) -> Iterator[bytes]:
        """Yield every record, assembled from the buffers. The records of one subpartition are in order.

        LocalTransportError if a subpartition ends inside a record. Events go to ``on_event``, barriers after all
        records before them.
        """
        for _, record in self.records_by_channel(on_event):
            yield record

    def records_by_channel(self, on_event: OnEvent | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield (channel, record) for every record."""
        reader = self.aligned()
        decoders: dict[tuple[int, int], RecordDecoder] = {}
        while (item := reader.poll_run()) is not None:
            channel = item.channel
            try:
                if isinstance(item, BufferRun) or item.data is not None:
                    for subpartition, data in _buffers_of(item):
                        decoder = decoders.get((channel, subpartition))
                        if decoder is None:
                            decoder = decoders[channel, subpartition] = RecordDecoder()
                        for record in decoder.feed(data):
                            yield channel, record
                    continue
                if isinstance(item.event, EndOfPartition):
                    for key in [key for key in decoders if key[0] == channel]:
                        decoders.pop(key).finish()
            except ProtocolError as error:
                raise LocalTransportError(f"channel {channel}: {error}") from error
            if on_event is not None:
                on_event(item)

    def arrow_batches(self, on_event: OnEvent | None = None) -> "Iterator[pyarrow.RecordBatch]":
        """Yield the batches of every record made by ``broker.client.shuffle.reading.reader.serialize``. Needs
        pyarrow."""
        for record in self.records(on_event):
            yield from deserialize(record)

    def aligned(self) -> "Reader":
        """This reader with barriers aligned over all its channels."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[BufferOrEvent]:
        reader = self.aligned()
        while (item := reader.poll()) is not None:
            yield item

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _buffers_of(item: Item) -> Iterable[tuple[int, bytes | bytearray | memoryview]]:
    """(subpartition, data) of each buffer."""
    if isinstance(item, BufferRun):
        return zip(item.subpartitions, item.data, strict=True)
    return [] if item.data is None else [(item.subpartition, item.data)]


class Signal:
    """Wakes a thread when the first of several gates has an item. The reader calls ``arm``, checks the gates, and calls
    ``wait``. The I/O thread adds an item and then checks ``armed``. Either the reader sees the item or the I/O thread
    sees ``armed``, and setting an event costs nothing while no thread waits.
    """

    __slots__ = ("_event", "armed")

    def __init__(self, event: Any) -> None:
        self._event = event
        self.armed = False

    def arm(self) -> None:
        self._event.clear()
        self.armed = True

    def wait(self, timeout: float | None) -> bool:
        was_set: bool = self._event.wait(timeout)
        return was_set

    def tell(self) -> None:
        if self.armed:
            self.armed = False
            self._event.set()


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
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise ShuffleError(f"a record is no Arrow stream: {error}") from error
