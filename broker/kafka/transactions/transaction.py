"""One transactional id: which producer has it, and what its transaction is doing. Pure: no clocks, locks or storage.

An event is either refused with Kafka's error, or gives the next ``State`` of things, which the caller makes durable before
it counts: ``begin`` marks it as on its way (further events are refused meanwhile, but for offsets of an ongoing
transaction that grows), ``done`` makes it the present, ``undone`` drops it where it could not be made durable.

| in state                    | event                    | goes to        | and                                               |
|-----------------------------|--------------------------|----------------|---------------------------------------------------|
| Empty, Complete...          | init                     | Empty          | the next epoch; after the last, a new producer id |
| Ongoing                     | init                     | PrepareAbort   | an epoch nobody is given: init has to come again  |
| Empty, Complete..., Ongoing | partition or group added | Ongoing        | these belong to the transaction                   |
| Ongoing                     | end (commit)             | PrepareCommit  | decided                                           |
| Ongoing                     | end (abort)              | PrepareAbort   | decided                                           |
| Ongoing                     | its time is over         | PrepareAbort   | the next epoch: whoever still writes is fenced    |
| Ongoing                     | an operator aborts it    | PrepareAbort   | as if its time was over                           |
| PrepareCommit               | carried out              | CompleteCommit | markers and group offsets are durable             |
| PrepareAbort                | carried out              | CompleteAbort  | markers are durable                               |
| CompleteCommit              | end (commit)             | -              | the same request once more                        |
| CompleteAbort               | end (abort)              | -              | the same request once more                        |
| Empty, Complete...          | unused for long          | Dead           | forgotten                                         |

Prepare... refuses everything but its being carried out with CONCURRENT_TRANSACTIONS. What is not in the table is refused with
INVALID_TXN_STATE. A producer id that is not the present one is INVALID_PRODUCER_ID_MAPPING, an epoch PRODUCER_FENCED.
"""

from collections.abc import Iterable
from enum import Enum

import attrs

from protocol.kafka.errors import ErrorCode

Partition = tuple[str, int]

NONE = -1
# Short.MAX_VALUE - 1 is the last epoch that a producer is given: one more is kept to fence it with.
LAST_EPOCH = 2**15 - 2
# Groups of one transaction. In Kafka they are partitions of its offsets topic, of which there are 50; each change writes all.
GROUPS_MAX = 1000


class Phase(Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


PREPARED = (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)
AT_REST = (Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)


@attrs.frozen
class Claim:
    """What a producer says that it is (KIP-360)."""

    producer_id: int
    epoch: int


@attrs.frozen
class State:
    """What is durable of a transactional id. Times are wall clock, -1 for none."""

    producer_id: int
    epoch: int
    timeout_ms: int
    # What the producer said it was when it asked for the present id and epoch: if it says so again, its answer was lost.
    last: Claim | None = None
    phase: Phase = Phase.EMPTY
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NONE
    updated_ms: int = NONE

    @property
    def deadline_ms(self) -> int | None:
        """When an ongoing transaction is aborted."""
        return self.started_ms + self.timeout_ms if self.phase is Phase.ONGOING else None


class Transaction:
    """``state`` is the present one; ``pending`` the next, while it is being made durable."""

    def __init__(self, transactional_id: str, state: State | None = None) -> None:
        self.transactional_id = transactional_id
        self.state = state  # None until the first init is durable
        self.pending: State | None = None

    def begin(self, state: State) -> State:
        assert self.pending is None, "two changes at a time"
        self.pending = state
        return state

    def done(self) -> None:
        assert self.pending is not None
        self.state, self.pending = self.pending, None

    def undone(self) -> None:
        self.pending = None

    # Requests -------------------------------------------------------------------------------------------------------

    def init(self, timeout_ms: int, claim: Claim | None, new_producer_id: int, now_ms: int) -> State | ErrorCode:
        """A producer takes the transactional id. It has it if the next state is Empty; if that is PrepareAbort, what its
        predecessor left open is aborted first. ``new_producer_id`` is taken where one is needed."""
        state = self.state
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        if state is None:
            return State(new_producer_id, 0, timeout_ms, updated_ms=now_ms)
        if state.phase is Phase.DEAD:
            return ErrorCode.not_coordinator  # forgotten just now: asked again, it is a new one
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if claim is not None and not self._is_known(state, claim):
            return ErrorCode.producer_fenced
        if state.phase is Phase.ONGOING:
            return self._fence(state, claim, now_ms)
        if claim is not None and claim == state.last and state.epoch <= LAST_EPOCH:
            return attrs.evolve(state, phase=Phase.EMPTY, timeout_ms=timeout_ms, started_ms=NONE, updated_ms=now_ms)
        if state.epoch >= LAST_EPOCH:
            return State(new_producer_id, 0, timeout_ms, claim, updated_ms=now_ms)
        return State(state.producer_id, state.epoch + 1, timeout_ms, claim, updated_ms=now_ms)

    def add(
        self,
        claim: Claim,
        now_ms: int,
        *,
        partitions: Iterable[Partition] = (),
        groups: Iterable[str] = (),
    ) -> State | ErrorCode:
        """Partitions, and groups whose offsets are committed, become part of the transaction, which begins if there is none.

        ``none`` where they are part of it already.
        """
        state = self.state
        error = self._refuse(claim)
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        ongoing = state.phase is Phase.ONGOING
        all_partitions = (state.partitions if ongoing else frozenset()) | frozenset(partitions)
        all_groups = (state.groups if ongoing else frozenset()) | frozenset(groups)
        if ongoing and all_partitions == state.partitions and all_groups == state.groups:
            return ErrorCode.none
        if len(all_groups) > GROUPS_MAX:
            return ErrorCode.invalid_request
        return attrs.evolve(
            state,
            phase=Phase.ONGOING,
            partitions=all_partitions,
            groups=all_groups,
            last=None,
            started_ms=state.started_ms if ongoing else now_ms,
            updated_ms=now_ms,
        )

    def check_group(self, claim: Claim, group: str) -> ErrorCode:
        """May offsets of this group be committed in the transaction now?

        While more partitions or groups are being added to the same ongoing transaction they may, as in Kafka: librdkafka
        commits offsets on another connection than it adds partitions on, and asks again only 500 ms after a refusal. Once the
        end of the transaction is on its way they may not: the end would be durable before them.
        """
        error = self._refuse_claim(claim)
        state, pending = self.state, self.pending
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        grows = pending is None or pending.phase is Phase.ONGOING
        if state.phase is Phase.ONGOING and group in state.groups and grows:
            return ErrorCode.none
        if state.phase in PREPARED or pending is not None:
            return ErrorCode.concurrent_transactions
        return ErrorCode.invalid_txn_state

    def is_held_by(self, producer_id: int) -> bool:
        state = self.state
        return state is not None and state.producer_id == producer_id

    def why_refused(self, claim: Claim) -> ErrorCode:
        """Why a log refused this producer's batch, in the terms of Produce."""
        state = self.state
        if state is None or state.producer_id != claim.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if state.epoch != claim.epoch:
            return ErrorCode.invalid_producer_epoch
        return ErrorCode.invalid_txn_state

    def end(self, claim: Claim, commit: bool, now_ms: int) -> State | ErrorCode:
        """Decide. ``none`` where it was decided so before, and is carried out."""
        error = self._refuse(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        prepared, complete = (
            (Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT) if commit else (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)
        )
        if state.phase is Phase.ONGOING:
            return attrs.evolve(state, phase=prepared, updated_ms=now_ms)
        if state.phase is complete:
            return ErrorCode.none
        return ErrorCode.concurrent_transactions if state.phase is prepared else ErrorCode.invalid_txn_state

    # Other events ---------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> State | None:
        """Its time is over if this gives a state."""
        state = self.state
        if state is None or self.pending is not None or state.deadline_ms is None or now_ms < state.deadline_ms:
            return None
        # The producer that was too slow may go on with the next epoch, if it asks for it and nobody else has.
        return self._fence(state, Claim(state.producer_id, state.epoch), now_ms)

    def abort(self, claim: Claim, partitions: frozenset[Partition], now_ms: int) -> State | ErrorCode:
        """An operator ends what this producer has open in one of these partitions; ``none`` if that is nothing."""
        error = self._refuse(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if state.phase is not Phase.ONGOING or not state.partitions & partitions:
            return ErrorCode.none
        return self._fence(state, claim, now_ms)

    def carried_out(self, now_ms: int) -> State:
        """All markers are durable."""
        state = self.state
        assert state is not None
        assert state.phase in PREPARED
        assert self.pending is None
        committed = state.phase is Phase.PREPARE_COMMIT
        return attrs.evolve(
            state,
            phase=Phase.COMPLETE_COMMIT if committed else Phase.COMPLETE_ABORT,
            partitions=frozenset(),
            groups=frozenset(),
            updated_ms=now_ms,
        )

    def is_unused(self, now_ms: int, expiration_ms: int) -> bool:
        state = self.state
        if state is None or self.pending is not None or state.phase not in AT_REST:
            return False
        return now_ms - state.updated_ms >= expiration_ms

    def forget(self) -> None:
        """The end of it."""
        assert self.state is not None
        self.state = attrs.evolve(self.state, phase=Phase.DEAD)

    # Rules ----------------------------------------------------------------------------------------------------------

    def _refuse(self, claim: Claim) -> ErrorCode:
        return self._refuse_claim(claim) or (
            ErrorCode.none if self.pending is None else ErrorCode.concurrent_transactions
        )

    def _refuse_claim(self, claim: Claim) -> ErrorCode:
        state = self.state
        if state is None or state.phase is Phase.DEAD or claim.producer_id != state.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if claim.epoch != state.epoch:
            return ErrorCode.producer_fenced
        return ErrorCode.none

    @staticmethod
    def _is_known(state: State, claim: Claim) -> bool:
        return claim in (Claim(state.producer_id, state.epoch), state.last)

    @staticmethod
    def _fence(state: State, last: Claim | None, now_ms: int) -> State:
        return attrs.evolve(state, phase=Phase.PREPARE_ABORT, epoch=state.epoch + 1, last=last, updated_ms=now_ms)
