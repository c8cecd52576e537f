"""The table of throttled connections: each throttle begins once and ends once, whoever ends it and whatever came before."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.network.mute import MuteEvent, next_holds
from broker.network.quota import Throttling
from broker.runtime.timers import Timer
from tests.clocks import ManualClock


class Connection:
    """What a processor does with a throttle."""

    def __init__(self) -> None:
        self.holds = 0
        self.closed = False


class FakeOutbox:
    """Puts off what other threads ask for, until ``run``, as a processor's inbox does."""

    def __init__(self) -> None:
        self.inbox: list[tuple[Connection, Any]] = []

    def call(self, connection: Connection, work: Any) -> None:
        self.inbox.append((connection, work))

    def run(self) -> None:
        while self.inbox:
            connection, work = self.inbox.pop(0)
            if not connection.closed:
                work()

    def start_throttling(self, connection: Connection) -> None:
        connection.holds = next_holds(connection.holds, MuteEvent.THROTTLE_STARTED)

    def end_throttling(self, connection: Connection) -> None:
        connection.holds = next_holds(connection.holds, MuteEvent.THROTTLE_ENDED)


class ThrottlingMachine(RuleBasedStateMachine):
    """Any order of beginnings, ends by the timer, ends by a change of quotas, and closings. ``next_holds`` raises AssertionError
    where a throttle begins or ends twice."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.timer = Timer(self.clock)
        self.throttling = Throttling(self.timer)
        self.outbox = FakeOutbox()
        self.connections = [Connection() for _ in range(3)]
        self.due: dict[Connection, float] = {}

    @rule(which=st.integers(0, 2), seconds=st.sampled_from([0.5, 1.0, 30.0]))
    def begin(self, which: int, seconds: float) -> None:
        connection = self.connections[which]
        if not connection.closed and not connection.holds:
            self.due[connection] = self.clock.now + seconds
            self.throttling.begin(connection, self.outbox, self.due[connection])  # type: ignore[arg-type]
            assert connection.holds

    @rule(seconds=st.sampled_from([0.0, 0.4, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.timer.step(0)

    @rule()
    def processor_runs(self) -> None:
        self.outbox.run()

    @rule()
    def quotas_change(self) -> None:
        self.throttling.end_all()
        self.due = dict.fromkeys(self.due, self.clock.now)

    @rule(which=st.integers(0, 2))
    def close(self, which: int) -> None:
        connection = self.connections[which]
        connection.closed = True
        self.throttling.forget(connection)  # type: ignore[arg-type]
        self.connections[which] = Connection()

    @invariant()
    def the_table_is_what_is_throttled(self) -> None:
        assert len(self.throttling) == sum(bool(connection.holds) for connection in self.connections)

    @invariant()
    def nothing_is_kept_of_closed_connections(self) -> None:
        live = [handle for _, _, handle in self.timer._heap if handle.is_live]
        assert len(live) <= len(self.throttling)

    def teardown(self) -> None:
        for connection in self.connections:
            if connection.holds:
                assert self.throttling._throttled[connection][1].deadline >= 0  # type: ignore[index]
        self.clock.now += 100
        self.timer.step(0)
        self.outbox.run()
        assert not any(connection.holds for connection in self.connections)
        assert len(self.throttling) == 0


TestThrottling = ThrottlingMachine.TestCase
TestThrottling.settings = settings(max_examples=200, stateful_step_count=30)


def test_throttle_ends_exactly_at_its_time() -> None:
    clock = ManualClock()
    timer, outbox, connection = Timer(clock), FakeOutbox(), Connection()
    throttling = Throttling(timer)
    throttling.begin(connection, outbox, clock.now + 1.0)  # type: ignore[arg-type]
    clock.now += 0.99
    timer.step(0)
    outbox.run()
    assert connection.holds
    clock.now += 0.01
    timer.step(0)
    outbox.run()
    assert not connection.holds


def test_every_throttle_start_has_a_matching_end() -> None:
    clock = ManualClock()
    timer, outbox, connection = Timer(clock), FakeOutbox(), Connection()
    throttling = Throttling(timer)
    throttling.begin(connection, outbox, clock.now + 1.0)  # type: ignore[arg-type]
    throttling.begin(connection, outbox, clock.now + 2.0)  # type: ignore[arg-type]
    clock.now += 1.0
    timer.step(0)
    outbox.run()
    assert not connection.holds
    assert len(throttling) == 0
