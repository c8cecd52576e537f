"""Whether the transactions of several producers may be ended by one decision, and what each becomes by it. Pure.

Each transaction is asked what it would answer to an EndTxn of its own (``transaction.py``). Then:

| the transactions are                           | the answer                                            |
|------------------------------------------------|-------------------------------------------------------|
| some Ongoing, the others Empty                 | those that are Ongoing are decided, in one change     |
| some ended as asked for already, others Empty  | ``none``: the same request once more                  |
| all Empty                                      | ``none``: nobody has written anything                 |
| some Ongoing, some ended as asked for already  | INVALID_TXN_STATE and the first that has ended        |
| one refuses (fenced, unknown, ended otherwise) | its error and which it is; nothing is decided         |

In the fourth case the request is a late copy of an older one and must not decide what its sender has begun since. A final refusal
takes precedence over CONCURRENT_TRANSACTIONS, after which the client asks again.
"""

from collections.abc import Iterable, Sequence

import attrs

from broker.kafka.transactions.phases import Phase
from broker.kafka.transactions.transaction import Claim, State, Transaction
from protocol.kafka.errors import ErrorCode


@attrs.frozen
class Refused:
    error: ErrorCode
    # Which of the transactions refuses.
    index: int


def decide(
    members: Iterable[tuple[Transaction | None, Claim]], commit: bool, now_ms: int
) -> Sequence[State | None] | Refused:
    """The next state of each, None where nothing changes. The caller makes all of them durable in one change, or none."""
    states: list[State | None] = []
    ended: int | None = None
    wait: Refused | None = None
    for index, (transaction, claim) in enumerate(members):
        result = ErrorCode.invalid_producer_id_mapping
        if transaction is not None:
            result_or_state = transaction.end(claim, commit, now_ms)
            if isinstance(result_or_state, State):
                states.append(result_or_state)
                continue
            result = result_or_state
            if result == ErrorCode.invalid_txn_state and _is_empty(transaction):
                states.append(None)
                continue
        states.append(None)
        if result == ErrorCode.none:
            ended = index if ended is None else ended
        elif result == ErrorCode.concurrent_transactions:
            wait = wait or Refused(result, index)
        else:
            return Refused(result, index)
    if wait is not None:
        return wait
    if ended is not None and any(states):
        return Refused(ErrorCode.invalid_txn_state, ended)
    return states


def _is_empty(transaction: Transaction) -> bool:
    return transaction.state is not None and transaction.state.phase is Phase.EMPTY
