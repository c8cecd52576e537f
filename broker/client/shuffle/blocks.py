"""Blocks: bytes that belong together, each in as few buffers as possible. For data that comes in large pieces, such as
Arrow batches, which ``records()`` would copy.

A block is one data buffer with a clear end (``DATA_BUFFER_WITH_CLEAR_END``), or several of which the last has a clear
end. There is no header, so a reader gets the block's bytes as they came off the wire.

>>> push_block(writer, 3, payload)
>>> for channel, payload in BlockReader([("127.0.0.1:9094", partition, 3)]): ...

``AtExit`` calls a function when the process ends, but not in a forked child of the process.

Tests: tests/client/shuffle/test_fork.py.
"""

import atexit
from collections.abc import Callable, Iterator, Sequence
from math import inf

import attrs

from broker.client.shuffle.connection import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S
from broker.client.shuffle.errors import (
    ConnectionFailedError,
    LocalTransportError,
    RemoteTransportError,
    TransportError,
)
from broker.client.shuffle.reading.input_gate import ChannelLike, InputGate
from broker.client.shuffle.security import SecurityLike
from broker.client.shuffle.writing.record_writer import Bytes, PartitionWriter
from broker.runtime import forks, system_runtime
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import EndOfPartition


class AtExit:
    """Calls ``function`` when the interpreter exits, unless it is cancelled before.

    A child that was forked in between has a copy of the registration and may end first. It does not call the function,
    because the data to clean up belongs to the parent.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._forks = forks.count()
        atexit.register(self._run)

    def _run(self) -> None:
        if forks.count() == self._forks:
            self._function()

    def cancel(self) -> None:
        """Calling it twice is no error."""
        atexit.unregister(self._run)


# The size of the pieces of a block. Flink's readers would take at most 32 KiB; but both ends are this library, and a
# buffer costs as much as copying some 100 KiB.
BLOCK_BUFFER_BYTES = 2 * 1024 * 1024

# Up to this many channels, each has a buffer of its own; more share the floating buffers, so that memory does not grow
# with them.
_OWN_BUFFERS_UP_TO = 8
_FLOATING_BUFFERS = 8

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0


def new_data_set() -> bytes:
    """A new data set: the first 16 bytes of the ids of partitions that belong together."""
    return system_runtime().entropy.bytes(16)


def push_block(
    writer: PartitionWriter,
    subpartition: int,
    block: Bytes,
    *,
    buffer_size: int = BLOCK_BUFFER_BYTES,
    copy: bool = True,
    timeout: float | None = None,
) -> None:
    """Push ``block``, which must not be empty, and wait while the broker has no room for it.

    ``copy`` and ``timeout`` (for each of its buffers) as for ``push``. Raises what ``push`` raises; the subpartition may then
    end in the middle of a block.
    """
    size = len(block)
    if not size:
        raise ValueError("a block must have at least one byte")
    if size > buffer_size:
        block = memoryview(block)
        last = (size - 1) // buffer_size * buffer_size
        for start in range(0, last, buffer_size):
            writer.push(
                subpartition, block[start : start + buffer_size], DataType.DATA_BUFFER, copy=copy, timeout=timeout
            )
        block = block[last:]
    writer.push(subpartition, block, DataType.DATA_BUFFER_WITH_CLEAR_END, copy=copy, timeout=timeout)


@attrs.define(eq=False)
class _Channel:
    """The position in one channel, over all gates that have read it."""

    where: ChannelLike
    index: int
    taken: int = 0  # blocks that the caller has
    skip: int = 0  # how many of these the current gate will deliver again
    parts: list[bytes | bytearray | memoryview] = attrs.Factory(list)
    ended: bool = False


class BlockReader:
    """Iterates over all blocks of finished BLOCKING partitions as (channel number, block), in order within a channel.

    ``channels`` as for ``InputGate``. When a connection is lost (for example when a broker restarts), the reader
    connects again for ``patience`` s and skips the blocks that it has read: no block is missing or repeated. A broker
    that is silent for ``answer_timeout`` s while the reader waits for a block counts as lost, so the reader waits for
    at most the sum of the two.

    Raises what a gate raises: PartitionNotFoundError when a partition was released or its time to live is over,
    ConnectionFailedError or RemoteTransportError after ``patience``.
    """

    def __init__(
        self,
        channels: Sequence[ChannelLike],
        *,
        patience: float = 30.0,
        buffer_size: int = BLOCK_BUFFER_BYTES,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        answer_timeout: float = ANSWER_TIMEOUT_S,
        security: SecurityLike = None,
    ) -> None:
        self._security = security
        self._channels = [_Channel(where, index) for index, where in enumerate(channels)]
        self._patience = patience
        self._buffer_size = buffer_size
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout

    def __iter__(self) -> Iterator[tuple[int, Bytes]]:
        clock = system_runtime().clock
        channels = self._channels
        lost_at: float | None = None
        wait = _RETRY_FIRST_S
        while channels:
            taken = sum(channel.taken for channel in channels)
            lost: list[TransportError] = []
            left = inf if lost_at is None else max(wait, lost_at + self._patience - clock.monotonic())
            yield from self._read(channels, lost, left)
            if not lost:
                return
            if lost_at is None or sum(channel.taken for channel in channels) > taken:
                lost_at, wait = clock.monotonic(), _RETRY_FIRST_S
            channels = [channel for channel in channels if not channel.ended]
            # An attempt without time left could only time out.
            if _over(clock, lost_at + self._patience - wait):
                raise lost[0]
            Event().wait(wait)
            wait = min(2 * wait, _RETRY_MAX_S)

    def _read(self, channels: list[_Channel], lost: list[TransportError], left: float) -> Iterator[tuple[int, Bytes]]:
        """Read from one gate until each channel has ended or has lost its connection. ``left``: s of the patience."""
        for channel in channels:
            channel.skip = channel.taken
            channel.parts.clear()
        gate = InputGate(
            [channel.where for channel in channels],
            credit=1 if len(channels) <= _OWN_BUFFERS_UP_TO else 0,
            floating_buffers=_FLOATING_BUFFERS,
            buffer_size=self._buffer_size,
            # The partitions are finished, so a missing partition will not appear.
            partition_wait=0.0,
            connect_timeout=min(self._connect_timeout, left),
            answer_timeout=min(self._answer_timeout, left),
            security=self._security,
        )
        with gate:
            while not gate.finished:
                try:
                    item = gate.poll()
                except TransportError as error:
                    if not _may_return(error):
                        raise
                    lost.append(error)
                    continue
                if item is None:
                    continue
                gate.answer_timeout = self._answer_timeout  # the broker answers
                channel = channels[item.channel]
                if item.data is None:
                    channel.ended |= isinstance(item.event, EndOfPartition)
                    continue
                block = _whole(channel, item.data, item.data_type)
                if block is None:
                    continue
                if channel.skip:
                    channel.skip -= 1
                    continue
                channel.taken += 1
                yield channel.index, block
        for channel in channels:
            if channel.ended and channel.parts:
                raise LocalTransportError(f"channel {channel.index} ended in the middle of a block")


def _whole(channel: _Channel, data: Bytes, data_type: DataType) -> Bytes | None:
    """Return the block that this buffer completes, or None."""
    if data_type is not DataType.DATA_BUFFER_WITH_CLEAR_END:
        channel.parts.append(data)
        return None
    if not channel.parts:
        return data
    channel.parts.append(data)
    block = b"".join(channel.parts)
    channel.parts.clear()
    return block


def _may_return(error: TransportError) -> bool:
    """Whether the connection was lost, as opposed to an error that the peer reported on it."""
    if isinstance(error, RemoteTransportError):
        return error.class_name is None
    return isinstance(error, ConnectionFailedError)


def _over(clock: Clock, deadline: float) -> bool:
    return clock.monotonic() >= deadline
