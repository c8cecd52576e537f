"""The share session: its table, and against a broker that counts the requests as Kafka does."""

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker.client.kafka.share.requests import TABLE, SessionEvent, SessionState, ShareSession, next_state
from tests.transitions import check_pairs

S, E = SessionState, SessionEvent
PARTITIONS = [(UUID(int=number), index) for number in (1, 2) for index in (0, 1)]


def test_pair_outside_the_table_is_a_bug() -> None:
    check_pairs(TABLE, next_state, S, E)


def test_epoch_after_the_last_is_one() -> None:
    session = ShareSession()
    session.fetch(PARTITIONS)
    session.answered()
    session.epoch = 2**31 - 1
    assert session.acknowledge() == 2**31 - 1
    session.answered()
    assert session.fetch(PARTITIONS).epoch == 1


class SessionMachine(RuleBasedStateMachine):
    """``broker``: the partitions of the broker's session and the epoch it expects next, or None without a session."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ShareSession()
        self.broker: tuple[frozenset[tuple[UUID, int]], int] | None = None
        self.wanted: frozenset[tuple[UUID, int]] | None = None
        self.is_in_flight = False

    @precondition(lambda self: not self.is_in_flight)
    @rule(wanted=st.sets(st.sampled_from(PARTITIONS)), arrives=st.booleans())
    def fetch(self, wanted: set[tuple[UUID, int]], arrives: bool) -> None:
        plan = self.session.fetch(wanted)
        self.is_in_flight = True
        if not arrives:
            return
        if plan.epoch == 0:
            assert not plan.forgotten
            self.broker = (frozenset(plan.added), 1)
        elif self.broker is not None and self.broker[1] == plan.epoch:
            partitions = self.broker[0]
            assert not partitions & set(plan.added)
            assert partitions >= set(plan.forgotten)
            self.broker = ((partitions | set(plan.added)) - set(plan.forgotten), plan.epoch + 1)
        else:
            self.lose()
            return
        assert self.broker[0] == wanted  # the broker reads the wanted partitions
        self.answer()

    @precondition(lambda self: not self.is_in_flight and self.session.is_open)
    @rule()
    def acknowledge(self) -> None:
        epoch = self.session.acknowledge()
        self.is_in_flight = True
        assert epoch > 0
        if self.broker is None or self.broker[1] != epoch:
            self.lose()
            return
        self.broker = (self.broker[0], epoch + 1)
        self.answer()

    @precondition(lambda self: not self.is_in_flight and self.session.is_open)
    @rule()
    def close(self) -> None:
        assert self.session.close() == -1
        self.is_in_flight = True
        self.broker = None
        self.answer()
        assert self.session.state is S.CLOSED

    @rule()
    def the_broker_forgets_the_session(self) -> None:
        self.broker = None

    @precondition(lambda self: self.session.state is not S.CLOSED or not self.is_in_flight)
    @rule()
    def lose(self) -> None:
        self.session.lost()
        self.is_in_flight = False
        assert self.session.state is S.CLOSED
        assert self.session.epoch == 0

    def answer(self) -> None:
        self.session.answered()
        self.is_in_flight = False


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
