import threading
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.errors import BrokerError, ConfigError
from broker.faults import faults as module
from broker.faults.fault import Entity, Fault, Kind, Passing, Vocabulary
from broker.faults.faults import FaultHandle, Faults, Taken

WORDS = Vocabulary(
    {"observe": Kind(passes=True), "reset": Kind(), "emptied": Kind(changes=True, thing="topic")},
    ("A", "B", "C"),
    (),
    lambda api: () if api == "C" else ("topic",),
)


def new_faults() -> Faults:
    return Faults(lambda: {"": WORDS})


def passing(api: str = "A", *entities: Entity) -> Passing:
    return Passing(1, api, "client", "User:me", entities or (Entity(),))


class Model(RuleBasedStateMachine):
    """Against a list of [handle, matches so far, hits, whether it was removed], which is walked through for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = new_faults()
        self.told: list[bool] = []
        self.faults.attach(self.told.append)
        self.added: list[list[Any]] = []

    def in_force(self) -> list[list[Any]]:
        return [each for each in self.added if not each[3] and each[0].fault.count != each[2]]

    @rule(
        kind=st.sampled_from(["observe", "reset"]),
        api=st.sampled_from([None, "A", "B"]),
        topic=st.sampled_from([None, "t"]),
        count=st.sampled_from([None, 1, 2]),
        skip=st.integers(0, 2),
    )
    def add(self, kind: str, **fields: Any) -> None:
        self.added.append([self.faults.add(kind, **fields), 0, 0, False])

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.added:
            chosen = data.draw(st.sampled_from(self.added))
            chosen[0].remove()
            chosen[3] = True

    @rule()
    def clear(self) -> None:
        self.faults.clear()
        for each in self.added:
            each[3] = True

    @rule(
        api=st.sampled_from(["A", "B"]),
        entities=st.lists(st.sampled_from([Entity(), Entity("t"), Entity("t", group="g"), Entity("u")]), max_size=3),
    )
    def take(self, api: str, entities: list[Entity]) -> None:
        request = passing(api, *entities)
        expected = None
        for each in self.in_force():
            fault = each[0].fault
            matching = fault.matching(request)
            if not matching or (expected is not None and fault.kind != "observe"):
                continue
            each[1] += 1
            if each[1] > fault.skip:
                each[2] += 1
                if fault.kind != "observe":
                    expected = Taken(fault, matching)
        assert expected == self.faults.take(request)

    @invariant()
    def hits_are_counted(self) -> None:
        assert [each[2] for each in self.added] == [each[0].hits for each in self.added]
        assert [each[2] for each in self.added] == [len(each[0].passed) for each in self.added]

    @invariant()
    def it_is_known_what_is_left(self) -> None:
        in_force = self.in_force()
        for each in self.added:
            handle = each[0]
            count = handle.fault.count
            expected = 0 if each not in in_force else None if count is None else count - each[2]
            assert expected == handle.left
        assert [each[0] for each in self.added if not each[3]] == list(self.faults.list())

    @invariant()
    def services_know_whether_to_ask(self) -> None:
        assert bool(self.in_force()) == self.told[-1]
        assert all(before != after for before, after in zip(self.told, self.told[1:], strict=False))


TestModel = Model.TestCase


def hit_numbers(fault: Fault, requests: int) -> list[int]:
    faults = new_faults()
    handle = faults.add(fault)
    hits = []
    for number in range(requests):
        before = handle.hits
        faults.take(passing())
        if handle.hits > before:
            hits.append(number)
    return hits


def test_a_seed_always_draws_the_same() -> None:
    of_seven = hit_numbers(Fault(kind="reset", count=None, probability=0.25, seed=7), 400)
    assert of_seven == hit_numbers(Fault(kind="reset", count=None, probability=0.25, seed=7), 400)
    assert of_seven != hit_numbers(Fault(kind="reset", count=None, probability=0.25, seed=8), 400)
    assert 60 < len(of_seven) < 140


def test_no_request_is_taken_with_probability_0() -> None:
    assert [] == hit_numbers(Fault(kind="reset", count=None, probability=0), 50)


def test_the_first_that_was_added_is_met() -> None:
    faults = new_faults()
    first, second, seen = faults.add("reset"), faults.add("reset"), faults.add("observe", count=None)
    faults.take(passing())
    assert (1, 0, 1) == (first.hits, second.hits, seen.hits)
    faults.take(passing())
    assert (1, 1, 2) == (first.hits, second.hits, seen.hits)


def test_a_fault_is_met_within_its_time_only() -> None:
    now = [7.0]
    faults = Faults(lambda: {"": WORDS}, monotonic=lambda: now[0])
    told: list[bool] = []
    faults.attach(told.append)
    handle = faults.add("reset", count=None, skip=1, after_ms=1000, for_ms=500)

    def met(at: float) -> bool:
        now[0] = at
        return faults.take(passing()) is not None

    # What comes before its time is not one of those that are skipped.
    assert [False, False, False, True, True] == [met(at) for at in (7.0, 7.999, 8.0, 8.1, 8.499)]
    assert (2, None) == (handle.hits, handle.left)
    now[0] = 8.5
    assert 0 == handle.left
    assert [False, True] == told
    assert not met(8.5)
    assert [False, True, False] == told
    assert (2, [handle]) == (handle.hits, faults.list())


def test_when_sees_what_matched_and_decides() -> None:
    faults, seen = new_faults(), []

    def when(request: Passing) -> bool:
        seen.append(request)
        return len(seen) > 1

    handle = faults.add("reset", topic="t", when=when)
    request = passing("A", Entity("u"), Entity("t"))
    assert faults.take(request) is None
    assert faults.take(request) is not None
    assert [passing("A", Entity("t"))] * 2 == seen
    assert 1 == handle.hits


def test_when_may_use_the_faults() -> None:
    faults = new_faults()
    handle = faults.add("reset", when=lambda _: bool(faults.add("observe")))
    taken = threading.Thread(target=faults.take, args=(passing(),))
    taken.start()
    taken.join(30)
    assert 1 == handle.hits
    assert 2 == len(faults.list())


def test_waiting_ends_with_the_last_hit() -> None:
    faults = new_faults()
    handle = faults.add("observe", count=None)
    waiting = threading.Thread(target=handle.wait, args=(2, 60))
    waiting.start()
    faults.take(passing())
    assert waiting.is_alive()
    faults.take(passing())
    waiting.join(30)
    assert not waiting.is_alive()


def test_waiting_in_vain_is_an_error() -> None:
    with pytest.raises(TimeoutError, match=r"0 hits.*waited 0 s for 1 hits"):
        new_faults().add("reset", api="A").wait(1, 0)


def test_a_with_block_removes_its_fault() -> None:
    faults = new_faults()
    with faults.add("reset") as handle:
        assert handle is faults.get(handle.number)
    assert faults.get(handle.number) is None
    assert faults.take(passing()) is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAULTS_MAX", 2)
    faults = new_faults()
    handles: list[FaultHandle] = [faults.add("observe", count=None) for _ in range(2)]
    with pytest.raises(ConfigError, match="There are 2 faults"):
        faults.add("observe")
    entities = [Entity("t", number) for number in range(500)]
    for _ in range(module.PASSED_MAX + 1):
        faults.take(passing("A", *entities))
    assert module.PASSED_MAX + 1 == handles[0].hits
    assert module.PASSED_MAX == len(handles[0].passed)
    assert 100 == len(handles[0].passed[0].entities)


def test_a_fault_meets_only_what_its_kind_has_in_the_protocol() -> None:
    other = Vocabulary({"observe": Kind(passes=True, apis=frozenset({"B"})), "new": Kind()}, ("B", "C"), ())
    faults = Faults(lambda: {"one": WORDS, "two": other})
    seen, reset, new = (faults.add(kind, count=None) for kind in ("observe", "reset", "new"))
    for protocol, api in (("one", "A"), ("two", "B"), ("two", "C"), ("three", "B")):
        faults.take(Passing(1, api, None, "User:me", protocol=protocol))
    assert ["A", "B"] == [each.api for each in seen.passed]
    assert ["A"] == [each.api for each in reset.passed]
    assert ["B", "C"] == [each.api for each in new.passed]


def test_a_detached_service_is_not_called() -> None:
    faults, told = new_faults(), []
    callback = told.append
    faults.attach(callback)
    faults.detach(callback)
    faults.detach(callback)
    faults.add("reset")
    assert [False] == told


def test_a_change_needs_to_know_what_it_changes() -> None:
    faults = new_faults()
    handle = faults.add("emptied", count=None)
    assert faults.take(passing("A")) is None
    taken = faults.take(passing("A", Entity(), Entity("t")))
    assert taken == Taken(handle.fault, (Entity("t"),))


def test_a_change_may_say_itself_what_it_changes() -> None:
    faults = new_faults()
    handle = faults.add("emptied", api="C", topic="t")
    assert faults.take(passing("A", Entity("t"))) is None
    assert faults.take(passing("C")) == Taken(handle.fault, (Entity(),))


def test_a_triggered_fault_happens_where_a_service_can_do_it() -> None:
    faults = new_faults()
    with pytest.raises(BrokerError, match="No broker is running"):
        faults.trigger("emptied", topic="t")
    happened: list[Fault] = []
    faults.attach(lambda _: None)
    faults.attach(callback := lambda _: None, {"emptied": happened.append})
    faults.trigger("Emptied", topic="t")
    assert [Fault(kind="emptied", topic="t")] == happened
    faults.detach(callback)
    with pytest.raises(BrokerError, match="No broker is running"):
        faults.trigger("emptied", topic="t")
