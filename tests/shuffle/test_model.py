"""Credit, views and the request queue against a plain model, in any order of events: sent buffers, their time and their turn.

A connection with several receivers, over two pipelined partitions and a blocking one. The connection is a stand-in that collects
pushed frames and is writable only when the model says so; no thread and no socket takes part.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from broker.runtime.disk import FileRegion
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.serving.request_queue import Receiver, RequestQueue
from broker.shuffle.serving.view import Credit, View
from protocol.shuffle.buffer_response import BufferResponse, ClientDecoder
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_BUFFER, IS_PARTIAL_RECORD, DataType
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from protocol.shuffle.messages import BacklogAnnouncement
from protocol.shuffle.writer_frames import PartitionType
from tests.shuffle.serving.test_view import FakeFile, spill

V2_0 = Generation.V2_0
HIGH_WATER = 400
SUBPARTITIONS = 4
END = DataType.END_OF_PARTITION


class FakeOutbox:
    """Everything happens at once, as on the connection's own processor."""

    def __init__(self) -> None:
        self.decoder = ClientDecoder(V2_0)
        self.sent: list[Any] = []

    def push(self, connection: Any, parts: Any) -> None:
        for part in parts:
            data = part.file.pread(part.size, part.offset) if type(part) is FileRegion else part
            connection.outgoing_bytes += len(data)
            self.sent += self.decoder.feed(data)


class ModelReceiver:
    """A receiver's expected buffers: Flink's rules, as simply as possible."""

    def __init__(self, name: bytes, initial: int, queues: list[deque[tuple[int, bytes]]]) -> None:
        self.name = name
        self.initial = initial
        self.credit = initial
        self.blocked = False
        self.sequence = 0
        self.queues = queues  # unsent buffers of its subpartitions
        self.current: int | None = None  # the subpartition of the current record

    def backlog(self) -> int:
        return 0 if self.blocked else sum(IS_BUFFER[kind] for queue in self.queues for kind, _ in queue)

    def accept(self, buffer: BufferResponse, start: int) -> None:
        kind = int(buffer.data_type)
        assert not self.blocked, "something was sent to a blocked receiver"
        assert buffer.sequence == self.sequence
        self.sequence += 1
        index = buffer.subpartition - start
        assert self.current in (None, index), "the subpartition changed in the middle of a record"
        assert self.queues[index].popleft() == (kind, bytes(buffer.payload))
        if IS_BUFFER[kind]:
            self.credit -= 1
            assert self.credit >= 0, "more was sent than there was credit for"
        self.current = index if IS_PARTIAL_RECORD[kind] and len(self.queues) > 1 else None
        if IS_BLOCKING_UPSTREAM[kind]:
            self.blocked = True
            assert buffer.backlog == 0
        else:
            assert buffer.backlog == self.backlog()

    def could_take(self, kind: int) -> bool:
        return not self.blocked and (self.credit > 0 or not IS_BUFFER[kind])

    @property
    def stuck(self) -> bool:
        """Nothing may be sent to it now."""
        heads = [queue for queue in self.queues if queue]
        if self.current is not None:
            queue = self.queues[self.current]
            return not queue or not self.could_take(queue[0][0])
        # If several subpartitions are possible, any may be next: it is certainly stuck only if none can send.
        return all(not self.could_take(queue[0][0]) for queue in heads)

    @property
    def must_send(self) -> bool:
        """Something must be sent to it, whichever subpartition is next."""
        if self.current is not None:
            return not self.stuck
        heads = [queue for queue in self.queues if queue]
        return bool(heads) and all(self.could_take(queue[0][0]) for queue in heads)


KINDS = st.sampled_from([1, 1, 8, 8, 8, 2, 3, 4, 12, 9])


class RequestQueueMachine(RuleBasedStateMachine):
    receivers = Bundle("receivers")

    @initialize()
    def begin(self) -> None:
        self.budget = Budget(1 << 30, -1, -1)
        self.connection: Any = SimpleNamespace(outgoing_bytes=0, writable=True)
        self.outbox: Any = FakeOutbox()
        self.ended: list[tuple[View, bool]] = []
        self.queue = RequestQueue(
            self.connection, self.outbox, V2_0, HIGH_WATER, lambda view, cancelled: self.ended.append((view, cancelled))
        )
        self.partitions = []
        for number, kind in enumerate((PartitionType.PIPELINED, PartitionType.PIPELINED, PartitionType.BLOCKING)):
            partition_id = ResultPartitionID.of(bytes([number]) * 16)
            self.partitions.append(ResultPartition(partition_id, kind, SUBPARTITIONS, self.budget))
        self.next = {(p, s): 0 for p in range(3) for s in range(SUBPARTITIONS)}
        self.pending: dict[tuple[int, int], deque[tuple[int, bytes]]] = {key: deque() for key in self.next}
        self.complete: dict[tuple[int, int], list[tuple[int, bytes]]] = {key: [] for key in self.next}
        self.taken: set[tuple[int, int]] = set()  # pipelined subpartitions that have had a reader
        self.model: dict[bytes, tuple[ModelReceiver, Receiver, int]] = {}
        self.number = 0
        self.blocking_done = False

    def check(self) -> list[BufferResponse]:
        """Compare sent buffers with the model. Returns them."""
        sent, self.outbox.sent = self.outbox.sent, []
        buffers = []
        for message in sent:
            model, _, start = self.model[message.receiver]
            if isinstance(message, BacklogAnnouncement):
                assert (model.initial, model.credit, model.blocked) == (0, 0, False)
                assert message.backlog == model.backlog() > 0
            else:
                assert isinstance(message, BufferResponse)
                model.accept(message, start)
                buffers.append(message)
        return buffers

    @rule(
        partition=st.integers(0, 2), subpartition=st.integers(0, SUBPARTITIONS - 1), kind=KINDS, size=st.integers(0, 60)
    )
    def push(self, partition: int, subpartition: int, kind: int, size: int) -> None:
        key = partition, subpartition
        if partition == 2 and self.blocking_done:
            return
        payload = bytes([self.next[key] % 256]) * (size or (0 if IS_BUFFER[kind] else 1))
        # Noted before: it may be sent at once.
        self.pending[key].append((kind, payload))
        self.complete[key].append((kind, payload))
        self.partitions[partition].append(subpartition, self.next[key], DataType(kind), False, memoryview(payload))
        self.next[key] += 1
        self.check()

    @precondition(lambda self: not self.blocking_done)
    @rule()
    def finish_the_blocking_one(self) -> None:
        partition = self.partitions[2]
        partition.end_subpartitions()
        for subpartition in range(SUBPARTITIONS):
            complete = self.complete[2, subpartition]
            if not complete or complete[-1][0] != DataType.END_OF_DATA:
                complete.append((9, b"\0\0\0\x08\0"))
            complete.append((10, b"\0\0\0\0"))
        partition.finish()
        self.blocking_done = True
        self.check()

    @rule(
        target=receivers,
        partition=st.integers(0, 2),
        indices=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        credit=st.integers(0, 4),
    )
    def request(self, partition: int, indices: tuple[int, int], credit: int) -> Any:
        start, end = min(indices), max(indices)
        keys = [(partition, index) for index in range(start, end + 1)]
        if partition == 2:
            if not self.blocking_done:
                return multiple()
            queues = [deque(self.complete[key]) for key in keys]
        else:
            if self.taken.intersection(keys):
                return multiple()
            self.taken.update(keys)
            queues = [self.pending[key] for key in keys]
        self.number += 1
        name = self.number.to_bytes(16, "big")
        receiver = Receiver(name)
        receiver.view = View(
            self.partitions[partition], IndexSet(start, end), Credit(credit), lambda: self.queue.look(receiver)
        )
        self.model[name] = ModelReceiver(name, credit, queues), receiver, start
        self.queue.add(receiver)
        self.check()
        return name

    @rule(name=receivers, credit=st.integers(1, 5))
    def add_credit(self, name: bytes, credit: int) -> None:
        self.model[name][0].credit += credit
        self.queue.add_credits([(credit, name)])
        self.check()

    @rule(names=st.lists(receivers, max_size=4), credit=st.integers(1, 3))
    def add_credits(self, names: list[bytes], credit: int) -> None:
        """Several at once, perhaps for the same."""
        names = [name for name in names if name in self.model]
        for name in names:
            self.model[name][0].credit += credit
        self.queue.add_credits([(credit, name) for name in names])
        self.check()

    @rule(name=receivers)
    def resume(self, name: bytes) -> None:
        model, receiver, _ = self.model[name]
        model.blocked = False
        if model.initial == 0:
            model.credit = 0
        receiver.view.credit.resume()
        self.queue.look(receiver)
        self.check()

    @rule(name=consumes(receivers))
    def cancel(self, name: bytes) -> None:
        _, receiver, _ = self.model[name]
        self.queue.remove(name, cancelled=True)
        assert self.ended.pop() == (receiver.view, True)
        receiver.view.close(True)
        del self.model[name]
        self.queue.look(receiver)  # a note that was on its way
        assert self.outbox.sent == []

    @rule()
    def becomes_unwritable(self) -> None:
        self.connection.writable = False
        self.connection.outgoing_bytes = HIGH_WATER

    @rule()
    def becomes_writable(self) -> None:
        self.connection.outgoing_bytes = 0
        self.connection.writable = True
        self.queue.send()
        self.check()

    @precondition(lambda self: self.connection.writable)
    @rule()
    def bytes_leave(self) -> None:
        self.connection.outgoing_bytes = 0

    @precondition(lambda self: self.blocking_done)
    @rule()
    def spill(self) -> None:
        """All buffers in memory move to a file."""
        for partition in self.partitions:
            file = FakeFile() if partition.holdings.file is None else partition.holdings.file
            assert isinstance(file, FakeFile)
            for part in filter(None, partition.subpartitions):
                spill(partition, part, file)

    @invariant()
    def nobody_starves(self) -> None:
        """While the connection is writable, no receiver has both data and credit."""
        if not hasattr(self, "connection") or not self.connection.writable:
            return
        for model, _, _ in self.model.values():
            assert not model.must_send, "a receiver has data and credit, and nothing is sent to it"

    @invariant()
    def the_accounts_are_right(self) -> None:
        if not hasattr(self, "connection"):
            return
        assert self.budget.memory == sum(partition.holdings.memory for partition in self.partitions) >= 0
        for number in range(2):
            partition = self.partitions[number]
            kept = [part.at(position) for part in filter(None, partition.subpartitions) for position in part.kept]
            held = [buffer.payload for buffer in kept if buffer is not None and type(buffer.payload) is bytes]
            assert partition.holdings.memory == sum(map(len, held))
            assert (partition.holdings.in_memory, partition.holdings.in_file) == (len(held), len(kept) - len(held))
            assert partition.holdings.buffers == len(kept)
        ahead = sum(len(receiver.view._ahead.data) for _, receiver, _ in self.model.values())
        assert self.budget.index == sum(partition.holdings.index_bytes for partition in self.partitions) + ahead

    def teardown(self) -> None:
        if not hasattr(self, "connection"):
            return
        self.becomes_writable()
        for _ in range(100):  # every receiver gets everything
            for name in list(self.model):
                if not self.model[name][0].blocked:
                    self.add_credit(name, 50)
                else:
                    self.resume(name)
            self.becomes_writable()
        for model, _, _ in self.model.values():
            unfinished = model.current is not None and not model.queues[model.current]  # a record that never ends
            assert unfinished or all(not queue for queue in model.queues), "something was never sent"
        for name, (_, receiver, _) in self.model.items():
            self.queue.remove(name, cancelled=True)
            receiver.view.close(True)
        for partition in self.partitions:
            partition.release()
        assert (self.budget.memory, self.budget.disk, self.budget.index) == (0, 0, 0)


TestRequestQueue = RequestQueueMachine.TestCase
TestRequestQueue.settings = settings(max_examples=60, stateful_step_count=40)
