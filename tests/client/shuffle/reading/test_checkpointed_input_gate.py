"""Aligned checkpoints: every channel waits exactly from its barrier to the moment of the snapshot."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.client.shuffle.reading.checkpointed_input_gate import (
    Aligned,
    BarrierAlignment,
    Cancelled,
    Effect,
    GoesOn,
    Waits,
)
from protocol.shuffle.events import Alignment, CheckpointBarrier


def barrier(number: int, alignment: Alignment = Alignment.ALIGNED) -> CheckpointBarrier:
    return CheckpointBarrier(number, 0, alignment=alignment)


class Task(RuleBasedStateMachine):
    """Channels carry barriers and cancellations of growing numbers, and end."""

    @initialize(channels=st.integers(1, 4))
    def begin(self, channels: int) -> None:
        self.channels = set(range(channels))
        self.seen = dict.fromkeys(self.channels, 0)  # the last number on each channel
        self.alignment = BarrierAlignment(self.channels)
        self.waiting: dict[int, int] = {}  # channel -> checkpoint
        self.over: list[int] = []  # in the order in which they were aligned or cancelled

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Waits(channel):
                    assert channel not in self.waiting
                    self.waiting[channel] = self.alignment.current
                case GoesOn(channel):
                    assert channel not in self.waiting
                case Aligned(aligned, resume):
                    number = aligned.checkpoint_id
                    assert all(self.seen[channel] == number for channel in self.channels)
                    self.finish(number, resume)
                case Cancelled(number, resume):
                    self.finish(number, resume)

    def finish(self, number: int, resume: tuple[object, ...]) -> None:
        assert number not in self.over
        self.over.append(number)
        assert set(resume) == set(self.waiting)
        self.waiting.clear()

    def free(self) -> list[int]:
        return sorted(channel for channel in self.channels if channel not in self.waiting)

    @precondition(lambda self: self.free())
    @rule(data=st.data(), step=st.integers(1, 2))
    def barrier(self, data: st.DataObject, step: int) -> None:
        channel = data.draw(st.sampled_from(self.free()))
        self.seen[channel] += step
        self.apply(self.alignment.barrier(channel, barrier(self.seen[channel])))

    @precondition(lambda self: self.free())
    @rule(data=st.data(), step=st.integers(1, 2))
    def cancel(self, data: st.DataObject, step: int) -> None:
        channel = data.draw(st.sampled_from(self.free()))
        self.seen[channel] += step
        self.apply(self.alignment.cancel(self.seen[channel]))

    @precondition(lambda self: len(self.channels) > 1 and self.free())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(self.free()))
        self.channels.discard(channel)
        self.apply(self.alignment.end_of_partition(channel))

    @invariant()
    def somebody_is_always_free(self) -> None:
        if hasattr(self, "channels"):
            assert self.free()

    @invariant()
    def only_the_pending_checkpoint_makes_channels_wait(self) -> None:
        if hasattr(self, "waiting") and self.waiting:
            assert self.alignment.is_pending
            assert {self.alignment.current} == set(self.waiting.values())

    @invariant()
    def checkpoints_end_in_order(self) -> None:
        assert sorted(getattr(self, "over", [])) == getattr(self, "over", [])


TestTask = Task.TestCase


def test_snapshot_is_at_the_last_barrier() -> None:
    alignment = BarrierAlignment("ab")
    assert [Waits("a")] == alignment.barrier("a", barrier(1))
    assert [Waits("b"), Aligned(barrier(1), ("a", "b"))] == alignment.barrier("b", barrier(1))


def test_newer_barrier_cancels_older_checkpoint() -> None:
    alignment = BarrierAlignment("ab")
    alignment.barrier("a", barrier(1))
    assert [Cancelled(1, ("a",)), Waits("b")] == alignment.barrier("b", barrier(2))
    assert [Waits("a"), Aligned(barrier(2), ("b", "a"))] == alignment.barrier("a", barrier(2))


def test_barrier_of_cancelled_checkpoint_does_nothing() -> None:
    alignment = BarrierAlignment("ab")
    assert [Cancelled(1, ())] == alignment.cancel(1)
    assert [GoesOn("a")] == alignment.barrier("a", barrier(1))
    assert [] == alignment.cancel(1)


def test_ended_channel_is_not_awaited() -> None:
    alignment = BarrierAlignment("ab")
    alignment.barrier("a", barrier(1))
    assert [Aligned(barrier(1), ("a",))] == alignment.end_of_partition("b")


def test_barrier_without_alignment_blocks_no_channel() -> None:
    alignment = BarrierAlignment("ab")
    first = barrier(1, Alignment.AT_LEAST_ONCE)
    assert [] == alignment.barrier("a", first)
    assert [Aligned(first, ())] == alignment.barrier("b", first)
