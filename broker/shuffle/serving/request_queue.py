"""The receivers of a connection, and their turns: Flink's PartitionRequestQueue.

Owned by the connection's processor. Receivers with a buffer to send and credit for it form a row. The first sends a few buffers
and goes to the end of the row if it has more. Headers and payloads of many buffers are gathered and handed over at once, up to
the connection's high-water mark; then the queue waits until it is told that the connection is writable.

Tests: tests/shuffle/test_model.py, tests/shuffle/serving/test_view.py.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from broker.faults.fault import Fault
from broker.log import get_logger
from broker.network.quota import DeliveryQuota
from broker.network.service import Connection, Outbox, Part, Request
from broker.runtime.disk import FileRegion
from broker.shuffle.faulting import Faulting
from broker.shuffle.partition.budget import IN_MEMORY_BYTES
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.rights import NOT_AUTHORIZED, READ, Rights
from broker.shuffle.serving.view import PartitionFailed, PartitionReleased, View
from protocol.errors import ProtocolError
from protocol.shuffle import buffer_response
from protocol.shuffle.buffer_response import HeaderTemplate, header_template
from protocol.shuffle.errors import (
    IO_EXCEPTION,
    PRODUCER_FAILED_EXCEPTION,
    encode_error,
    partition_not_found,
)
from protocol.shuffle.ids import Generation
from protocol.shuffle.messages import MessageId, encode_backlog_announcement

log = get_logger("shuffle")

# Buffers that a receiver alone in the row sends at once: enough that locks and calls cost little, few enough to be quick.
_RUN_BUFFERS = 128
# Buffers that a receiver sends in its turn while others wait. A turn costs as much as four buffers.
_TURN_BUFFERS = 32
_TURN_BYTES = 256 * 1024
# Parts not larger than this on average are joined: the copy costs less than handing over many parts.
_SMALL_PART_BYTES = 2048


class Receiver:
    """An input channel of the client."""

    __slots__ = ("id", "queued", "sequence", "template", "view")

    view: View  # set when it is added to a queue
    template: HeaderTemplate  # set by the queue; used for a view of one subpartition

    def __init__(self, receiver: bytes) -> None:
        self.id = receiver
        self.sequence = 0
        self.queued = False


class RequestQueue:
    """``on_end(view, cancelled)``: a receiver has left; see ``View.close``. ``rights`` None: the client may do everything.
    Other rights are checked at each turn of a receiver, so that a client that loses them gets nothing more, whatever credit it
    has given. ``quota`` None: clients have no quotas. ``faulting`` None: there are no faults on demand."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        generation: Generation,
        high_water_bytes: int,
        on_end: Callable[[View, bool], None],
        rights: Rights | None = None,
        quota: DeliveryQuota | None = None,
        faulting: Faulting | None = None,
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._generation = generation
        self._high_water_bytes = high_water_bytes
        self._on_end = on_end
        self._rights = rights
        self._quota = quota
        self._faulting = faulting
        self._held = False  # the client is above its quota of bytes
        self._receivers: dict[bytes, Receiver] = {}
        self._row: deque[Receiver] = deque()
        self._sending = False

    def __len__(self) -> int:
        return len(self._receivers)

    def get(self, receiver_id: bytes) -> Receiver | None:
        return self._receivers.get(receiver_id)

    def add(self, receiver: Receiver) -> None:
        """Add a receiver, which replaces an earlier request with the same receiver id."""
        self.remove(receiver.id, cancelled=True)
        self._receivers[receiver.id] = receiver
        receiver.template = header_template(self._generation, receiver.id, receiver.view.indices.start)
        self.look(receiver)

    def remove(self, receiver_id: bytes, cancelled: bool) -> None:
        """A receiver has ``cancelled``, or its connection was lost. Unknown receivers are ignored."""
        receiver = self._receivers.pop(receiver_id, None)
        if receiver is not None:
            if receiver.queued:
                self._row.remove(receiver)
                receiver.queued = False
            self._on_end(receiver.view, cancelled)

    def _is_refused(self, view: View) -> bool:
        rights = self._rights
        return rights is not None and not rights.may(READ, view.partition.owner)

    def _refuse(self, receiver: Receiver) -> bytes:
        """Remove a receiver that may not read any more; returns its error. Its unsent buffers are kept as for a lost reader."""
        self.remove(receiver.id, cancelled=False)
        return encode_error(IO_EXCEPTION, NOT_AUTHORIZED, receiver.id)

    def close(self, cancelled: bool) -> None:
        """All receivers leave."""
        for receiver_id in list(self._receivers):
            self.remove(receiver_id, cancelled)

    def look(self, receiver: Receiver) -> None:
        """The receiver has new data or credit, or was resumed: send if it can."""
        if receiver.queued or self._receivers.get(receiver.id) is not receiver:
            return
        view = receiver.view
        if self._is_refused(view):
            self._outbox.push(self._connection, [self._refuse(receiver)])
            return
        if view.credit.announces_backlog:
            backlog = view.backlog()
            if backlog:
                self._outbox.push(self._connection, [encode_backlog_announcement(receiver.id, backlog)])
        receiver.queued = True
        self._row.append(receiver)
        self.send()

    def add_credits(self, credits: Iterable[tuple[int, bytes]]) -> None:
        """Pairs of (credit, receiver id). Credit for an unknown receiver is late and ignored. Raises ProtocolError."""
        receivers, row = self._receivers, self._row
        for credit, receiver_id in credits:
            if credit <= 0:
                raise ProtocolError(f"a credit of {credit} added")
            receiver = receivers.get(receiver_id)
            if receiver is None:
                continue
            view = receiver.view
            view.credit.credits += credit
            # A receiver that waits for data gets its turn when there is some.
            if not receiver.queued and not view.idle:
                receiver.queued = True
                row.append(receiver)
        self.send()

    def send(self) -> None:
        """Send as much as the connection takes."""
        # Not recursively: the end of a receiver may let another send. That receiver is in the row, and buffers gathered before go
        # first.
        if self._sending or self._held or not self._connection.writable:
            return
        self._sending = True
        try:
            self._send()
        finally:
            self._sending = False

    def _send(self) -> None:
        connection, row = self._connection, self._row
        bytes_left = self._high_water_bytes - connection.outgoing_bytes
        parts: list[Part] = []
        debts = _Debts()
        sent = 0
        faulting = self._faulting if self._faulting is not None and self._faulting.faults is not None else None
        fault: Fault | None = None
        try:
            while row and bytes_left > 0 and fault is None:
                receiver = row.popleft()
                receiver.queued = False
                view = receiver.view
                if self._is_refused(view):
                    parts.append(self._refuse(receiver))
                    continue
                alone = not row
                buffers_max = 1 if faulting is not None else _RUN_BUFFERS if alone else _TURN_BUFFERS
                bytes_max = bytes_left if alone or bytes_left < _TURN_BYTES else _TURN_BYTES
                try:
                    count, size, owed = view.take_frames(
                        receiver.template, receiver.sequence, parts, buffers_max, bytes_max
                    )
                    if not count:
                        count, size = self._take(receiver, parts, buffers_max if alone else 1, bytes_max)
                except (PartitionFailed, PartitionReleased, OSError) as error:
                    parts.append(_error(receiver, error))
                    self.remove(receiver.id, cancelled=True)
                    continue
                if owed:
                    debts.add(view.partition, size, count)
                receiver.sequence += count
                sent += size + 64 * count
                bytes_left -= size + 64 * count
                if view.more:
                    receiver.queued = True
                    row.append(receiver)
                if count and faulting is not None:
                    fault = faulting.meet(connection, MessageId.BUFFER_RESPONSE, view.partition.id)
        finally:
            debts.settle()
        if row:
            connection.writable = False  # so that the reactor calls when it is writable again
        if parts:
            if len(parts) > 2 and sent < len(parts) * _SMALL_PART_BYTES and FileRegion not in map(type, parts):
                parts = [b"".join(parts)]  # type: ignore[arg-type]
            if fault is not None and fault.kind == "delay":
                self._delay(fault, parts)
            else:
                self._outbox.push(connection, parts)
        if fault is not None and fault.kind == "reset":
            request = Request()
            request.connection = connection
            self._outbox.close(request)
        if sent and self._quota is not None and self._quota.delivered(connection.principal.name, sent):
            self._wait()

    def _delay(self, fault: Fault, parts: list[Part]) -> None:
        """Send these, and whatever comes after them, when the fault's delay is over."""

        def send() -> None:
            self._held = False
            self._outbox.push(self._connection, parts)
            self.send()

        assert self._faulting is not None
        self._held = True
        self._faulting.later(fault, partial(self._outbox.call, self._connection, send))

    def _wait(self) -> None:
        """Send nothing until the client's debt is paid."""
        connection, quota = self._connection, self._quota
        look = partial(self._outbox.call, connection, self._look_again)
        self._held = quota is not None and quota.when_to_look(connection.principal.name, look)

    def _look_again(self) -> None:
        self._wait()
        self.send()

    def _take(self, receiver: Receiver, parts: list[Part], buffers_max: int, bytes_max: int) -> tuple[int, int]:
        """The next buffers of any kind, perhaps one at a time: events, unions, buffers that must be read from a file first.

        Returns the number of buffers, and their bytes.
        """
        header, generation = buffer_response.header, self._generation
        taken = receiver.view.take(buffers_max, bytes_max)
        total = 0
        for number, (subpartition, data_type, compressed, payload, size, backlog) in enumerate(
            taken, receiver.sequence
        ):
            parts.append(header(generation, receiver.id, subpartition, number, backlog, data_type, compressed, size))
            if size:
                parts.append(payload)
                total += size
        return len(taken), total


class _Debts:
    """Buffers sent and dropped, but still counted by the budget: given back once for many."""

    __slots__ = ("_buffers", "_bytes", "_partition")

    def __init__(self) -> None:
        self._partition: ResultPartition | None = None
        self._bytes = self._buffers = 0

    def add(self, partition: ResultPartition, size: int, count: int) -> None:
        before = self._partition
        if before is not None and before.owner != partition.owner:
            self.settle()
        self._partition = partition
        self._bytes += size
        self._buffers += count

    def settle(self) -> None:
        partition = self._partition
        if partition is not None:
            size, count = self._bytes, self._buffers
            self._partition, self._bytes, self._buffers = None, 0, 0
            partition.budget.give_back(partition.owner, size, 0, count * IN_MEMORY_BYTES)


def _error(receiver: Receiver, error: Exception) -> bytes:
    """The frame that tells a receiver why it gets no more buffers."""
    partition = receiver.view.partition.id
    if isinstance(error, PartitionFailed):
        return encode_error(PRODUCER_FAILED_EXCEPTION, str(error), receiver.id)
    # A partition being released loses its file.
    if isinstance(error, PartitionReleased) or not receiver.view.partition.has_data:
        return partition_not_found(partition, receiver.id)
    log.error("spill_read_failed", partition=str(partition), error=str(error))
    return encode_error(IO_EXCEPTION, f"The broker cannot read the partition: {error}", receiver.id)
