"""Views and the request queue in isolation: turns, runs, spilled buffers, the water mark."""

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.runtime.disk import FileRegion
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partition.subpartition import Subpartition
from broker.shuffle.serving import view as view_module
from broker.shuffle.serving.request_queue import Receiver, RequestQueue
from broker.shuffle.serving.view import NO_FRAMES, Credit, PartitionReleased, View
from protocol.shuffle.data_type import IS_BUFFER, DataType
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType


class FakeFile:
    """A file and its source, in memory."""

    path = "fake"

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads: list[tuple[int, int]] = []

    def get(self) -> Any:
        return self

    def pread(self, size: int, offset: int) -> bytes:
        self.reads.append((size, offset))
        return bytes(self.data[offset : offset + size])


def spill(partition: ResultPartition, part: Subpartition, file: FakeFile) -> None:
    """As the spiller does it."""
    start, payloads = part.oldest_in_memory(1 << 60)
    if not payloads:
        return
    with partition.lock:
        partition.holdings.piece_written(file, len(file.data), [(part, start, payloads)])
    file.data += b"".join(payloads)


class Bench:
    """A connection without a network; ``sent``: (receiver, subpartition, sequence) of each buffer."""

    def __init__(
        self,
        subpartitions: int,
        high_water: int = 1 << 20,
        kind: PartitionType = PartitionType.PIPELINED,
        generation: Generation = Generation.V2_0,
    ) -> None:
        self.generation = generation
        self.budget = Budget(1 << 30, -1, -1)
        self.partition = ResultPartition(ResultPartitionID.of(b"p" * 16), kind, subpartitions, self.budget)
        self.connection: Any = SimpleNamespace(writable=True, outgoing_bytes=0)
        self.parts: list[Any] = []
        outbox: Any = SimpleNamespace(push=self._push)
        self.queue = RequestQueue(self.connection, outbox, generation, high_water, lambda view, cancelled: None)
        self.next = [0] * subpartitions

    def _push(self, connection: Any, parts: list[Any]) -> None:
        self.parts += parts
        connection.outgoing_bytes += sum(map(len, parts))

    def push(self, subpartition: int, *payloads: bytes) -> None:
        for payload in payloads:
            self.push_typed(subpartition, DataType.DATA_BUFFER_WITH_CLEAR_END, False, payload)

    def push_typed(self, subpartition: int, data_type: DataType, compressed: bool, payload: bytes) -> None:
        self.partition.append(subpartition, self.next[subpartition], data_type, compressed, memoryview(payload))
        self.next[subpartition] += 1

    def request(self, subpartition: int, credit: int) -> Receiver:
        receiver = Receiver(bytes([subpartition]) * 16)
        indices = IndexSet(subpartition, subpartition)
        receiver.view = View(
            self.partition, indices, Credit(credit), lambda: self.queue.look(receiver), self.generation
        )
        self.queue.add(receiver)
        return receiver

    def frames(self) -> list[tuple[int, bytes]]:
        """(receiver's number, frame) of each buffer, in order."""
        parts, self.parts = self.parts, []
        data = b"".join(p.file.pread(p.size, p.offset) if type(p) is FileRegion else bytes(p) for p in parts)
        frames, pos = [], 0
        while pos < len(data):
            length = int.from_bytes(data[pos : pos + 4], "big")
            frames.append((data[pos + 9], data[pos : pos + length]))
            pos += length
        return frames

    def sent(self) -> list[tuple[int, int]]:
        """(receiver's number, size) of each buffer, in order."""
        return [(number, len(frame) - 47) for number, frame in self.frames()]

    def spill(self, file: FakeFile) -> None:
        for part in self.partition.subpartitions:
            if part is not None:
                spill(self.partition, part, file)


def waiting_for_the_connection(bench: Bench, counts: list[int], size: int = 10) -> None:
    """Receivers with so many buffers each, and credit for all of them."""
    bench.connection.writable = False
    for subpartition, count in enumerate(counts):
        bench.push(subpartition, *[b"x" * size] * count)
        bench.request(subpartition, 100)
    assert bench.sent() == []
    bench.connection.writable, bench.connection.outgoing_bytes = True, 0


def test_receivers_with_data_take_turns_of_few_buffers() -> None:
    bench = Bench(3)
    waiting_for_the_connection(bench, [33, 2, 65])
    bench.queue.send()
    assert [number for number, _ in bench.sent()] == [0] * 32 + [1] * 2 + [2] * 32 + [0] + [2] * 33


def test_a_turn_of_large_buffers_is_shorter() -> None:
    bench = Bench(2, high_water=1 << 30)
    waiting_for_the_connection(bench, [4, 1], size=100_000)
    bench.queue.send()
    assert [number for number, _ in bench.sent()] == [0, 0, 0, 1, 0]


def test_sending_stops_at_high_water_mark_and_continues() -> None:
    bench = Bench(1, high_water=1000)
    bench.push(0, *[b"x" * 200] * 10)
    bench.request(0, 100)
    assert len(bench.sent()) == 4
    assert not bench.connection.writable
    bench.queue.send()
    assert bench.sent() == []
    bench.connection.writable, bench.connection.outgoing_bytes = True, 0
    bench.queue.send()
    assert len(bench.sent()) == 4


def test_the_last_buffer_leaves_the_connection_writable() -> None:
    """Otherwise the queue is not told that the connection is writable again."""
    bench = Bench(1, high_water=1000)
    bench.push(0, *[b"x" * 200] * 4)
    bench.request(0, 100)
    assert len(bench.sent()) == 4
    assert bench.connection.writable


@pytest.mark.parametrize("size", [100, 8191])
def test_adjacent_small_spilled_buffers_are_read_together(size: int) -> None:
    bench = Bench(1)
    payloads = [bytes([n]) * size for n in range(5)]
    bench.push(0, *payloads)
    file = FakeFile()
    bench.spill(file)
    bench.push(0, b"in memory")
    bench.request(0, 100)
    assert [length for _, length in bench.sent()] == [size] * 5 + [9]
    assert file.reads == [(5 * size, 0)]
    assert (bench.budget.memory, bench.budget.disk) == (0, 0)


@pytest.mark.parametrize("receivers", [1, 2])
def test_small_buffers_of_finished_partition_are_read_ahead(receivers: int) -> None:
    """A receiver with one credit, and two that take turns, get a buffer at a time."""
    bench = Bench(2, kind=PartitionType.BLOCKING)
    payloads = [bytes([n]) * 1000 for n in range(40)]
    for subpartition in range(2):
        bench.push(subpartition, *payloads, b"", *payloads)
    file = FakeFile()
    bench.spill(file)
    index = bench.budget.index
    asking = [bench.request(number, 1) for number in range(receivers)]
    came: list[list[bytes]] = [[], []]
    for _ in range(81):
        for number, frame in bench.frames():
            came[number].append(frame[47:])
        bench.queue.add_credits([(1, receiver.id) for receiver in asking])
    assert came[:receivers] == [[*payloads, b"", *payloads]] * receivers
    assert len(file.reads) < 10 * receivers
    assert max(size for size, _ in file.reads) <= 16 * 1024
    for receiver in asking:
        assert bench.budget.index > index
        receiver.view.close(True)
    assert bench.budget.index == index


def test_nothing_is_read_ahead_when_memory_is_scarce() -> None:
    bench = Bench(1, kind=PartitionType.BLOCKING)
    bench.push(0, b"a" * 100, b"b" * 100)
    file = FakeFile()
    bench.spill(file)
    bench.budget.memory_max = 0
    receiver = bench.request(0, 1)
    bench.queue.add_credits([(1, receiver.id)])
    assert file.reads == [(100, 0), (100, 100)]
    assert bench.sent() == [(0, 100), (0, 100)]


def test_empty_spilled_buffers_of_pipelined_partition_are_counted() -> None:
    bench = Bench(2)
    for subpartition in range(2):
        bench.push(subpartition, b"", b"x")
    bench.spill(FakeFile())
    bench.connection.writable = False
    for subpartition in range(2):
        bench.request(subpartition, 100)
    bench.connection.writable = True
    bench.queue.send()
    assert sorted(bench.sent()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (bench.partition.holdings.in_file, bench.partition.holdings.in_memory) == (0, 0)
    assert bench.budget.index == bench.partition.holdings.structure


def test_large_spilled_buffers_are_sent_as_file_regions() -> None:
    bench = Bench(1)
    bench.push(0, b"a" * 8192, b"b" * 10, b"c" * 30_000)
    file = FakeFile()
    bench.spill(file)
    bench.request(0, 100)
    regions = [(p.offset, p.size) for p in bench.parts if type(p) is FileRegion]
    assert regions == [(0, 8192), (8202, 30_000)]
    assert file.reads == [(10, 8192)]


def test_too_short_file_is_an_error_of_receiver() -> None:
    bench = Bench(2)
    bench.push(0, b"x" * 100)
    bench.push(1, b"")
    file = FakeFile()
    bench.spill(file)
    del file.data[50:]
    bench.request(1, 1)
    assert bench.sent() == [(1, 0)]
    bench.request(0, 1)
    error = bytes(bench.parts[0])
    assert error[8] == 1
    assert b"cannot read the partition" in error
    assert len(bench.queue) == 1


@pytest.mark.parametrize("size", [100, 20_000])
def test_file_released_while_read_is_no_broker_error(size: int) -> None:
    class Gone(FakeFile):
        def get(self) -> Any:
            bench.partition.release()
            raise FileNotFoundError(2, "No such file or directory")

    bench = Bench(1, kind=PartitionType.BLOCKING)
    bench.push(0, b"x" * size)
    bench.spill(Gone())
    bench.request(0, 1)
    error = bytes(bench.parts[0])
    assert error[8] == 1
    assert b"PartitionNotFoundException" in error
    assert len(bench.queue) == 0


def test_ended_receiver_may_start_another_in_its_turn() -> None:
    """The end of a receiver calls the queue again; frames already gathered must leave first."""
    bench = Bench(2)
    bench.push(0, b"x" * 10)
    first = bench.request(0, 1)
    second = bench.request(1, 1)
    bench.sent()
    bench.connection.writable = False
    bench.partition.fail("no")
    bench.queue._on_end = lambda view, cancelled: bench.queue.look(second)
    bench.connection.writable = True
    bench.queue.send()
    assert bench.queue.get(first.id) is None
    assert [bytes(part[-16:]) for part in bench.parts] == [first.id, second.id]


@pytest.mark.parametrize("end", ["fail", "release"])
def test_receiver_without_credit_hears_of_end_connection_continues(end: str) -> None:
    """Its position is past the dropped buffers, but its backlog is still requested."""
    bench = Bench(1)
    bench.push(0, b"x")
    receiver = bench.request(0, 0)
    bench.parts.clear()
    getattr(bench.partition, end)(*(["in vain"] if end == "fail" else []))
    assert bench.queue.get(receiver.id) is None
    assert len(bench.parts) == 1


def test_rest_of_a_record_comes_despite_other_data() -> None:
    """A union takes nothing else before; if its writer were blocked for the others' data, both would wait for ever."""
    told: list[Any] = []
    partition = ResultPartition(
        ResultPartitionID.of(b"p" * 16), PartitionType.PIPELINED, 2, Budget(2**30, -1, -1), unsent_max=1
    )
    partition.lease.listener = cast(Any, SimpleNamespace(room_freed=lambda: told.append(True)))
    view = View(partition, IndexSet(0, 1), Credit(10), lambda: None)
    partition.append(0, 0, DataType.DATA_BUFFER, False, memoryview(b"the beginning of a record"))
    assert len(view.take(1, 1000)) == 1
    partition.append(1, 0, DataType.DATA_BUFFER, False, memoryview(b"of the other"))
    assert not partition.must_wait()
    partition.append(0, 1, DataType.DATA_BUFFER_WITH_CLEAR_END, False, memoryview(b"its end"))
    assert partition.must_wait()
    assert len(view.take(10, 1000)) == 2
    assert len(told) == 1, "the writer is told that it may go on"


PUSHES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([1, 1, 8, 8, 8, 2, 3, 4, 9]),
        st.booleans(),
        st.sampled_from([0, 1, 50, 8191, 8192, 20_000]),
    ),
    max_size=40,
)
STEPS = st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=4), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    generation=st.sampled_from(Generation),
    kind=st.sampled_from(PartitionType),
    before=PUSHES,
    after=PUSHES,
    credit=st.integers(0, 5),
    steps=STEPS,
)
def test_runs_give_the_same_as_single_buffers(
    generation: Generation, kind: PartitionType, before: Any, after: Any, credit: int, steps: Any
) -> None:
    """``take_frames`` gives the same for most buffers as ``take`` for any."""

    def run() -> tuple[list[list[bytes]], object]:
        bench = Bench(3, kind=kind, generation=generation)
        file = FakeFile()
        # A blocking partition is read after all of it is in its file.
        for pushes, spills in ((before, True), (after, kind is PartitionType.BLOCKING)):
            for subpartition, data_type, compressed, size in pushes:
                is_data = IS_BUFFER[data_type]
                payload = bytes([bench.next[subpartition]]) * (size if is_data else 5)
                bench.push_typed(subpartition, DataType(data_type), compressed and is_data, payload)
            if spills:
                bench.spill(file)
        receivers = [bench.request(number, credit) for number in range(3)]
        for step in steps:
            bench.queue.add_credits([(count, receivers[number].id) for count, number in step])
            for number in {number for _, number in step}:
                receivers[number].view.credit.resume()
                bench.queue.look(receivers[number])
        came: list[list[bytes]] = [[], [], []]
        for number, frame in bench.frames():
            came[number].append(frame)
        holdings, budget = bench.partition.holdings, bench.budget
        ahead = sum(len(receiver.view._ahead.data) for receiver in receivers)
        accounts = (
            [(r.sequence, r.view.waiting, r.view.credit.credits, r.view.idle) for r in receivers],
            (holdings.memory, holdings.in_memory, holdings.in_file, holdings.unsent, holdings.disk),
            (budget.memory, budget.index - ahead, budget.disk),
        )
        return came, accounts

    in_runs = run()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(View, "take_frames", lambda *arguments: NO_FRAMES)
        assert run() == in_runs


def calls(work: Callable[[], object]) -> int:
    """The number of function calls."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # its callbacks are functions, too
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def union(bench: Bench, subpartitions: int, credit: int = 0) -> View:
    return View(bench.partition, IndexSet(0, subpartitions - 1), Credit(credit), lambda: None)


@pytest.mark.parametrize("kind", PartitionType)
@pytest.mark.parametrize("partial", [False, True])
def test_buffer_cost_is_independent_of_subpartition_count(kind: PartitionType, partial: bool) -> None:
    def cost(subpartitions: int) -> int:
        bench = Bench(subpartitions, kind=kind)
        bench.partition.unsent_max = 1
        data_type = DataType.DATA_BUFFER if partial else DataType.DATA_BUFFER_WITH_CLEAR_END
        for index in range(subpartitions):
            bench.partition.append(index, 0, data_type, False, memoryview(b"x"))
            bench.partition.append(index, 1, DataType.DATA_BUFFER_WITH_CLEAR_END, False, memoryview(b"y"))
        view = union(bench, subpartitions, 100)

        def take() -> None:
            assert len(view.take(5, 1000)) == 5
            bench.partition.append(0, 2, data_type, False, memoryview(b"z"))
            _ = view.backlog(), bench.partition.must_wait()
            bench.partition.announce_room()

        return calls(take)

    assert cost(10) == cost(2000)


def test_view_of_finished_partition_creates_cursors_in_turn() -> None:
    bench = Bench(1000, kind=PartitionType.BLOCKING)
    assert not bench.partition.end_subpartitions()
    union(bench, 2)  # the first counts the buffers of each, once for the partition
    few, many = calls(lambda: union(bench, 10)), calls(lambda: union(bench, 1000))
    assert many == few
    view = union(bench, 1000)
    assert [taken[0] for taken in view.take(1, 1000) + view.take(3, 1000)] == [0, 1, 2, 3]
    assert calls(lambda: view.close(True)) < 30


def test_view_of_many_pipelined_subpartitions_opens_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "AT_ONCE", 10)
    bench = Bench(25)
    for index in (3, 24):
        bench.push(index, b"x" * 10)
    view = union(bench, 25, 100)

    def claimed() -> int:
        return sum(part is not None and part.cursor is not None for part in bench.partition.subpartitions)

    assert (claimed(), view.backlog(), [taken[0] for taken in view.take(9, 1000)]) == (10, 1, [3])
    with pytest.raises(PartitionReleased):
        union(bench, 1)
    assert view.idle
    bench.push(5, b"x" * 10)
    assert not view.idle
    assert view.open_further()
    bench.push(15, b"x" * 10)
    assert view.open_further()
    assert not view.open_further()
    assert claimed() == 25
    assert [taken[0] for taken in view.take(9, 1000)] == [5, 15, 24]
    bench.push(0, b"lost")
    assert [view.close(True) for _ in range(3)] == [False, False, True]
    assert claimed() == 0
    assert bench.partition.readers.all_left
    assert bench.budget.memory == 0


def test_view_closed_while_opening_leaves_all_requested_subpartitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "AT_ONCE", 10)
    bench = Bench(25)
    bench.push(24, b"x")
    view = union(bench, 25)
    while not view.close(True):
        assert not bench.partition.readers.all_left
    assert bench.partition.readers.all_left
    assert bench.budget.memory == 0


def test_view_closed_inside_a_record_leaves_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # The rest of the record may come between two steps of closing. It must not count as received by another reader.
    monkeypatch.setattr(view_module, "AT_ONCE", 10)
    bench = Bench(26)
    view = union(bench, 25, 100)
    while view.open_further():
        pass
    begun = memoryview(b"begun")
    bench.partition.append(24, 0, DataType.DATA_BUFFER, False, begun)
    assert len(view.take(9, 1000)) == 1
    assert bench.partition.readers.inside_record
    assert not view.close(True)
    assert not bench.partition.readers.inside_record
    bench.partition.append(24, 1, DataType.DATA_BUFFER_WITH_CLEAR_END, False, memoryview(b"rest"))
    while not view.close(True):
        pass
    bench.partition.readers.wait_inside_record()  # another reader
    assert bench.partition.readers.inside_record


def test_only_one_of_two_opening_views_gets_subpartition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "AT_ONCE", 10)
    bench = Bench(25)
    first = union(bench, 25)
    second = View(bench.partition, IndexSet(20, 24), Credit(1), lambda: None)
    assert first.open_further()
    with pytest.raises(PartitionReleased):
        first.open_further()
    while not first.close(True):
        pass
    assert [bench.partition.part(n).cursor is not None for n in range(25)] == [False] * 20 + [True] * 5
    bench.push(20, b"x")
    assert len(second.take(1, 1000)) == 1
