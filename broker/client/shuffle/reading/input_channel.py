"""What all channels of a gate have in common: where one stands in its gate, what the gate asks of it, and what it asks of
the gate.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from typing import Protocol

from broker.client.shuffle.io.io_loop import IoLoop
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent
from broker.client.shuffle.reading.credit import FloatingPool
from broker.runtime.threads import RLock
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import IndexSet, ResultPartitionID


class Gate(Protocol):
    """A gate as its channels see it. The methods are called with ``lock`` held."""

    lock: RLock
    loop: IoLoop
    pool: FloatingPool
    credit: int
    buffer_size: int
    generation: Generation
    partition_wait: float
    connect_timeout: float

    def available(self, channel: "InputChannel") -> None:
        """The channel, which is not in line, has something."""

    def available_first(self, channel: "InputChannel") -> None:
        """The channel has a priority event: it comes first, even if the channel is blocked."""

    def tell_credit(self) -> None:
        """Some channels have credit that their senders do not know of."""


class InputChannel:
    """One range of subpartitions of one partition, as the gate's channel ``index``.

    The gate calls the methods with its lock held, except where a method says otherwise.
    """

    def __init__(self, gate: Gate, index: int, partition: ResultPartitionID, subpartitions: IndexSet) -> None:
        self.gate = gate
        self.index = index
        self.partition = partition
        self.subpartitions = subpartitions
        # The gate's own notes on the channel. The flags are independent of each other: a blocked channel may stand in line
        # (it is passed over, or has a priority event), and its sender may wait or not in either case.
        self.in_line = False  # it is among the channels that have something
        self.blocked = False  # by the reader: nothing but priority events is taken from it
        self.sender_waits = False  # for a ResumeConsumption
        self.ends_of_data = 0  # of as many as there are subpartitions
        self.ends_of_partition = 0
        self.finished = False  # it has ended or failed, and was released

    def request(self) -> None:
        """Ask for the data. Called once, without the lock."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """After ``release``, on the I/O loop's thread: give the connection back, if there is one."""

    def check_peer(self, waited_s: float, silence_max_s: float) -> None:
        """Check that the other side answers; the reader has waited for ``waited_s``. On the I/O thread, without the lock."""

    def announce_credit(self) -> None:
        """Tell the sender of the credit that it does not know of."""

    def next(self) -> BufferOrEvent | Exception | None:
        """The oldest item that has come, or the error that ended the channel; None if there is nothing."""
        raise NotImplementedError

    def has_next(self) -> bool:
        raise NotImplementedError

    def has_priority(self) -> bool:
        """Whether a priority event comes next."""
        return False

    def recycle(self, kind: int) -> None:
        """A buffer is free again. From any thread; takes the lock itself."""

    def free(self, kind: int) -> None:
        """A buffer is free again."""

    def resume(self) -> None:
        """The sender may go on after an event that blocked it."""

    def send_event(self, event: bytes) -> None:
        """Send ``event`` to the producer."""

    def acknowledge_all(self) -> None:
        """Tell the sender that all records have been processed."""

    def announce_buffer_size(self, size: int) -> None:
        """Ask the producer for buffers of this size from now on."""

    def release(self) -> None:
        """Cancel the request and drop what has come. Calling it twice is no error."""
        raise NotImplementedError
