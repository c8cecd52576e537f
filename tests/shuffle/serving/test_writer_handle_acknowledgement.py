"""A writer's window and the broker's acknowledgements: with any settings, neither waits for the other for ever."""

from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.client import InputGate, ShuffleWriter
from broker.client.shuffle.writing.resend_window import Lack, ResendWindow, Taken
from broker.runtime.timers import Timer
from broker.shuffle.serving.writer_handle import AFTER_BYTES, WITHIN_S, Soon, Unacknowledged
from protocol.shuffle import writer_frames as w
from tests.shuffle.harness import BLOCKING, CLEAR_END, Served, new_id

MIB = 1024 * 1024


def test_bytes_make_acknowledgement_due_regardless_of_push_count() -> None:
    pending = Unacknowledged()
    assert not pending
    assert [] == list(pending.take(0.0))
    assert not pending.add(3, 1, AFTER_BYTES - 1, 0.0)
    assert pending.add(0, 8, 1, 0.0)
    assert {3: 1, 0: 8} == dict(pending.take(0.0))
    assert not pending
    assert not pending.add(3, 2, 0, 0.0)
    assert {3: 2} == dict(pending.take(0.0))


def test_push_after_pause_is_acknowledged_at_once() -> None:
    """The first push, too; pushes soon after it are not."""
    pending = Unacknowledged()
    assert pending.add(0, 1, 10, 100.0)
    pending.take(100.0)
    assert not pending.add(0, 2, 10, 100.0)
    assert not pending.add(0, 3, 10, 100.0 + WITHIN_S / 2)
    assert pending.add(0, 4, 10, 101.0)
    assert {0: 4} == dict(pending.take(101.0))


def test_one_timer_serves_all_callers_while_it_runs() -> None:
    clock = HandClock()
    timer = Timer(clock)
    soon = Soon(clock, timer)
    called: list[int] = []
    for number in range(3):
        soon.call(lambda number=number: called.append(number))  # type: ignore[misc]
    assert 1 == len(timer)
    timer.step(0)
    assert [] == called
    clock.now += WITHIN_S
    timer.step(0)
    assert [0, 1, 2] == called
    soon.call(lambda: called.append(3))
    clock.now += WITHIN_S
    timer.step(0)
    assert [0, 1, 2, 3] == called
    assert 0 == len(timer)


def test_one_that_fails_keeps_no_other_waiting() -> None:
    clock = HandClock()
    timer = Timer(clock)
    soon = Soon(clock, timer)
    called: list[int] = []

    def fail() -> None:
        raise RuntimeError("nothing can be sent")

    soon.call(fail)
    soon.call(lambda: called.append(1))
    clock.now += WITHIN_S
    timer.step(0)
    assert [1] == called


class HandClock:
    now = 5.0

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return 0


# -- a model of both sides ------------------------------------------------------------------------------------------


@attrs.frozen
class Policies:
    """The settings of the two sides. ``due`` replaces AFTER_BYTES, so that small numbers show the behaviour of large ones."""

    window_bytes: int
    subpartitions: int
    credit: int  # pushes that the broker grants
    due: int  # bytes; 0: it does not count bytes
    idle: bool  # the broker acknowledges when no push follows
    asks: bool  # the writer reopens when it gets no answer


class Both:
    """The writer's window, the broker's accounts, and the frames between them; without a clock or threads."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.window = ResendWindow(policies.subpartitions, policies.window_bytes)
        self.stored = [0] * policies.subpartitions
        self.to_broker: deque[Taken] = deque()
        self.to_writer: deque[tuple[str, Any]] = deque()
        self.used = 0
        self.pending = Unacknowledged()
        self.since = 0  # bytes since the last acknowledgement
        self.window.opened(policies.credit, self.stored)

    def push(self, subpartition: int, size: int) -> bool:
        if not self.window.has_room(size):
            return False
        self.window.push(subpartition, 1, False, bytes(size))
        return True

    def send(self) -> None:
        self.to_broker.extend(self.window.take(1))

    def arrive(self) -> None:
        push = self.to_broker.popleft()  # a run of one push
        assert push.sequence == self.stored[push.subpartition], "resent, or a gap"
        self.stored[push.subpartition] += 1
        self.used += 1
        assert self.used <= self.policies.credit, "more was pushed than there was credit for"
        self.pending.add(push.subpartition, push.sequence + 1, len(push.payloads[0]), 0.0)
        self.since += len(push.payloads[0])
        if self.policies.due and self.since >= self.policies.due:
            self.acknowledge()
        if self.used * 4 >= self.policies.credit:
            self.acknowledge()
            self.to_writer.append(("credit", self.used))
            self.used = 0

    def acknowledge(self) -> None:
        self.since = 0
        if self.pending:
            self.to_writer.append(("acknowledged", tuple(self.pending.take(0.0))))

    def hear(self) -> None:
        kind, value = self.to_writer.popleft()
        if kind == "credit":
            self.window.granted(value)
        else:
            for subpartition, sequence in value:
                self.window.acknowledged(subpartition, sequence)

    def come_to_rest(self) -> None:
        """All frames arrive, and both sides send all they have."""
        while True:
            if not self.window.all_sent and self.window.credit:
                self.send()
            elif self.to_broker:
                self.arrive()
            elif self.to_writer:
                self.hear()
            elif self.policies.idle and self.pending:
                self.acknowledge()
            elif self.policies.asks and self.window.unanswered:
                self.window.disconnected()
                self.used = 0
                self.pending = Unacknowledged()
                self.window.opened(self.policies.credit, self.stored)
            else:
                return


_POLICIES = st.builds(
    Policies,
    window_bytes=st.integers(0, 200),
    subpartitions=st.integers(1, 3),
    credit=st.integers(1, 64),
    due=st.sampled_from((0, 1, 10, 100)),
    idle=st.booleans(),
    asks=st.booleans(),
)
# The next action, by number: a push of so many bytes to a subpartition, or a step of a frame in flight.
_STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=200)


@given(policies=_POLICIES, steps=_STEPS, size=st.integers(0, 300))
def test_any_push_has_room_when_nothing_is_pending(policies: Policies, steps: list[tuple[int, int]], size: int) -> None:
    """Either remedy is sufficient: the broker's for any writer, the writer's for older brokers."""
    assume(policies.idle or policies.asks)
    both = Both(policies)
    for action, number in steps:
        if action == 0:
            both.push(number % policies.subpartitions, number)
        elif action == 1 and not both.window.all_sent and both.window.credit:
            both.send()
        elif action == 2 and both.to_broker:
            both.arrive()
        elif action == 3 and both.to_writer:
            both.hear()
    both.come_to_rest()
    assert both.window.lacks(size) is Lack.NOTHING
    assert both.push(0, size)
    both.come_to_rest()
    assert both.window.all_sent


def test_model_detects_a_mutual_wait() -> None:
    """The defaults of both, in MB: the broker acknowledges 16 pushes together, and the window is full with 12 or 13."""
    both = Both(Policies(window_bytes=64, subpartitions=1, credit=64, due=0, idle=False, asks=False))
    pushed = 0
    while both.push(0, 5):
        pushed += 1
        both.come_to_rest()
    assert 12 == pushed
    assert both.window.lacks(5) is Lack.ACKNOWLEDGEMENT
    assert both.window.unanswered


# -- the real thing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocking", "pipelined"])
@pytest.mark.parametrize(
    ("window_bytes", "size", "count"),
    [
        (
            64 * MIB,
            5 * MIB,
            20,
        ),  # the default window, and large buffers: it is full before a quarter of the credit is used
        (0, 100, 5),
        (1, 100, 5),
        (32 * 1024, 32 * 1024, 20),  # one buffer
        (32 * 1024 - 1, 32 * 1024, 20),  # not even that
        (3 * MIB, 9 * MIB, 4),  # one huge buffer
        (10 * MIB, 700 * 1024, 60),
    ],
)
def test_writer_progresses_with_any_window_and_buffer_size(
    server: Served, kind: str, window_bytes: int, size: int, count: int
) -> None:
    partition = new_id()
    address = "{}:{}".format(*server.sockets.address("2.0"))
    payload = bytes(size)
    with ShuffleWriter(address, partition, 2, kind, window_bytes=window_bytes) as writer:
        if kind == "blocking":
            for number in range(count):
                writer.push(number % 2, payload, timeout=30)
            return
        with InputGate([(address, partition, (0, 1))], buffer_size=size) as gate:
            for number in range(count):
                writer.push(number % 2, payload, CLEAR_END, timeout=30)
                item = gate.poll(30)
                assert item is not None
                assert item.data is not None
                assert size == len(item.data)


def test_last_pushes_are_acknowledged_when_none_follow(server: Served) -> None:
    """For writers in other languages, which may wait for each of their pushes."""
    client = server.connect()
    writer = client.open(new_id(), 3, BLOCKING)
    for number in range(3):
        writer.push(b"data", subpartition=2)
        assert client.next() == w.PushAcknowledged(writer.handle, ((2, number + 1),))
    writer.push(b"x", b"y").push(b"z", subpartition=1)
    last = {0: 0, 1: 0}
    while last != {0: 2, 1: 1}:
        last |= dict(client.next(w.PushAcknowledged).next_sequences)


def test_busy_writer_does_not_delay_another_acknowledgement(server: Served) -> None:
    client = server.connect()
    first, second = client.open(new_id(), 1, BLOCKING), client.open(new_id(), 1, BLOCKING)
    first.push(b"waits")
    heard = []
    while not heard:
        second.push(b"goes on")
        heard = [
            message
            for message in client.sync()
            if isinstance(message, w.PushAcknowledged) and message.handle == first.handle
        ]
    assert [w.PushAcknowledged(first.handle, ((0, 1),))] == heard


def test_nothing_is_acknowledged_twice(server: Served) -> None:
    client = server.connect()
    writer = client.open(new_id(), 1, BLOCKING).push(b"0")
    assert client.next() == w.PushAcknowledged(writer.handle, ((0, 1),))
    client.finish(writer)
    assert [] == client.sync()
