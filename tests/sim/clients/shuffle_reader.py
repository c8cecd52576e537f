"""A reader of result partitions: many receivers on one connection, each with credit of its own, and each byte held against
what was pushed."""

from collections.abc import Sequence
from typing import Any

from protocol.shuffle import errors, messages
from protocol.shuffle.buffer_response import BufferResponse, ServerMessage
from protocol.shuffle.data_type import AS_KNOWN_BY, IS_BLOCKING_UPSTREAM, IS_BUFFER, IS_PARTIAL_RECORD, DataType
from protocol.shuffle.errors import ErrorResponse
from protocol.shuffle.ids import IndexSet
from protocol.shuffle.messages import BacklogAnnouncement
from tests.sim.clients.shuffle_client import ShuffleClient
from tests.sim.clients.stream import PATIENCE_S
from tests.sim.jobs import Attempt, Range
from tests.sim.world import Violation

_END_OF_PARTITION = DataType.END_OF_PARTITION


class Receiver:
    """One request for a range of subpartitions of one attempt."""

    def __init__(self, reader: "ShuffleReader", part: Range, attempt: Attempt) -> None:
        rng = reader.rng
        self.reader = reader
        self.part = part
        self.attempt = attempt
        self.id = rng.randbytes(16)
        self.asked_at = self.heard_at = reader.world.now
        self.initial = rng.choice((0, 0, 1, 2, 2, 8))
        self.silent = rng.random() < 0.15  # gives no credit before the faults are over
        self.granted = self.initial
        self.attached = False  # the broker has spoken: from then on it knows whom credit is for
        self.got = 0  # data buffers
        self.sequence = 0
        self.blocked = False
        self.positions = dict.fromkeys(range(part.start, part.end + 1), 0)
        self.in_record: int | None = None  # the subpartition with a record that continues in the next buffer
        self.ended = 0

    def __str__(self) -> str:
        return f"{self.reader.name}: {self.attempt}[{self.part.start}-{self.part.end}]"

    @property
    def complete(self) -> bool:
        return self.ended == len(self.positions)

    @property
    def left(self) -> int:
        """Data buffers that have not come."""
        script = self.attempt.script
        return sum(IS_BUFFER[buffer.data_type] for index, at in self.positions.items() for buffer in script[index][at:])

    def take(self, message: BufferResponse) -> None:
        if message.sequence != self.sequence:
            raise Violation(f"{self}: number {message.sequence} came, {self.sequence} was due")
        if self.blocked:
            raise Violation(f"{self}: number {message.sequence} came before consumption was resumed")
        if self.complete:
            raise Violation(f"{self}: number {message.sequence} came after the end")
        self.sequence += 1
        self.attached = True
        self.heard_at = self.reader.world.now
        index = message.subpartition if message.subpartition >= 0 else self.part.start
        at = self.positions.get(index, -1)
        if at < 0:
            raise Violation(f"{self}: a buffer of subpartition {index}")
        if self.in_record not in (None, index):
            raise Violation(f"{self}: a buffer of {index} in the middle of a record of {self.in_record}")
        self._compare(message, index, at)
        self.positions[index] = at + 1
        if IS_BUFFER[message.data_type]:
            self.got += 1
            if self.got > self.granted:
                raise Violation(f"{self}: {self.got} buffers for a credit of {self.granted}")
        kind = self.attempt.script[index][at].data_type
        self.in_record = index if IS_PARTIAL_RECORD[kind] else None
        if kind is _END_OF_PARTITION:
            self.ended += 1
        self._check_backlog(message)
        self.blocked = IS_BLOCKING_UPSTREAM[message.data_type]

    def _compare(self, message: BufferResponse, index: int, at: int) -> None:
        expected = self.attempt.script[index][at]
        known = AS_KNOWN_BY[self.reader.generation][expected.data_type]
        came = (message.data_type, message.compressed, bytes(message.payload))
        if came != (known, expected.compressed, expected.payload):
            raise Violation(
                f"{self}: at {index}/{at} there is {message.data_type.name} of {message.size} bytes, "
                f"{bytes(message.payload[:60])!r}, and {expected.data_type.name} of {len(expected.payload)} bytes, "
                f"{expected.payload[:60]!r}, was pushed"
            )

    def _check_backlog(self, message: BufferResponse) -> None:
        left = self.left
        if IS_BLOCKING_UPSTREAM[message.data_type]:
            left = 0
        if message.backlog > left or (message.backlog < left and not self.attempt.job.pipelined):
            raise Violation(f"{self}: a backlog of {message.backlog}, {left} buffers are left")

    def check_patience(self, patience_s: float) -> None:
        """When faults are over: with credit and something to send, something must come."""
        attempt, world = self.attempt, self.reader.world
        there = attempt.is_finished or any(attempt.acked[index] > at for index, at in self.positions.items())
        since = max(self.heard_at, self.reader.quiet_since, min(attempt.finished_at, world.now))
        if there and not self.blocked and self.granted > self.got and world.now > since + patience_s:
            raise Violation(
                f"{self}: nothing has come for {world.now - since:.0f} s, for a credit of {self.granted - self.got}"
            )


class ShuffleReader(ShuffleClient):
    """``retention_s``: how long the broker keeps a pipelined partition for a reader that was lost."""

    def __init__(self, *args: Any, parts: Sequence[Range], retention_s: float) -> None:
        super().__init__(*args)
        self._parts = list(parts)
        self._retention_s = retention_s
        self._receivers: dict[bytes, Receiver] = {}
        self._cancelled: set[bytes] = set()
        # Whose connection was lost, when and in which life of the broker: it must keep a pipelined one for a while.
        self._lost: dict[tuple[int, int], tuple[float, int]] = {}
        self._pace_s = self.rng.choice((0.005, 0.05, 0.3))

    @property
    def done(self) -> bool:
        return all(not part.passes for part in self._parts) and not self._receivers

    @property
    def wanted(self) -> bool:
        return any(part.passes and part.job.readable() is not None for part in self._parts)

    # -- actions ------------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        rng = self.rng
        self.idle(rng.random() * self._pace_s)
        for receiver in list(self._receivers.values()):
            if receiver.attempt.abandoned or (receiver.complete and rng.random() < 0.2):
                self._cancel(receiver)
        busy = {receiver.part for receiver in self._receivers.values() if not receiver.complete}
        for part in self._parts:
            attempt = part.job.readable()
            if part.passes and part not in busy and attempt is not None and rng.random() < 0.5:
                self._ask(part, attempt)
        if self._receivers:
            receivers = list(self._receivers.values())
            for receiver in rng.sample(receivers, rng.randrange(1, len(receivers) + 1)):
                self._attend(receiver)
        elif self.done or not self.wanted:
            self.idle(0.2)
        if not self.quiet and self._receivers and rng.random() < 0.004:
            self._let_go()

    def _ask(self, part: Range, attempt: Attempt) -> None:
        assert self.socket is not None
        receiver = Receiver(self, part, attempt)
        self._receivers[receiver.id] = receiver
        attempt.wires[part] = self.socket.wire
        self.world.note(f"{receiver} is asked for, with a credit of {receiver.initial}")
        self.send(
            messages.encode_partition_request(
                self.generation, attempt.id, IndexSet(part.start, part.end), receiver.id, receiver.initial
            )
        )

    def _attend(self, receiver: Receiver) -> None:
        """Give it credit, leave to go on, or something that it does not need."""
        rng = self.rng
        if receiver.complete:
            return
        if self.quiet:
            receiver.check_patience(PATIENCE_S if self.work.hurried else 10 * PATIENCE_S)
        if receiver.blocked and rng.random() < 0.5:
            receiver.blocked = False
            if not receiver.initial:  # its unused credit does not count any more
                receiver.granted = receiver.got
            self.send(messages.encode_resume_consumption(receiver.id))
        willing = receiver.attached and (self.quiet or not receiver.silent)
        if willing and receiver.granted <= receiver.got + rng.choice((0, 0, 2)):
            credit = rng.choice((1, 1, 2, 5, 40))
            receiver.granted += credit
            self.send(messages.encode_add_credit(receiver.id, credit))
        elif rng.random() < 0.02:
            self.send(
                rng.choice(
                    (
                        messages.encode_new_buffer_size(receiver.id, rng.randrange(1, 40_000)),
                        messages.encode_ack_all_user_records_processed(receiver.id),
                        messages.encode_task_event_request(b"\0\0\0\x06task", receiver.attempt.id, receiver.id),
                        messages.encode_add_credit(rng.randbytes(16), 1),
                    )
                )
            )
        elif not self.quiet and rng.random() < 0.002:
            self._cancel(receiver)

    def _cancel(self, receiver: Receiver) -> None:
        del self._receivers[receiver.id]
        self._cancelled.add(receiver.id)
        self.world.note(f"{receiver} is cancelled{', complete' if receiver.complete else ''}")
        self.send(messages.encode_cancel_partition_request(receiver.id))
        self._no_more(receiver, "a reader has cancelled")

    def _let_go(self) -> None:
        """Of all, by a CloseRequest: then the broker closes the connection."""
        receivers, self._receivers = self._receivers, {}
        self._cancelled.update(receivers)
        self.send(messages.encode_close_request())
        for receiver in receivers.values():
            self._no_more(receiver, "a reader has closed")

    def _no_more(self, receiver: Receiver, why: str) -> None:
        """By our own will: the delivered data of a pipelined partition is gone."""
        attempt = receiver.attempt
        attempt.wires.pop(receiver.part, None)
        if not receiver.complete and attempt.job.pipelined and not attempt.abandoned:
            attempt.job.give_up(attempt, why)

    def lost(self) -> None:
        receivers, self._receivers = self._receivers, {}
        self._cancelled.clear()
        for receiver in receivers.values():
            attempt = receiver.attempt
            if receiver.complete or attempt.abandoned:
                continue
            attempt.excuse("a reader's connection was lost")
            if attempt.job.pipelined and (not self._retention_s or self.rng.random() < 0.2):
                attempt.job.give_up(attempt, "a reader does not come back")
            elif receiver.attached:
                self._lost.setdefault((id(receiver.part), id(attempt)), (self.lost_at, self.world.lives))

    # -- received messages ----------------------------------------------------------------------------------------------------

    def received(self, message: ServerMessage) -> None:
        receiver_id = getattr(message, "receiver", None)
        if receiver_id is None:
            raise Violation(f"{self.name}: a {type(message).__name__} for a reader")
        receiver = self._receivers.get(receiver_id)
        if receiver is None:
            if receiver_id not in self._cancelled:
                raise Violation(f"{self.name}: a {type(message).__name__} for a receiver that never was")
            return
        match message:
            case BufferResponse():
                receiver.take(message)
                if receiver.complete:
                    self._read(receiver)
            case BacklogAnnouncement(_, backlog):
                receiver.attached = True
                if receiver.initial or not 0 < backlog <= receiver.left:
                    raise Violation(f"{receiver}: a backlog of {backlog} announced, {receiver.left} buffers are left")
            case ErrorResponse(class_name, text, _):
                if text != "Task event receiver not found.":
                    del self._receivers[receiver_id]
                    self._cancelled.add(receiver_id)
                    self._failed(receiver, class_name, text or "")
            case _:
                raise Violation(f"{self.name}: a {type(message).__name__} for a reader")

    def _read(self, receiver: Receiver) -> None:
        attempt, part = receiver.attempt, receiver.part
        attempt.wires.pop(part, None)
        if not attempt.abandoned:
            part.passes = max(0, part.passes - 1)
        if self.rng.random() < 0.7:
            self._cancel(receiver)

    def _is_owed(self, receiver: Receiver) -> bool:
        """It has come back, in time."""
        lost_at, life = self._lost.get((id(receiver.part), id(receiver.attempt)), (-1e9, 0))
        if life != self.world.lives or self.work.machine_failed() or receiver.attempt.opened_in != life:
            return False
        return self.world.now < lost_at + 0.9 * self._retention_s

    def _failed(self, receiver: Receiver, class_name: str, text: str) -> None:
        attempt, job = receiver.attempt, receiver.attempt.job
        self.world.note(f"{receiver} fails: {class_name}: {text}")
        attempt.wires.pop(receiver.part, None)
        if attempt.abandoned:
            return
        if class_name == errors.PARTITION_NOT_FOUND_EXCEPTION:
            if job.pipelined:
                forgotten = attempt.opened_in != self.life
                if attempt.writer if forgotten else attempt.opened_at > receiver.asked_at:
                    return  # it had not come by then, or comes again
                excused = attempt.excused and not self._is_owed(receiver)
            else:
                excused = not attempt.kept or attempt.finished_at > receiver.asked_at or self.work.machine_failed()
        elif class_name == errors.PRODUCER_FAILED_EXCEPTION:
            excused = text == attempt.failure or (attempt.excused and not attempt.kept)
        else:
            excused = class_name == errors.IO_EXCEPTION and self.work.machine_failed()
        if not excused and receiver.reader.life == self.world.lives:
            raise Violation(f"{receiver}: {class_name}: {text}")
        if job.pipelined:
            job.give_up(attempt, text)
