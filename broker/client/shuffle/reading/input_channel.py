"""What all channels of a gate have in common: where one stands in its gate, and what the gate asks of it.

All of it under the gate's lock, but for what says otherwise.
"""

from typing import TYPE_CHECKING

from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent
from protocol.shuffle.ids import IndexSet, ResultPartitionID

if TYPE_CHECKING:
    from broker.client.shuffle.reading.input_gate import InputGate


class InputChannel:
    """One range of subpartitions of one partition, as the gate's channel ``index``."""

    def __init__(self, gate: "InputGate", index: int, partition: ResultPartitionID, subpartitions: IndexSet) -> None:
        self.gate = gate
        self.index = index
        self.partition = partition
        self.subpartitions = subpartitions
        # The gate's book-keeping.
        self.in_line = False  # among those that have something
        self.blocked = False  # by the reader: nothing is taken from it
        self.sender_waits = False  # for a ResumeConsumption
        self.ends_of_data = 0  # of as many as there are subpartitions
        self.ends_of_partition = 0
        self.finished = False

    def request(self) -> None:
        """Ask for the data. Once; without the lock."""
        raise NotImplementedError

    def next(self) -> BufferOrEvent | Exception | None:
        """The oldest that has come, or what went wrong; None for nothing."""
        raise NotImplementedError

    def has_next(self) -> bool:
        raise NotImplementedError

    def has_priority(self) -> bool:
        """Whether a priority event comes next."""
        return False

    def recycle(self, kind: int) -> None:
        """A buffer is free again. Takes the lock itself: from any thread."""

    def free(self, kind: int) -> None:
        """The same with the lock held."""

    def resume(self) -> None:
        """The sender may go on after an event that blocked it."""

    def send_event(self, event: bytes) -> None:
        """To the producer."""

    def acknowledge_all(self) -> None:
        """Tell the sender that all records have been worked on."""

    def announce_buffer_size(self, size: int) -> None:
        """Ask the producer for buffers of this size from now on."""

    def release(self) -> None:
        """Nothing more is wanted. Twice is no error."""
        raise NotImplementedError
