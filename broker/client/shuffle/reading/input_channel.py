"""The interface between a gate and its channels: the base class of all channels, the gate as a channel sees it, and the
table (``TABLE``) of a channel's states, which are guarded by the gate's lock.

START is the sender's first message; for a channel within the process, it is the moment at which its partition is found.
FAIL is the first error: the reader gets the items that were received before it, and then the error. The gate sends
RELEASE when the channel has ended, when its error was given to the reader, or when the gate is closed. The callers
never use another pair: a channel ignores later errors and a second release.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from enum import IntEnum
from typing import Protocol

from broker.client.shuffle.io_loop import IoLoop
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, Item
from broker.client.shuffle.reading.credit import FloatingPool
from broker.client.shuffle.security import Tls
from broker.runtime.threads import RLock
from broker.transitions import Transitions
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID


class ChannelState(IntEnum):
    WAITING = 0
    RUNNING = 1
    FAILED = 2
    RELEASED = 3


class ChannelEvent(IntEnum):
    START = 0
    FAIL = 1
    RELEASE = 2


TABLE = Transitions(
    ChannelState,
    ChannelEvent,
    """
    WAITING  START    RUNNING
    WAITING  FAIL     FAILED
    WAITING  RELEASE  RELEASED
    RUNNING  FAIL     FAILED
    RUNNING  RELEASE  RELEASED
    FAILED   RELEASE  RELEASED
    """,
)
next_state = TABLE.next


class Gate(Protocol):
    """A gate as its channels see it. Channels call the methods with ``lock`` held."""

    lock: RLock
    loop: IoLoop
    pool: FloatingPool
    credit: int
    buffer_size: int
    generation: Generation
    partition_wait: float
    connect_timeout: float
    tls: Tls | None

    def available(self, channel: "InputChannel") -> None:
        """The channel, which is not in line, has an item for the reader."""

    def available_first(self, channel: "InputChannel") -> None:
        """The channel has a priority event, which is read first, even if the channel is blocked."""

    def tell_credit(self) -> None:
        """Have every channel in ``pool.announce`` send its new credit to its sender."""


class InputChannel:
    """The gate's channel ``index``, which reads a range of subpartitions of one partition.

    The gate calls the methods with its lock held unless the method says otherwise.
    """

    def __init__(self, gate: Gate, index: int, partition: ResultPartitionID, subpartitions: IndexSet) -> None:
        self.gate = gate
        self.index = index
        self.partition = partition
        self.subpartitions = subpartitions
        # The gate's state of the channel. The flags are independent of each other: a blocked channel may stand in line (the
        # gate skips it, unless it has a priority event), and its sender may wait or not in either case.
        self.in_line = False  # the channel is in the gate's line of channels that have an item
        self.blocked = False  # by the reader: the gate takes only priority events from it
        self.sender_waits = False  # for ResumeConsumption
        self.ends_of_data = 0  # EndOfData events that have come, one for each subpartition
        self.ends_of_partition = 0
        self.finished = False  # the channel has ended or failed, and was released

    def request(self) -> None:
        """Request the data. Called once, without the lock."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Give the connection back, if there is one. Called on the I/O thread, after ``release``."""

    def check_peer(self, waited_s: float, silence_max_s: float) -> None:
        """Check that the peer answers; the reader has waited for ``waited_s``. Called on the I/O thread, without the lock."""

    def announce_credit(self) -> None:
        """Send unannounced credit to the sender."""

    def next(self) -> BufferOrEvent | Exception | None:
        """Return the oldest received item, or the error that ended the channel; None if there is neither."""
        raise NotImplementedError

    def next_run(self, most: int) -> Item | Exception | None:
        """``next``, or up to ``most`` data buffers at once."""
        return self.next()

    def has_next(self) -> bool:
        raise NotImplementedError

    def has_priority(self) -> bool:
        """Whether the next item is a priority event."""
        return False

    def recycle(self, kind: int) -> None:
        """Return a buffer. May be called from any thread; the method takes the lock itself."""

    def free(self, kind: int) -> None:
        """Return a buffer."""

    def free_row(self, floating: int, exclusive: int) -> None:
        """Return this many buffers of each kind."""

    def resume(self) -> None:
        """Let the sender continue after an event that blocked it."""

    def send_event(self, event: bytes) -> None:
        """Send ``event`` to the producer."""

    def acknowledge_all(self) -> None:
        """Tell the sender that all records have been processed."""

    def announce_buffer_size(self, size: int) -> None:
        """Ask the producer to send buffers of this size from now on."""

    def release(self) -> None:
        """Cancel the request and drop the received items. Calling it twice is no error."""
        raise NotImplementedError
