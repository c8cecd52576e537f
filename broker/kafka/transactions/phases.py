"""The phases of a transactional id, by the names of Kafka's TransactionState, as one table.

| phase          | event             | next phase     | and                                                        |
|----------------|-------------------|----------------|------------------------------------------------------------|
| Empty          | PRODUCER_INIT     | Empty          | the next epoch; after the last one, a new producer id      |
| CompleteCommit | PRODUCER_INIT     | Empty          | the same                                                   |
| CompleteAbort  | PRODUCER_INIT     | Empty          | the same                                                   |
| Ongoing        | PRODUCER_INIT     | PrepareAbort   | the next epoch, which nobody gets: init has to come again  |
| Empty          | PARTICIPANT_ADDED | Ongoing        | a transaction begins                                       |
| CompleteCommit | PARTICIPANT_ADDED | Ongoing        | a transaction begins                                       |
| CompleteAbort  | PARTICIPANT_ADDED | Ongoing        | a transaction begins                                       |
| Ongoing        | PARTICIPANT_ADDED | Ongoing        | the transaction grows                                      |
| Ongoing        | COMMIT_DECIDED    | PrepareCommit  | the producer commits                                       |
| Ongoing        | ABORT_DECIDED     | PrepareAbort   | the producer aborts                                        |
| Empty          | ABORT_DECIDED     | PrepareAbort   | version 2: late batches of the producer are fenced         |
| CompleteCommit | ABORT_DECIDED     | PrepareAbort   | the same                                                   |
| CompleteAbort  | ABORT_DECIDED     | PrepareAbort   | the same                                                   |
| Ongoing        | TIMED_OUT         | PrepareAbort   | the next epoch: a producer that still writes is fenced     |
| Ongoing        | OPERATOR_ABORTED  | PrepareAbort   | the same                                                   |
| PrepareCommit  | MARKERS_WRITTEN   | CompleteCommit | group offsets are committed                                |
| PrepareAbort   | MARKERS_WRITTEN   | CompleteAbort  | group offsets are dropped                                  |
| Empty          | ID_EXPIRED        | Dead           | the transactional id was unused for long and is forgotten  |
| CompleteCommit | ID_EXPIRED        | Dead           | the same                                                   |
| CompleteAbort  | ID_EXPIRED        | Dead           | the same                                                   |

A participant is a partition that gets records, or a group whose offsets are committed. A producer of transactions version 2
(KIP-890) gets the next epoch with each end, and may abort where nothing is open, because it cannot know whether a batch that it
sent has begun the transaction. Requests that do not fit the phase are
refused (``transaction.py``); a pair that is not in the table and gets here is a bug in the broker (AssertionError).
"""

from enum import Enum, auto


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

_P, _E = Phase, TransactionEvent

TABLE: dict[tuple[Phase, TransactionEvent], Phase] = {
    (_P.EMPTY, _E.PRODUCER_INIT): _P.EMPTY,
    (_P.COMPLETE_COMMIT, _E.PRODUCER_INIT): _P.EMPTY,
    (_P.COMPLETE_ABORT, _E.PRODUCER_INIT): _P.EMPTY,
    (_P.ONGOING, _E.PRODUCER_INIT): _P.PREPARE_ABORT,
    (_P.EMPTY, _E.PARTICIPANT_ADDED): _P.ONGOING,
    (_P.COMPLETE_COMMIT, _E.PARTICIPANT_ADDED): _P.ONGOING,
    (_P.COMPLETE_ABORT, _E.PARTICIPANT_ADDED): _P.ONGOING,
    (_P.ONGOING, _E.PARTICIPANT_ADDED): _P.ONGOING,
    (_P.ONGOING, _E.COMMIT_DECIDED): _P.PREPARE_COMMIT,
    (_P.ONGOING, _E.ABORT_DECIDED): _P.PREPARE_ABORT,
    (_P.EMPTY, _E.ABORT_DECIDED): _P.PREPARE_ABORT,
    (_P.COMPLETE_COMMIT, _E.ABORT_DECIDED): _P.PREPARE_ABORT,
    (_P.COMPLETE_ABORT, _E.ABORT_DECIDED): _P.PREPARE_ABORT,
    (_P.ONGOING, _E.TIMED_OUT): _P.PREPARE_ABORT,
    (_P.ONGOING, _E.OPERATOR_ABORTED): _P.PREPARE_ABORT,
    (_P.PREPARE_COMMIT, _E.MARKERS_WRITTEN): _P.COMPLETE_COMMIT,
    (_P.PREPARE_ABORT, _E.MARKERS_WRITTEN): _P.COMPLETE_ABORT,
    (_P.EMPTY, _E.ID_EXPIRED): _P.DEAD,
    (_P.COMPLETE_COMMIT, _E.ID_EXPIRED): _P.DEAD,
    (_P.COMPLETE_ABORT, _E.ID_EXPIRED): _P.DEAD,
}


def next_phase(phase: Phase, event: TransactionEvent) -> Phase:
    """The table. AssertionError for an event that cannot happen in that phase."""
    after = TABLE.get((phase, event))
    if after is None:
        raise AssertionError(f"{event.name} in phase {phase.name}")
    return after
