"""Whether a producer has an open transaction, and whether the transaction's coordinator has heard of it. Pure.

The coordinator hears of a transaction with the first partition or group that is added to it; only such a transaction has to be
ended by a request.

======================  ==========  ======================
state                   event       next state
======================  ==========  ======================
NO_TRANSACTION          BEGUN       OPEN
OPEN                    ADDED       OPEN_AT_COORDINATOR
OPEN                    ENDED       NO_TRANSACTION
OPEN_AT_COORDINATOR     ADDED       OPEN_AT_COORDINATOR
OPEN_AT_COORDINATOR     ENDED       NO_TRANSACTION
======================  ==========  ======================

Every pair that is not in the table is a bug of the caller (AssertionError). That a producer has failed is not a state here: it
may fail in every state, and it keeps its error when the transaction ends.
"""

from enum import IntEnum


class TransactionState(IntEnum):
    NO_TRANSACTION = 0
    OPEN = 1
    OPEN_AT_COORDINATOR = 2


class TransactionEvent(IntEnum):
    BEGUN = 0
    ADDED = 1
    ENDED = 2


_S, _E = TransactionState, TransactionEvent

TABLE: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (_S.NO_TRANSACTION, _E.BEGUN): _S.OPEN,
    (_S.OPEN, _E.ADDED): _S.OPEN_AT_COORDINATOR,
    (_S.OPEN, _E.ENDED): _S.NO_TRANSACTION,
    (_S.OPEN_AT_COORDINATOR, _E.ADDED): _S.OPEN_AT_COORDINATOR,
    (_S.OPEN_AT_COORDINATOR, _E.ENDED): _S.NO_TRANSACTION,
}


def next_state(state: TransactionState, event: TransactionEvent) -> TransactionState:
    """The table. AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
