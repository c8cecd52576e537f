"""The bodies of the owner's two threads, stepped by the test, with an engine that does what the test says."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import owner as owner_module
from broker.cluster.lease import LeaseState
from broker.cluster.owner import ANSWERS_S, LEASE_S, RENEW_S, Callbacks, LeaseKeeper, LeaseWatch, Owner
from broker.errors import Fenced, StorageError
from broker.metadata.postgres_connection import Backend
from broker.metadata.postgres_owner import OwnerRow, Taken
from tests.clocks import ManualClock


class Engine:
    """The row, and what the next calls do."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.away = False
        self.epoch = 0
        self.number = 0
        self.takes_s = 0.0
        self.lease_until = 0.0
        self.sessions: list[Session] = []
        self.ended: list[Backend] = []
        self.renewals = 0

    def connect(self) -> Any:
        self.answer()
        self.sessions.append(Session(self, len(self.sessions)))
        return self.sessions[-1]

    def answer(self) -> None:
        self.clock.now += self.takes_s
        if self.away:
            raise StorageError("it is away")


class Session:
    def __init__(self, engine: Engine, number: int) -> None:
        self.engine = engine
        self.backend = Backend(number, "")
        self.locked = False
        self.closed = False

    @property
    def is_lost(self) -> bool:
        return self.closed or self.engine.away

    def look(self) -> OwnerRow:
        self.engine.answer()
        return OwnerRow(self.engine.epoch, self.engine.number, "", "", self.left_s(), None)

    def left_s(self) -> float:
        return max(0.0, self.engine.lease_until - self.engine.clock.now)

    def lock(self, timeout_s: float) -> bool:
        if self.locked:
            return True
        self.engine.answer()
        self.locked = not any(other.locked for other in self.engine.sessions if other is not self)
        return self.locked

    def end(self, backend: Backend) -> None:
        self.engine.answer()
        self.engine.ended.append(backend)
        self.engine.sessions[backend.pid].locked = False

    def take(self, holder: str, address: str, lease_s: float) -> Taken:
        self.engine.answer()
        self.engine.epoch += 1
        left_s = self.left_s()
        self.engine.lease_until = self.engine.clock.now + lease_s
        return Taken(self.engine.epoch, self.engine.number, left_s)

    def renew(self, epoch: int, lease_s: float) -> int:
        self.engine.answer()
        self.engine.renewals += 1
        if epoch != self.engine.epoch:
            raise Fenced("another one")
        self.engine.lease_until = max(self.engine.lease_until, self.engine.clock.now + lease_s)
        return self.engine.number

    def lock_holders(self) -> list[Backend]:
        return []

    def release(self, epoch: int, *, lease: bool) -> None:
        self.engine.answer()
        self.locked = False
        if lease and epoch == self.engine.epoch:
            self.engine.lease_until = 0.0

    def close(self) -> None:
        self.closed = True  # its lock stays until the server has noticed


class Setting:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        threads: Any = None
        self.owner = Owner(self.engine.connect, self.clock, threads, holder="h", address="a")
        assert self.owner.acquire(wait=False)
        self.told: list[str] = []
        self.owner.callbacks = Callbacks(
            lambda: self.told.append("suspended"),
            lambda: self.told.append("resumed"),
            lambda reason: self.told.append(f"fenced: {reason}"),
        )
        self.keeper = LeaseKeeper(self.owner, RENEW_S, self.clock)
        self.watch = self.owner._watch

    def pass_time(self, seconds: float, keeper: bool = True) -> None:
        """In pieces of a tenth of a second. The keeper and the watch run, or only the watch."""
        for _ in range(round(seconds * 10)):
            self.clock.now += 0.1
            if keeper:
                self.keeper.step(0)
            self.look()

    def look(self) -> None:
        while self.watch.step(0):
            pass


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_the_lease_is_renewed_each_second(setting: Setting) -> None:
    setting.pass_time(60)
    assert 54 <= setting.engine.renewals <= 61  # the keeper looks ten times a second
    assert ([], True) == (setting.told, setting.owner.is_leading())


def test_an_engine_that_is_away_suspends_once_the_lease_has_run_out_and_not_before(setting: Setting) -> None:
    setting.pass_time(4)
    setting.engine.away = True
    setting.pass_time(7)
    assert ([], True) == (setting.told, setting.owner.is_leading())
    setting.pass_time(3)
    assert (["suspended"], False) == (setting.told, setting.owner.is_leading())
    setting.engine.away = False
    setting.pass_time(1)
    assert (["suspended", "resumed"], True) == (setting.told, setting.owner.is_leading())


def test_rows_of_the_journal_renew_the_lease_as_well(setting: Setting) -> None:
    for number in range(1, 31):
        setting.pass_time(2, keeper=False)
        setting.owner.renewed(setting.clock.now, number)
    assert ([], True) == (setting.told, setting.owner.is_leading())


def test_the_watch_tells_of_a_lease_that_ran_out_while_nothing_ran(setting: Setting) -> None:
    setting.clock.now += 60
    assert not setting.owner.is_leading()
    setting.look()
    assert ["suspended"] == setting.told
    setting.keeper.step(0)
    setting.look()
    assert ["suspended", "resumed"] == setting.told


def test_a_lease_that_ran_out_and_was_renewed_unseen_suspends_all_the_same(setting: Setting) -> None:
    setting.clock.now += 60
    setting.keeper.step(0)
    setting.look()
    assert ["suspended", "resumed"] == setting.told


def test_who_does_not_know_what_others_have_changed_stays_suspended(setting: Setting) -> None:
    known_at = setting.clock.now
    setting.owner.callbacks.known_at = lambda returned_at: known_at
    setting.clock.now += 60
    setting.pass_time(3)
    assert (["suspended"], True) == (setting.told, setting.clock.now > setting.owner.lease.answers_until)
    known_at = setting.clock.now
    setting.pass_time(1)
    assert (["suspended", "resumed"], True) == (setting.told, setting.clock.now < setting.owner.lease.answers_until)


def test_an_owner_that_was_replaced_is_told_so_once_and_renews_no_more(setting: Setting) -> None:
    setting.pass_time(3)
    setting.engine.epoch += 1
    setting.pass_time(3)
    renewals = setting.engine.renewals
    setting.owner.lost("a transaction")
    setting.owner.renewed(setting.clock.now, 9)
    setting.pass_time(60)
    assert (["fenced: another one"], False) == (setting.told, setting.owner.is_leading())
    assert renewals == setting.engine.renewals


def test_a_transaction_that_was_fenced_ends_the_lease_at_once(setting: Setting) -> None:
    setting.owner.lost("a transaction")
    assert not setting.owner.is_leading()
    setting.look()
    assert ["fenced: a transaction"] == setting.told


def test_an_engine_with_fewer_rows_than_are_known_to_be_stored_ends_the_lease(setting: Setting) -> None:
    setting.engine.number = 7
    setting.owner.renewed(setting.clock.now, 7)
    setting.pass_time(3)
    assert [] == setting.told
    setting.engine.number = 5
    setting.pass_time(3)
    (told,) = setting.told
    assert "has lost rows of the journal that it had stored, up to number 7" in told


def test_a_slow_answer_counts_from_when_it_was_asked_for(setting: Setting) -> None:
    setting.engine.takes_s = 8.0
    setting.pass_time(2.5, keeper=False)
    setting.keeper.step(0)  # at most 1.5 s are left of the 9.5 s
    setting.engine.takes_s = 0.0
    assert setting.owner.is_leading()
    setting.clock.now += 2.0
    assert not setting.owner.is_leading()


def test_a_lost_connection_is_made_again_and_the_session_before_is_ended(setting: Setting) -> None:
    setting.engine.away = True
    setting.pass_time(3)
    setting.engine.away = False
    setting.pass_time(3)
    first, last = setting.engine.sessions[0], setting.engine.sessions[-1]
    assert (True, True) == (first.closed, last.locked)
    assert [first.backend] == setting.engine.ended


def test_after_an_absence_of_the_engine_a_free_lock_is_left_to_the_owner_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    engine = Engine(clock)
    engine.away = True
    threads: Any = None
    owner = Owner(engine.connect, clock, threads, holder="h", address="a")
    monkeypatch.setattr(owner_module, "_RETRY_S", 0.0)
    monkeypatch.setattr(owner_module, "_LOCK_WAIT_S", 0.0)
    asked: list[float] = []

    def stopped() -> bool:
        engine.away = len(asked) < 3
        asked.append(clock.now)
        clock.now += 0.5
        return len(asked) > 100

    assert owner.acquire(wait=True, stopped=stopped)
    came_back = asked[3]
    assert 3.0 <= clock.now - came_back <= 4.5


def test_a_watch_waits_no_longer_than_the_lease(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    tell: Callable[[LeaseState], None] = lambda _state: None  # noqa: E731
    watch = LeaseWatch(setting.owner.lease, setting.clock, tell, lambda _: inf)
    monkeypatch.setattr(watch, "_inbox", type("Stub", (), {"take": lambda _self, timeout: waits.append(timeout)})())
    watch.step(None)
    setting.clock.now += 5
    watch.step(None)
    setting.clock.now += 60
    watch.step(None)  # tells
    watch.step(None)
    assert [pytest.approx(9.5), pytest.approx(4.5), None] == waits


def new_owner(engine: Engine) -> Owner:
    threads: Any = None
    return Owner(engine.connect, engine.clock, threads, holder="h", address="a")


def test_the_first_owner_has_nobody_to_wait_for(setting: Setting) -> None:
    assert setting.clock.now >= setting.owner.answers_from


def test_who_follows_an_owner_that_has_stopped_has_nobody_to_wait_for(setting: Setting) -> None:
    setting.pass_time(30)
    assert setting.owner.stop()
    following = new_owner(setting.engine)
    assert following.acquire(wait=True)
    assert setting.clock.now >= following.answers_from


def test_who_is_stopped_before_it_may_answer_leaves_the_waiting_to_the_next_one(setting: Setting) -> None:
    setting.pass_time(30)
    setting.engine.sessions[0].locked = False
    second, third = new_owner(setting.engine), new_owner(setting.engine)
    assert second.acquire(wait=True)
    assert second.stop()
    assert third.acquire(wait=True)
    assert setting.clock.now + ANSWERS_S == pytest.approx(third.answers_from)


@given(
    st.lists(
        st.one_of(
            st.floats(0.0, 3.0),  # time passes
            st.sampled_from(["renew", "flush", "engine away", "engine back", "session cut", "stand still", "go on"]),
        ),
        max_size=40,
    ),
    st.floats(0.0, 0.5),
    st.floats(0.0, 0.5),
)
def test_the_next_owner_answers_only_when_the_one_before_is_silent(
    events: list[float | str], answer_takes_s: float, take_takes_s: float
) -> None:
    """Whatever has become of it: it does not know yet, stands still, or cannot reach the engine."""
    setting = Setting()
    clock, engine, old = setting.clock, setting.engine, setting.owner
    still = False
    for event in events:
        if isinstance(event, float):
            clock.now += event
        elif event in ("stand still", "go on"):
            still = event == "stand still"
        elif event in ("engine away", "engine back"):
            engine.away = event == "engine away"
        elif event == "session cut":
            engine.sessions[-1].locked = False
        elif not still and not engine.away:
            sent_at = clock.now
            clock.now += answer_takes_s
            engine.lease_until = max(engine.lease_until, clock.now + LEASE_S)
            clock.now += answer_takes_s
            old.renewed(sent_at, 0)
    for session in engine.sessions:
        session.locked = False
    engine.away, engine.takes_s = False, take_takes_s
    following = new_owner(engine)
    assert following.acquire(wait=True)
    assert following.answers_from >= old.lease.answers_until
    assert following.answers_from <= clock.now + ANSWERS_S
