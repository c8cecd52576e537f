from collections.abc import Hashable

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.pulsar.producers.producers import Access, NameTaken, Producers
from broker.pulsar.refusals import ProducerBusy, ProducerFenced

SHARED, EXCLUSIVE, WAIT, FENCING = Access


@attrs.define(eq=False)
class Client:
    name: str
    access: Access = SHARED
    epoch: int = 0
    topic_epoch: int | None = None
    identity: Hashable = 0

    def close(self) -> None: ...

    def promoted(self) -> None: ...

    def fenced(self) -> None: ...


def names(producers: Producers) -> set[str]:
    return {one.name for one in producers}


@pytest.mark.parametrize(
    ("before", "access", "outcome"),
    [
        (SHARED, SHARED, "joins"),
        (SHARED, EXCLUSIVE, ProducerFenced),
        (SHARED, WAIT, "waits"),
        (SHARED, FENCING, "replaces"),
        (EXCLUSIVE, SHARED, ProducerBusy),
        (EXCLUSIVE, EXCLUSIVE, ProducerFenced),
        (EXCLUSIVE, WAIT, "waits"),
        (EXCLUSIVE, FENCING, "replaces"),
    ],
)
def test_who_may_join_whom(before: Access, access: Access, outcome: str | type[Exception]) -> None:
    producers = Producers()
    first, second = Client("first", before), Client("second", access)
    producers.admit(first)
    if not isinstance(outcome, str):
        with pytest.raises(outcome):
            producers.admit(second)
        assert {"first"} == names(producers)
        return
    admitted = producers.admit(second)
    assert (outcome == "waits") == admitted.waits
    assert ([first] if outcome == "replaces" else []) == list(admitted.replaced)
    assert ({"second"} if outcome == "replaces" else {"first", "second"}) == names(producers)


@pytest.mark.parametrize("access", [EXCLUSIVE, WAIT, FENCING])
def test_an_exclusive_producer_raises_the_epoch(access: Access) -> None:
    producers = Producers(epoch=4)
    assert producers.admit(Client("one", access)).raised
    assert 5 == producers.epoch


def test_waiting_producers_are_promoted_in_turn_before_shared() -> None:
    producers = Producers()
    first, second, third = Client("first"), Client("second", WAIT), Client("third", WAIT)
    producers.admit(first)
    assert producers.admit(second).waits
    assert producers.admit(third).waits
    with pytest.raises(ProducerBusy):
        producers.admit(Client("shared"))
    assert producers.remove(first) is second
    assert (0, second) == (producers.epoch, producers.exclusive)
    assert producers.remove(second) is third
    assert producers.remove(third) is None
    assert not producers.in_use


def test_who_fences_the_others_fences_those_who_wait() -> None:
    producers = Producers()
    first, waiting, last = Client("first"), Client("waiting", WAIT), Client("last", FENCING)
    producers.admit(first)
    producers.admit(waiting)
    admitted = producers.admit(last)
    assert ([first], [waiting]) == (list(admitted.replaced), list(admitted.fenced))
    assert producers.remove(last) is None


def test_who_waits_may_leave() -> None:
    producers = Producers()
    first, waiting = Client("first"), Client("waiting", WAIT)
    producers.admit(first)
    producers.admit(waiting)
    assert producers.remove(waiting) is None
    producers.admit(Client("shared"))
    assert producers.remove(first) is None


def test_producer_returning_with_old_epoch_is_fenced() -> None:
    producers = Producers(epoch=5)
    with pytest.raises(ProducerFenced):
        producers.admit(Client("old", EXCLUSIVE, topic_epoch=4))
    assert producers.admit(Client("same", EXCLUSIVE, topic_epoch=5)).raised
    assert 5 == producers.epoch


def test_name_is_unique_except_for_reconnecting_producer() -> None:
    producers = Producers()
    first = Client("name", epoch=1, identity="here")
    producers.admit(first)
    for other in (Client("name", epoch=2, identity="there"), Client("name", epoch=1, identity="here")):
        with pytest.raises(NameTaken) as taken:
            producers.admit(other)
        assert taken.value.holder is first
    newer = Client("name", epoch=2, identity="here")
    assert [first] == list(producers.admit(newer).replaced)
    assert producers.remove(first) is None
    assert [newer] == list(producers)


def test_there_are_no_more_producers_than_allowed() -> None:
    producers = Producers()
    producers.admit(Client("a"), 2)
    producers.admit(Client("b", identity="b"), 2)
    with pytest.raises(ProducerBusy):
        producers.admit(Client("c"), 2)
    assert [] != list(producers.admit(Client("b", epoch=1, identity="b"), 2).replaced)


class TheTable(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.producers = Producers()
        self.present: list[Client] = []
        self.waiting: list[Client] = []
        self.epoch = -1
        self.count = 0

    @rule(access=st.sampled_from(list(Access)), name=st.sampled_from("abc"), back=st.booleans())
    def comes(self, access: Access, name: str, back: bool) -> None:
        self.count += 1
        client = Client(name, access, self.count, self.producers.epoch if back else None, name)
        try:
            admitted = self.producers.admit(client)
        except (ProducerBusy, ProducerFenced, NameTaken):
            return
        for one in admitted.replaced:
            self.present.remove(one)  # type: ignore[arg-type]
        for one in admitted.fenced:
            self.waiting.remove(one)  # type: ignore[arg-type]
        (self.waiting if admitted.waits else self.present).append(client)

    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        everybody = [*self.present, *self.waiting]
        if not everybody:
            return
        client = data.draw(st.sampled_from(everybody))
        promoted = self.producers.remove(client)
        (self.present if client in self.present else self.waiting).remove(client)
        if promoted is not None:
            assert promoted is self.waiting.pop(0)
            self.present.append(promoted)

    @invariant()
    def an_exclusive_producer_is_alone(self) -> None:
        assert {id(one) for one in [*self.present, *self.waiting]} == {id(one) for one in self.producers}
        exclusive = [one for one in self.present if one.access != SHARED]
        if exclusive:
            assert [self.producers.exclusive] == self.present
        else:
            assert self.producers.exclusive is None
        assert self.present or not self.waiting
        assert len({one.name for one in self.present}) == len(self.present)

    @invariant()
    def the_epoch_never_falls(self) -> None:
        assert self.producers.epoch >= self.epoch
        self.epoch = self.producers.epoch


TestTheTable = TheTable.TestCase
TestTheTable.settings = settings(max_examples=50, stateful_step_count=30)


def test_waiting_producer_leaves_without_scanning_others() -> None:
    """A connection with 20,000 of them takes seconds to close otherwise, behind 20,000 of another one."""

    class Looked(Client):
        looks = 0

        def __eq__(self, other: object) -> bool:
            Looked.looks += 1
            return self is other

        __hash__ = Client.__hash__

    producers = Producers()
    producers.admit(Client("first", EXCLUSIVE))
    waiting = [Looked(str(number), WAIT) for number in range(1000)]
    for one in waiting:
        producers.admit(one)
    for one in reversed(waiting):
        assert producers.remove(one) is None
    assert Looked.looks < 1000
    assert ["first"] == [one.name for one in producers]
