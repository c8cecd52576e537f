"""Two writers under one writer id: the newest opening has the partition, and pushes of older openings are refused from then
on."""

import threading
from collections import deque
from contextlib import closing
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.client import ShuffleWriter
from broker.client.shuffle.errors import WriterFencedError
from broker.runtime.disk import SystemDisk
from broker.runtime.timers import Timer
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partitions import Partitions, PartitionSettings
from broker.shuffle.serving.writers import Writers, WriterSettings
from broker.shuffle.spill.spiller import Spiller
from protocol.shuffle import writer_frames as w
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.clocks import ManualClock
from tests.shuffle.harness import BLOCKING, DATA, PIPELINED, Client, Served, Writer, new_id
from tests.shuffle.test_writing import read
from tests.waiting import wait_for

KINDS = [PIPELINED, BLOCKING]
SUBPARTITIONS = 2
NAME = b"w" * 16


def successor(server: Served, partition: bytes, kind: Any, subpartitions: int = 1) -> tuple[Client, Writer]:
    client = server.connect()
    return client, client.open(partition, subpartitions, kind, writer=NAME)


# -- over real sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pushes_of_older_writer_are_not_its_successors(server: Served, kind: Any) -> None:
    old, paused = successor(server, partition := new_id(), kind)
    paused.push(b"0", b"1")
    old.sync()
    new, writer = successor(server, partition, kind)
    assert writer.opened.next_sequences == (2,)
    error = old.writer_error()
    assert (error.writer, error.handle, error.code) == (NAME, paused.handle, WriterErrorCode.FENCED)
    paused.push(b"old 2", b"old 3")
    paused.finish()
    old.send(w.encode_fail_partition(paused.handle, "the old one"), w.encode_close_writer(paused.handle))
    assert old.sync() == []  # it was told, and frames that it had sent before are ignored
    writer.push(b"2", b"3")
    new.finish(writer)
    assert read(server, partition) == [b"0", b"1", b"2", b"3"]


def test_lost_older_connection_does_not_end_its_successor(serve: Any) -> None:
    server = serve(shuffle_writer_retention_ms=30)
    old, _ = successor(server, partition := new_id(), BLOCKING)
    new, writer = successor(server, partition, BLOCKING)
    old.reset()
    lost = server.connect()
    lost.open(gone := new_id())
    lost.reset()
    wait_for(lambda: server.partitions.find(gone).state == w.PartitionState.FAILED)
    new.finish(writer.push(b"data"))
    assert read(server, partition) == [b"data"]


def test_resuming_writer_is_refused_after_another_opened(server: Served) -> None:
    """Its library reconnects by itself, and does not know what the other writer has written meanwhile."""
    partition = new_id()

    def opening(incarnation: int, resumes: bool) -> bytes:
        return w.encode_open_partition(NAME, partition, 1, BLOCKING, incarnation=incarnation, resumes=resumes)

    first = server.connect().send(opening(1, False))
    first.next(w.PartitionOpened)
    again = server.connect().send(opening(1, True))
    assert again.next(w.PartitionOpened).next_sequences == (0,)
    second = server.connect().send(opening(2, False))
    opened = second.next(w.PartitionOpened)
    late = server.connect().send(opening(1, True))
    error = late.next(w.WriterError)
    assert (error.writer, error.handle, error.code) == (NAME, w.NO_HANDLE, WriterErrorCode.FENCED)
    second.finish(Writer(second, opened).push(b"data"))
    assert read(server, partition) == [b"data"]


def test_late_own_opening_does_not_fence_a_writer(server: Served) -> None:
    """A broker that was stopped for a while finds several openings, in any order: a client reconnects repeatedly meanwhile."""
    partition = new_id()

    def opening(attempt: int) -> bytes:
        return w.encode_open_partition(
            NAME, partition, 1, BLOCKING, incarnation=1, resumes=attempt > 0, attempt=attempt
        )

    server.connect().send(opening(0)).next(w.PartitionOpened)
    newest = server.connect().send(opening(2))
    opened = newest.next(w.PartitionOpened)
    given_up = server.connect().send(opening(1))
    assert given_up.next(w.WriterError).code == WriterErrorCode.FENCED
    newest.finish(Writer(newest, opened).push(b"data"))
    assert read(server, partition) == [b"data"]


def test_refused_writer_leaves_the_retention_running(serve: Any) -> None:
    server = serve(shuffle_writer_retention_ms=3000)
    partition = new_id()
    client = server.connect().send(w.encode_open_partition(NAME, partition, 1, PIPELINED, incarnation=2))
    client.next(w.PartitionOpened)
    client.reset()
    wait_for(lambda: server.partitions.find(partition).lease.listener is None)
    late = server.connect().send(w.encode_open_partition(NAME, partition, 1, PIPELINED, incarnation=1, resumes=True))
    assert late.next(w.WriterError).code == WriterErrorCode.FENCED
    wait_for(lambda: server.partitions.find(partition).state == w.PartitionState.FAILED)


@pytest.mark.parametrize("stored", [True, False])
def test_opener_during_finishing_hears_how_it_ends(server: Served, stored: bool) -> None:
    server.disk.gate.clear()
    old, writer = successor(server, partition := new_id(), BLOCKING)
    writer.push(b"data").finish()
    old.sync()
    fenced, new = server.connect(), server.connect()
    for client in (fenced, new):
        client.send(w.encode_open_partition(NAME, partition, 1, BLOCKING))
        assert client.sync() == []
    assert fenced.next(w.WriterError).code == WriterErrorCode.FENCED
    if not stored:
        server.disk.error = OSError(5, "broken")
    server.disk.gate.set()
    expected = WriterErrorCode.FINISHED_ALREADY if stored else WriterErrorCode.RELEASED
    assert new.next(w.WriterError).code == expected
    server.disk.error = None


def test_pushes_on_another_processor_are_counted_or_refused(serve: Any) -> None:
    """Many take-overs while each writer pushes without a pause: the next writer is told of every accepted push."""
    server = serve(network_threads=3, shuffle_pipelined_bytes=1 << 30, shuffle_write_credit_buffers=100_000)
    partition = new_id()
    told: list[int] = []
    threads = []
    for turn in range(12):
        client, writer = successor(server, partition, BLOCKING)
        (start,) = writer.opened.next_sequences
        told.append(start)

        def push(client: Client = client, writer: Writer = writer, turn: int = turn) -> None:
            try:
                for _ in range(200):
                    writer.push(*[b"%d" % turn] * 20)
            except OSError:
                pass

        threads.append(threading.Thread(target=push))
        threads[-1].start()
        wait_for(lambda start=start: server.partitions._by_id[partition].part(0).next_sequence > start)
    for thread in threads:
        thread.join()
    client.finish(writer)
    came = read(server, partition)
    told.append(len(came))
    for turn, (start, end) in enumerate(pairwise(told)):
        assert came[start:end] == [b"%d" % turn] * (end - start)


def test_own_fenced_writer_ends_and_stays_away(server: Served) -> None:
    host, port = server.sockets.address("2.0")
    partition = new_id()
    with closing(ShuffleWriter(f"{host}:{port}", partition, 1, "blocking", writer_id=NAME)) as old:
        old.open()
        old.push(0, b"0")
        wait_for(lambda: server.partitions._by_id[partition].part(0).next_sequence == 1)
        with ShuffleWriter(f"{host}:{port}", partition, 1, "blocking", writer_id=NAME) as new:
            with pytest.raises(WriterFencedError):
                old.commit()
            with pytest.raises(WriterFencedError):
                old.push(0, b"old 1")
            new.push(0, b"1")
            new.commit()
    assert read(server, partition) == [b"0", b"1"]


# -- in any order, against a model ----------------------------------------------------------------------------------------


class Side:
    """A writer, its connection, and the connection's processor, which handles frames one by one."""

    def __init__(self, name: str, partitions: Partitions, spiller: Spiller) -> None:
        self.name = name
        self.queue: deque[Any] = deque()
        self.connection: Any = SimpleNamespace(last_active=0.0)
        self.outbox: Any = SimpleNamespace(push=self._push, call=lambda connection, work: self.queue.append(work))
        self.partitions, self.spiller = partitions, spiller
        self.writers = self.connect()
        self.handle = 0
        self.next: list[int] = []
        self.errors: list[w.WriterError] = []
        self.acknowledged: dict[int, int] = {}
        self.opened: w.PartitionOpened | None = None
        self.finished = False

    def connect(self) -> Writers:
        return Writers(self.connection, self.outbox, self.partitions, self.spiller, WriterSettings(window=1000))

    def _push(self, connection: Any, parts: list[bytes]) -> None:
        for part in parts:
            message = w.parse_server(memoryview(part))
            if isinstance(message, w.PartitionOpened):
                self.opened = message
            elif isinstance(message, w.WriterError):
                self.errors.append(message)
            elif isinstance(message, w.PushAcknowledged):
                self.acknowledged.update(message.next_sequences)
            elif isinstance(message, w.PartitionFinished):
                self.finished = True


class FencingMachine(RuleBasedStateMachine):
    """``content``: the partition's expected buffers, by their writer. The handling of a frame is one step, as on a processor."""

    @initialize()
    def begin(self) -> None:
        clock = ManualClock()
        budget = Budget(1 << 30, -1, -1)
        spiller = Spiller(SystemDisk(), "/nowhere", budget, clock)
        rules = PartitionSettings(
            request_timeout_s=10, retention_s=0, pipelined_bytes=1 << 30, ttl_s=10, writer_retention_s=10
        )
        self.partitions = Partitions(rules, budget, spiller, clock, Timer(clock))
        self.sides = [Side(name, self.partitions, spiller) for name in "ab"]
        self.id = new_id()
        self.content: list[list[bytes]] = [[] for _ in range(SUBPARTITIONS)]
        self.newest: tuple[Side, int] | None = None  # and its handle
        self.ended = False

    @rule(who=st.integers(0, 1))
    def opens(self, who: int) -> None:
        side = self.sides[who]
        side.queue.append(w.OpenPartition(NAME, self.id, SUBPARTITIONS, PIPELINED))

    @rule(who=st.integers(0, 1), subpartitions=st.lists(st.integers(0, SUBPARTITIONS - 1), min_size=1, max_size=4))
    def pushes(self, who: int, subpartitions: list[int]) -> None:
        side = self.sides[who]
        if side.opened is None:
            return
        if side.handle != side.opened.handle:  # it has read the answer just now
            side.handle, side.next = side.opened.handle, list(side.opened.next_sequences)
        for subpartition in subpartitions:
            number = side.next[subpartition]
            payload = f"{side.name}{side.handle}:{number}".encode()
            side.queue.append(w.PushBuffer(side.handle, subpartition, number, DATA, False, memoryview(payload)))
            side.next[subpartition] += 1

    @rule(
        who=st.integers(0, 1),
        how=st.sampled_from(
            [w.CloseWriter, w.CloseWriter, w.FinishPartition] + [partial(w.FailPartition, message="no")] * 2
        ),
    )
    def ends(self, who: int, how: Any) -> None:
        side = self.sides[who]
        if side.handle:
            side.queue.append(how(side.handle))

    @rule(who=st.integers(0, 1))
    def connection_is_lost(self, who: int) -> None:
        side = self.sides[who]
        side.writers.close()
        side.queue.clear()
        if self.newest is not None and self.newest[0] is side:
            self.newest = None
        side.writers = side.connect()
        side.handle, side.opened, side.errors = 0, None, []

    @rule(who=st.integers(0, 1), count=st.integers(1, 5))
    def handles(self, who: int, count: int) -> None:
        """The next frames, or notes of another processor."""
        for _ in range(min(count, len(self.sides[who].queue))):
            self.handle(self.sides[who])
            self.only_what_the_newest_pushed_is_there()

    def handle(self, side: Side) -> None:
        frame = side.queue.popleft()
        if callable(frame):
            frame()
            return
        errors = len(side.errors)
        if isinstance(frame, w.OpenPartition):
            before, side.opened = side.opened, None
            side.writers.handle(frame)
            if self.ended:
                side.opened = before
                assert len(side.errors) == errors + 1
                return
            assert side.opened is not None
            assert side.opened.next_sequences == tuple(map(len, self.content))
            self.newest = side, side.opened.handle
            return
        known = frame.handle in side.writers._handles
        mine = self.newest == (side, frame.handle)
        if isinstance(frame, w.PushBuffer):
            side.writers.push(frame)
            if mine and not self.ended:
                self.content[frame.subpartition].append(bytes(frame.payload))
        else:
            side.writers.handle(frame)
            if mine:
                self.newest = None
                self.ended = self.ended or not isinstance(frame, w.CloseWriter)
        if known and not mine and not self.ended:
            if not isinstance(frame, w.CloseWriter):
                assert [error.code for error in side.errors[errors:]] == [WriterErrorCode.FENCED]
            assert frame.handle not in side.writers._handles

    @invariant()
    def only_what_the_newest_pushed_is_there(self) -> None:
        if not hasattr(self, "partitions") or self.ended:
            return
        partition = self.partitions.find(self.id)
        if partition is not None:
            assert self.content == [
                [] if part is None else [bytes(part.at(n).payload) for n in range(part.next_sequence)]
                for part in partition.subpartitions
            ]

    @precondition(lambda self: not self.ended)
    @invariant()
    def who_has_it_is_told_to_the_partition(self) -> None:
        partition = self.partitions.find(self.id) if hasattr(self, "partitions") else None
        if partition is not None:
            assert (partition.lease.listener is None) == (self.newest is None)


TestFencing = FencingMachine.TestCase
TestFencing.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
