"""The state machine of a transactional id: its producer and its transaction. Pure: no clocks, locks or storage.

A request is either refused with Kafka's error code, or gives the next ``State``. The caller makes that durable before it
counts: ``begin_change`` keeps it as ``pending``, ``finish_change`` makes it the present state, ``undo_change`` drops it if it
could not be made durable. While a change is pending further requests are refused, except for offsets of an ongoing transaction
that grows.

Requests that do not fit are refused, in this order:

- a producer id other than the present id: INVALID_PRODUCER_ID_MAPPING;
- an epoch other than the present epoch, or the epoch above the last, which fences: PRODUCER_FENCED;
- while a change is pending, and in a Prepare... phase: CONCURRENT_TRANSACTIONS;
- the end of a transaction that is not open: INVALID_TXN_STATE. But if it has ended in the same way already, the request is
  taken for a copy and answered without an error.

An end by transactions version 2 (KIP-890, ``end_and_bump``) is decided together with the next epoch of the producer, or with a
new producer id after the last epoch. So requests that the producer has sent before and that arrive late are fenced. If a
producer names its id and epoch from before that end, the answer to it is taken to be lost:

| the producer names | in the phase   | asks to commit          | asks to abort                           |
|--------------------|----------------|-------------------------|-----------------------------------------|
| its present epoch  | Ongoing        | is decided              | is decided                              |
| its present epoch  | Prepare...     | CONCURRENT_TRANSACTIONS | CONCURRENT_TRANSACTIONS                 |
| its present epoch  | any other      | INVALID_TXN_STATE       | is decided, although nothing is open    |
| its former epoch   | Prepare...     | CONCURRENT_TRANSACTIONS | CONCURRENT_TRANSACTIONS                 |
| its former epoch   | CompleteCommit | none: it has ended so   | INVALID_TXN_STATE                       |
| its former epoch   | CompleteAbort  | PRODUCER_FENCED         | none: it has ended so, or has timed out |
| its former epoch   | any other      | PRODUCER_FENCED         | PRODUCER_FENCED                         |

``TABLE`` has the phases of a transactional id, by the names of Kafka's TransactionState. A participant is a partition that gets
records, or a group whose offsets are committed. A producer of transactions version 2 gets the next epoch with each end, and may
abort where nothing is open, because it cannot know whether a batch that it sent has begun the transaction. Requests that do not
fit the phase are refused; a pair that the table lacks is a bug in the broker (AssertionError).
"""

from collections.abc import Collection, Iterable
from enum import Enum, auto

import attrs

from broker.transitions import Transitions
from protocol.kafka.errors import ErrorCode


class Phase(Enum):
    """The value is the name that DescribeTransactions and ListTransactions show, and that the catalogue stores."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class TransactionEvent(Enum):
    PRODUCER_INIT = auto()
    PARTICIPANT_ADDED = auto()
    COMMIT_DECIDED = auto()
    ABORT_DECIDED = auto()
    TIMED_OUT = auto()
    OPERATOR_ABORTED = auto()
    MARKERS_WRITTEN = auto()
    ID_EXPIRED = auto()


# Decided, and not yet carried out.
PREPARED = (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)
# No transaction is open or being ended.
AT_REST = (Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)


TABLE = Transitions(
    Phase,
    TransactionEvent,
    """
    EMPTY            PRODUCER_INIT      EMPTY            the next epoch; after the last one, a new producer id
    COMPLETE_COMMIT  PRODUCER_INIT      EMPTY            the same
    COMPLETE_ABORT   PRODUCER_INIT      EMPTY            the same
    ONGOING          PRODUCER_INIT      PREPARE_ABORT    the next epoch, which nobody gets: init has to come again
    EMPTY            PARTICIPANT_ADDED  ONGOING          a transaction begins
    COMPLETE_COMMIT  PARTICIPANT_ADDED  ONGOING          a transaction begins
    COMPLETE_ABORT   PARTICIPANT_ADDED  ONGOING          a transaction begins
    ONGOING          PARTICIPANT_ADDED  ONGOING          the transaction grows
    ONGOING          COMMIT_DECIDED     PREPARE_COMMIT   the producer commits
    ONGOING          ABORT_DECIDED      PREPARE_ABORT    the producer aborts
    EMPTY            ABORT_DECIDED      PREPARE_ABORT    version 2: late batches of the producer are fenced
    COMPLETE_COMMIT  ABORT_DECIDED      PREPARE_ABORT    the same
    COMPLETE_ABORT   ABORT_DECIDED      PREPARE_ABORT    the same
    ONGOING          TIMED_OUT          PREPARE_ABORT    the next epoch: a producer that still writes is fenced
    ONGOING          OPERATOR_ABORTED   PREPARE_ABORT    the same
    PREPARE_COMMIT   MARKERS_WRITTEN    COMPLETE_COMMIT  group offsets are committed
    PREPARE_ABORT    MARKERS_WRITTEN    COMPLETE_ABORT   group offsets are dropped
    EMPTY            ID_EXPIRED         DEAD             the transactional id was unused for long and is forgotten
    COMPLETE_COMMIT  ID_EXPIRED         DEAD             the same
    COMPLETE_ABORT   ID_EXPIRED         DEAD             the same
    """,
)
next_phase = TABLE.next


Partition = tuple[str, int]

NONE = -1
# Stands for the partition's number where a group is named beside partitions, as a participant: (group id, GROUP).
GROUP = -1
# Short.MAX_VALUE - 1 is the last epoch that a producer is given. The next epoch is reserved to fence it.
LAST_EPOCH = 2**15 - 2
_FENCED_EPOCH = LAST_EPOCH + 1
# Groups of one transaction. In Kafka they are partitions of its offsets topic, of which there are 50. Each change writes all.
GROUPS_MAX = 1000


@attrs.frozen
class Claim:
    """The producer id and epoch that a producer claims to have (KIP-360)."""

    producer_id: int
    epoch: int


@attrs.frozen
class State:
    """The durable state of a transactional id. Times are wall clock, -1 if not set."""

    producer_id: int
    epoch: int
    timeout_ms: int
    # The producer's claim when it was given the present id and epoch. If it repeats this claim, that answer was lost.
    last: Claim | None = None
    phase: Phase = Phase.EMPTY
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NONE
    updated_ms: int = NONE
    # The producer's id after the decision is carried out, if its last epoch was used.
    next_producer_id: int = NONE

    @property
    def successor(self) -> Claim:
        """The producer's id and epoch after the decision is carried out."""
        if self.next_producer_id != NONE:
            return Claim(self.next_producer_id, 0)
        return Claim(self.producer_id, self.epoch)

    @property
    def deadline_ms(self) -> int | None:
        """When an ongoing transaction is aborted."""
        return self.started_ms + self.timeout_ms if self.phase is Phase.ONGOING else None


class Transaction:
    """``state`` is the present state, ``pending`` the next one while it is being made durable."""

    def __init__(self, transactional_id: str, state: State | None = None) -> None:
        self.transactional_id = transactional_id
        self.state = state  # None until the first init is durable
        self.pending: State | None = None

    def begin_change(self, state: State) -> None:
        assert self.pending is None, "two changes at a time"
        self.pending = state

    def finish_change(self) -> None:
        assert self.pending is not None
        self.state, self.pending = self.pending, None

    def undo_change(self) -> None:
        self.pending = None

    # Requests -------------------------------------------------------------------------------------------------------

    def init(self, timeout_ms: int, claim: Claim | None, new_producer_id: int, now_ms: int) -> State | ErrorCode:
        """A producer takes the transactional id.

        If the next phase is Empty, the producer owns the id. If it is PrepareAbort, the open transaction of its predecessor is
        aborted first. ``new_producer_id`` is used if a new id is needed.
        """
        state = self.state
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        if state is None:
            return State(new_producer_id, 0, timeout_ms, updated_ms=now_ms)
        if state.phase is Phase.DEAD:
            return ErrorCode.not_coordinator  # forgotten a moment ago; the id is new when the client asks again
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if claim is not None and claim not in (Claim(state.producer_id, state.epoch), state.last):
            return ErrorCode.producer_fenced
        if state.phase is Phase.ONGOING:
            return _fence(state, TransactionEvent.PRODUCER_INIT, claim, now_ms)
        phase = next_phase(state.phase, TransactionEvent.PRODUCER_INIT)
        if claim is not None and claim == state.last and state.epoch <= LAST_EPOCH:
            return attrs.evolve(state, phase=phase, timeout_ms=timeout_ms, started_ms=NONE, updated_ms=now_ms)
        if state.epoch >= LAST_EPOCH:
            return State(new_producer_id, 0, timeout_ms, claim, phase, updated_ms=now_ms)
        return State(state.producer_id, state.epoch + 1, timeout_ms, claim, phase, updated_ms=now_ms)

    def add(
        self,
        claim: Claim,
        now_ms: int,
        *,
        partitions: Iterable[Partition] = (),
        groups: Iterable[str] = (),
    ) -> State | ErrorCode:
        """Add partitions, and groups whose offsets are committed, to the transaction, which begins if none is open.

        ``none`` if all of them are already part of it.
        """
        state = self.state
        error = self._refuse(claim)
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        is_open = state.phase is Phase.ONGOING
        all_partitions = (state.partitions if is_open else frozenset()) | frozenset(partitions)
        all_groups = (state.groups if is_open else frozenset()) | frozenset(groups)
        if is_open and all_partitions == state.partitions and all_groups == state.groups:
            return ErrorCode.none
        if len(all_groups) > GROUPS_MAX:
            return ErrorCode.invalid_request
        return attrs.evolve(
            state,
            phase=next_phase(state.phase, TransactionEvent.PARTICIPANT_ADDED),
            partitions=all_partitions,
            groups=all_groups,
            last=None,
            started_ms=state.started_ms if is_open else now_ms,
            updated_ms=now_ms,
        )

    def check_group(self, claim: Claim, group: str) -> ErrorCode:
        """Whether offsets of this group may be committed in the transaction now.

        As in Kafka, they may be committed while more partitions or groups are being added to the same ongoing transaction:
        librdkafka commits offsets on another connection than it adds partitions on, and retries only 500 ms after a refusal.
        They may not be committed while the end of the transaction is being made durable, because the end would be durable first.
        """
        error = self._refuse_claim(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        return self._check_participant(state, group in state.groups)

    def _check_participant(self, state: State, takes_part: bool) -> ErrorCode:
        pending = self.pending
        stays_open = pending is None or pending.phase is Phase.ONGOING
        if state.phase is Phase.ONGOING and takes_part and stays_open:
            return ErrorCode.none
        if state.phase in PREPARED or pending is not None:
            return ErrorCode.concurrent_transactions
        return ErrorCode.invalid_txn_state

    def verify(self, claim: Claim, partitions: Collection[Partition]) -> dict[Partition, ErrorCode]:
        """Whether each of these takes part in the open transaction of this producer. Groups may be among them.

        As in ``check_group``, those that take part already do so while others are being added.
        """
        errors: dict[Partition, ErrorCode] = {}
        for key in partitions:
            error = self.check_group(claim, key[0]) if key[1] == GROUP else self._check_partition(claim, key)
            errors[key] = ErrorCode.transaction_abortable if error == ErrorCode.invalid_txn_state else error
        return errors

    def _check_partition(self, claim: Claim, partition: Partition) -> ErrorCode:
        error = self._refuse_claim(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        return self._check_participant(state, partition in state.partitions)

    def is_held_by(self, producer_id: int) -> bool:
        state = self.state
        return state is not None and state.producer_id == producer_id

    def why_refused(self, claim: Claim) -> ErrorCode:
        """Why a log refused this producer's batch, as the error code of a Produce response."""
        state = self.state
        if state is None or state.producer_id != claim.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if state.epoch != claim.epoch:
            return ErrorCode.invalid_producer_epoch
        return ErrorCode.invalid_txn_state

    def end(self, claim: Claim, commit: bool, now_ms: int) -> State | ErrorCode:
        """Commit or abort. ``none`` if the transaction has already ended in the same way."""
        error = self._refuse(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        event = TransactionEvent.COMMIT_DECIDED if commit else TransactionEvent.ABORT_DECIDED
        if state.phase is Phase.ONGOING:
            return attrs.evolve(state, phase=next_phase(state.phase, event), updated_ms=now_ms)
        prepared = next_phase(Phase.ONGOING, event)
        if state.phase is next_phase(prepared, TransactionEvent.MARKERS_WRITTEN):
            return ErrorCode.none
        return ErrorCode.concurrent_transactions if state.phase is prepared else ErrorCode.invalid_txn_state

    def end_and_bump(self, claim: Claim, commit: bool, new_producer_id: int, now_ms: int) -> State | ErrorCode:
        """``end`` by transactions version 2: see the table above. ``new_producer_id`` is used if a new id is needed.

        After ``none``, ``state`` has the producer's id and epoch.
        """
        state = self.state
        event = TransactionEvent.COMMIT_DECIDED if commit else TransactionEvent.ABORT_DECIDED
        if state is not None and state.phase is not Phase.DEAD and claim == state.last:
            refused = self._refuse_copy(state, commit)
            # An epoch above the last fences, and no producer gets it.
            if refused or state.epoch <= LAST_EPOCH:
                return refused
        else:
            error = self._refuse(claim)
            if error or state is None:
                return error or ErrorCode.invalid_producer_id_mapping
            if state.phase in PREPARED:
                return ErrorCode.concurrent_transactions
            if commit and state.phase is not Phase.ONGOING:
                return ErrorCode.invalid_txn_state
        is_last = state.epoch >= LAST_EPOCH
        return attrs.evolve(
            state,
            phase=next_phase(state.phase, event),
            epoch=_FENCED_EPOCH if is_last else state.epoch + 1,
            last=claim,
            next_producer_id=new_producer_id if is_last else NONE,
            started_ms=state.started_ms if state.phase is Phase.ONGOING else now_ms,
            updated_ms=now_ms,
        )

    def _refuse_copy(self, state: State, commit: bool) -> ErrorCode:
        """The answer to a producer that names its id and epoch from before the end of its transaction."""
        if self.pending is not None or state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if state.phase is Phase.COMPLETE_COMMIT:
            return ErrorCode.none if commit else ErrorCode.invalid_txn_state
        if state.phase is Phase.COMPLETE_ABORT:
            return ErrorCode.producer_fenced if commit else ErrorCode.none
        return ErrorCode.producer_fenced

    # Other events ---------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> State | None:
        """The aborted transaction, if its timeout has passed."""
        state = self.state
        if state is None or state.deadline_ms is None or now_ms < state.deadline_ms:
            return None
        aborted = self.time_out(now_ms)
        return aborted if isinstance(aborted, State) else None

    def time_out(self, now_ms: int) -> State | ErrorCode:
        """The aborted transaction, as at its timeout."""
        state = self.state
        if state is None or state.phase is Phase.DEAD:
            return ErrorCode.invalid_producer_id_mapping
        if self.pending is not None or state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if state.phase is not Phase.ONGOING:
            return ErrorCode.invalid_txn_state
        # The slow producer may go on with the next epoch, if it asks for it before another producer does.
        return _fence(state, TransactionEvent.TIMED_OUT, Claim(state.producer_id, state.epoch), now_ms)

    def abort(self, claim: Claim, partitions: frozenset[Partition], now_ms: int) -> State | ErrorCode:
        """Abort this producer's open transaction in these partitions, for an operator; ``none`` if nothing is open there."""
        error = self._refuse(claim)
        state = self.state
        if error or state is None:
            return error or ErrorCode.invalid_producer_id_mapping
        if state.phase in PREPARED:
            return ErrorCode.concurrent_transactions
        if state.phase is not Phase.ONGOING or not state.partitions & partitions:
            return ErrorCode.none
        return _fence(state, TransactionEvent.OPERATOR_ABORTED, claim, now_ms)

    def complete(self, now_ms: int) -> State:
        """The next state of a decided transaction, once all its markers are durable."""
        state = self.state
        assert state is not None
        assert self.pending is None
        return attrs.evolve(
            state,
            producer_id=state.successor.producer_id,
            epoch=state.successor.epoch,
            phase=next_phase(state.phase, TransactionEvent.MARKERS_WRITTEN),
            partitions=frozenset(),
            groups=frozenset(),
            updated_ms=now_ms,
            next_producer_id=NONE,
        )

    def is_unused(self, now_ms: int, expiration_ms: int) -> bool:
        state = self.state
        if state is None or self.pending is not None or state.phase not in AT_REST:
            return False
        return now_ms - state.updated_ms >= expiration_ms

    def forget(self) -> None:
        """End a transactional id that was unused for long."""
        assert self.state is not None
        self.state = attrs.evolve(self.state, phase=next_phase(self.state.phase, TransactionEvent.ID_EXPIRED))

    # Rules ----------------------------------------------------------------------------------------------------------

    def _refuse(self, claim: Claim) -> ErrorCode:
        return self._refuse_claim(claim) or (
            ErrorCode.none if self.pending is None else ErrorCode.concurrent_transactions
        )

    def _refuse_claim(self, claim: Claim) -> ErrorCode:
        state = self.state
        if state is None or state.phase is Phase.DEAD:
            return ErrorCode.invalid_producer_id_mapping
        if claim.producer_id != state.producer_id:
            # The producer may have been told its next id before the decision is carried out.
            is_early = claim.producer_id == state.next_producer_id != NONE
            return ErrorCode.concurrent_transactions if is_early else ErrorCode.invalid_producer_id_mapping
        # Only a guess can name the epoch above the last, which fences.
        if claim.epoch != state.epoch or claim.epoch > LAST_EPOCH:
            return ErrorCode.producer_fenced
        return ErrorCode.none


def _fence(state: State, event: TransactionEvent, last: Claim | None, now_ms: int) -> State:
    """Abort the transaction and invalidate its producer's epoch."""
    return attrs.evolve(
        state, phase=next_phase(state.phase, event), epoch=state.epoch + 1, last=last, updated_ms=now_ms
    )
