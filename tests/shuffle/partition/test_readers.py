"""The holder of a partition: the newest opening, unless its writer has been replaced."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.shuffle.partition.readers import Fenced, WriterLease
from protocol.shuffle.writer_frames import NO_INCARNATION


class Listener:
    """A writer's connection, which gets no calls here."""

    def room_freed(self) -> None: ...
    def partition_ended(self) -> None: ...
    def fenced(self) -> None: ...
    def task_event(self, subpartition: int, event: bytes) -> None: ...
    def buffer_size(self, subpartition: int, size: int) -> None: ...
    def records_processed(self, subpartitions: list[int]) -> None: ...


def opened(lease: WriterLease, incarnation: int = NO_INCARNATION, resumes: bool = False, attempt: int = 0) -> Listener:
    listener = Listener()
    lease.check(incarnation, resumes, attempt)
    lease.take(listener, incarnation, attempt)
    return listener


def test_each_opening_gets_next_epoch_and_replaces_previous() -> None:
    lease = WriterLease()
    first = opened(lease)
    assert (lease.epoch, lease.listener) == (1, first)
    second = Listener()
    lease.check(NO_INCARNATION, False, 0)
    assert lease.take(second, NO_INCARNATION, 0) is first
    assert (lease.epoch, lease.listener) == (2, second)


def test_replaced_writer_changes_nothing_when_it_leaves() -> None:
    lease = WriterLease()
    opened(lease)
    second = opened(lease)
    assert not lease.give_up(1)
    assert lease.listener is second
    assert lease.give_up(2)
    assert lease.listener is None


def test_resuming_writer_is_fenced_only_by_another_writer() -> None:
    lease = WriterLease()
    opened(lease, incarnation=7, resumes=True)  # nobody has opened it before, whatever the writer assumes
    opened(lease, incarnation=7, resumes=True, attempt=1)
    opened(lease, incarnation=8)
    with pytest.raises(Fenced):
        lease.check(7, True, 2)
    lease.check(7, False, 2)  # a writer that starts over may take it over


@given(attempts=st.lists(st.integers(0, 5), min_size=1))
def test_earlier_attempt_of_a_writer_is_fenced(attempts: list[int]) -> None:
    lease = WriterLease()
    taken: list[int] = []
    for attempt in attempts:
        try:
            opened(lease, incarnation=7, attempt=attempt)
        except Fenced:
            assert attempt < max(taken)
        else:
            taken.append(attempt)
    assert taken == sorted(taken)
    assert lease.epoch == len(taken)


def test_next_writer_inherits_buffer_size_and_cut_off() -> None:
    lease = WriterLease()
    lease.remember_buffers(100_000)
    lease.note_cut_off()
    assert lease.buffer_bytes == 100_000
    assert [lease.take_cut_off(), lease.take_cut_off()] == [True, False]


def test_a_subpartition_s_records_are_processed_once() -> None:
    lease = WriterLease()
    assert lease.newly_processed(range(2)) == [0, 1]
    assert lease.newly_processed(range(1, 4)) == [2, 3]
    assert lease.newly_processed(range(4)) == []


def test_only_the_last_opener_waits_for_finishing() -> None:
    lease = WriterLease()
    told: list[str] = []
    assert lease.set_opener(lambda fenced: told.append("first")) is None
    before = lease.set_opener(lambda fenced: told.append("second"))
    assert before is not None
    before(True)
    last = lease.set_opener(None)
    assert last is not None
    last(False)
    assert told == ["first", "second"]
    assert lease.set_opener(None) is None
