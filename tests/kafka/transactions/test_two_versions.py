"""Producers of both versions under one transactional id, over a network that delays, loses and repeats: a model.

In spite of late requests, a batch is stored only in the transaction in which its producer has sent it, and each transaction ends
once and as its producer was told. Version 2 promises this; the classic flow promises it only for producers of other epochs.
"""

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.kafka.transactions.transaction import LAST_EPOCH, PREPARED, Claim, Phase, State, Transaction
from protocol.kafka.errors import ErrorCode

TIMEOUT_MS = 1_000
PARTITIONS = st.sampled_from([("t", 0), ("t", 1)])


@attrs.define(eq=False)
class Producer:
    claim: Claim
    number: int = 0  # of its present transaction
    has_sent: bool = False
    asked: bool | None = None  # it has asked for the end (True: commit) and has heard nothing


@attrs.frozen
class Batch:
    producer: Producer
    number: int
    claim: Claim
    partition: tuple[str, int]


class TwoVersions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.transaction = Transaction("x")
        self.now = 0
        self.ids = 100
        self.producers: list[Producer] = []  # the newest last
        self.network: list[Batch] = []
        # By producer and number: the decision about the transaction.
        self.decided: dict[tuple[Producer, int], bool] = {}
        self.given: set[Claim] = set()

    # What the coordinator does around the pure machine -----------------------------------------------------------------

    def take(self, result: State | ErrorCode | None, fails: bool = False) -> State | None:
        """Make the result durable if it is a state, or fail to do so."""
        if not isinstance(result, State):
            return None
        self.transaction.begin_change(result)
        if fails:
            self.transaction.undo_change()
            return None
        self.transaction.finish_change()
        return result

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    @property
    def state(self) -> State:
        assert self.transaction.state is not None
        return self.transaction.state

    def is_fenced(self, producer: Producer) -> bool:
        return producer is not self.producers[-1]

    # Producers ------------------------------------------------------------------------------------------------------------

    @initialize(epoch=st.sampled_from([0, LAST_EPOCH - 1, LAST_EPOCH]))
    def begin(self, epoch: int) -> None:
        self.transaction.state = State(100, epoch, TIMEOUT_MS)
        self.given.add(Claim(100, self.state.epoch))
        self.producers.append(Producer(Claim(100, self.state.epoch)))

    @rule()
    def another_one_comes(self) -> None:
        self.now += 1
        state = self.take(self.transaction.init(TIMEOUT_MS, None, self.new_id(), self.now))
        if state is None:
            return
        # From here on its predecessor is fenced; an open transaction of the predecessor is aborted first, and it asks again.
        if state.phase is Phase.EMPTY:
            claim = Claim(state.producer_id, state.epoch)
            assert claim.epoch <= LAST_EPOCH
            assert claim not in self.given, "an epoch was given out twice"
            self.given.add(claim)
            self.producers.append(Producer(claim))
        else:
            self.abort_open()
            self.producers.append(Producer(Claim(-2, -2)))  # the next producer; nobody can be it

    def abort_open(self) -> None:
        producer = self.producers[-1]
        self.decided.setdefault((producer, producer.number), False)

    @rule(partition=PARTITIONS)
    def send(self, partition: tuple[str, int]) -> None:
        producer = self.producers[-1]
        if producer.asked is None:
            producer.has_sent = True
            self.network.append(Batch(producer, producer.number, producer.claim, partition))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), again=st.booleans(), fails=st.booleans())
    def deliver(self, data: st.DataObject, again: bool, fails: bool) -> None:
        """A Produce of version 12: the batch adds its partition, and is then appended."""
        index = data.draw(st.integers(0, len(self.network) - 1))
        batch = self.network[index] if again else self.network.pop(index)
        self.now += 1
        result = self.transaction.add(batch.claim, self.now, partitions=[batch.partition])
        is_added = result == ErrorCode.none or self.take(result, fails and data.draw(st.booleans())) is not None
        if is_added:
            assert not self.is_fenced(batch.producer), "a zombie has written"
            assert batch.number == batch.producer.number, "a batch of another transaction"
            assert (batch.producer, batch.number) not in self.decided, "a batch of a transaction that has ended"
            assert batch.partition in self.state.partitions

    @precondition(lambda self: self.producers[-1].claim.epoch >= 0)
    @rule(commit=st.booleans(), lost=st.booleans(), fails=st.booleans(), who=st.sampled_from([0, 0, 1, 2]))
    def end(self, commit: bool, lost: bool, fails: bool, who: int) -> None:
        """An EndTxn of version 5. A producer without an answer repeats it, or, against the rules, asks for the opposite."""
        if who >= len(self.producers):
            return
        producer = self.producers[-1 - who]
        if producer.claim.epoch < 0:
            return
        producer.asked = commit
        self.now += 1
        result = self.transaction.end_and_bump(producer.claim, commit, self.new_id(), self.now)
        key = (producer, producer.number)
        state = self.take(result, fails)
        if isinstance(result, State):
            assert not self.is_fenced(producer), "a zombie has decided"
            if state is None:
                return
            assert self.decided.setdefault(key, commit) == commit, "it was decided otherwise"
            assert state.successor.epoch <= LAST_EPOCH
            assert state.successor not in self.given, "an epoch was given out twice"
            self.given.add(state.successor)
            return  # the answer comes when it is carried out, or never: it asks again
        if result in (ErrorCode.concurrent_transactions,) or lost:
            return
        if result == ErrorCode.none:
            assert self.decided[key] == commit, "it is told of an end that was not"
            producer.claim = self.state.successor
            producer.number += 1
            producer.has_sent, producer.asked = False, None
        elif result == ErrorCode.invalid_txn_state:
            # None of its requests has arrived, or it has asked for the opposite before.
            assert commit or self.decided[key]
            producer.asked = None if commit else True
        else:
            assert self.is_fenced(producer) or self.decided.get(key) is False, result
            producer.claim = Claim(-2, -2)

    # What happens by itself -----------------------------------------------------------------------------------------------

    @rule()
    def time_passes(self) -> None:
        self.now += TIMEOUT_MS
        if self.take(self.transaction.expire(self.now)) is not None:
            self.abort_open()
            if self.state.epoch <= LAST_EPOCH:
                self.given.add(Claim(self.state.producer_id, self.state.epoch))

    @precondition(lambda self: self.state.phase in PREPARED)
    @rule()
    def carry_out(self) -> None:
        commit = self.state.phase is Phase.PREPARE_COMMIT
        successor = self.state.successor
        state = self.take(self.transaction.complete(self.now))
        assert state is not None
        assert Claim(state.producer_id, state.epoch) == successor
        assert (state.phase is Phase.COMPLETE_COMMIT) == commit

    @invariant()
    def no_epoch_is_beyond_the_one_that_fences(self) -> None:
        if self.transaction.state is not None:
            assert self.state.epoch <= LAST_EPOCH + 1
            assert (self.state.next_producer_id >= 0) <= (self.state.phase in PREPARED)


TestTwoVersions = TwoVersions.TestCase
TestTwoVersions.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
