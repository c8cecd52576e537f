"""What a writer to a broker may still do, as one table. Guarded by the writer's lock.

===================  ==================  ===================
state                event               next
===================  ==================  ===================
NEW                  START               WRITING
NEW                  FAIL                FAILED
NEW                  CLOSE               CLOSED
WRITING              FINISH              FINISHING
WRITING              READERS_LEFT        DISCARDING
WRITING              FAIL                FAILED
WRITING              CLOSE               CLOSED
FINISHING            FINISH              FINISHING
FINISHING            FINISH_SENT         COMMITTING
FINISHING            READERS_LEFT        FINISHED
FINISHING            FAIL                FAILED
FINISHING            CLOSE               CLOSED
COMMITTING           FINISH              COMMITTING
COMMITTING           FINISH_SENT         COMMITTING
COMMITTING           PARTITION_FINISHED  FINISHED
COMMITTING           READERS_LEFT        FINISHED
COMMITTING           FAIL                FAILED
COMMITTING           CLOSE               CLOSED
DISCARDING           FINISH              FINISHED
DISCARDING           FAIL                FAILED
DISCARDING           CLOSE               CLOSED
FINISHED             CLOSE               FINISHED_AND_CLOSED
FAILED               CLOSE               CLOSED
===================  ==================  ===================

From the user come START (``start``, ``open``), FINISH (``commit``, also when it is called again after a timeout), FAIL (``fail``)
and CLOSE (``close``). From the connection comes FINISH_SENT, once for each connection on which FinishPartition was sent, and
FAIL when it is lost for good. From the broker come PARTITION_FINISHED (PartitionFinished; or, after FinishPartition was sent on
a connection that was then lost, the refusal to open the partition because it is finished), READERS_LEFT (all readers of a
pipelined partition have cancelled: what is pushed is dropped, and finishing succeeds) and FAIL (any other refusal).

What comes from the connection and the broker after FINISHED, FAILED or CLOSED is ignored; so is ``fail`` there. The callers see
to it that no other pair comes about. Whether there is a connection is the business of ``link_state.py``.
"""

from enum import IntEnum


class WriterState(IntEnum):
    """In order: before DISCARDING a lost connection is made anew, from FINISHED on the outcome is known."""

    NEW = 0
    WRITING = 1
    FINISHING = 2
    COMMITTING = 3
    DISCARDING = 4
    FINISHED = 5
    FAILED = 6
    CLOSED = 7
    FINISHED_AND_CLOSED = 8


class WriterEvent(IntEnum):
    START = 0
    FINISH = 1
    FINISH_SENT = 2
    PARTITION_FINISHED = 3
    READERS_LEFT = 4
    FAIL = 5
    CLOSE = 6


_S, _E = WriterState, WriterEvent

TABLE: dict[tuple[WriterState, WriterEvent], WriterState] = {
    (_S.NEW, _E.START): _S.WRITING,
    (_S.NEW, _E.FAIL): _S.FAILED,
    (_S.NEW, _E.CLOSE): _S.CLOSED,
    (_S.WRITING, _E.FINISH): _S.FINISHING,
    (_S.WRITING, _E.READERS_LEFT): _S.DISCARDING,
    (_S.WRITING, _E.FAIL): _S.FAILED,
    (_S.WRITING, _E.CLOSE): _S.CLOSED,
    (_S.FINISHING, _E.FINISH): _S.FINISHING,
    (_S.FINISHING, _E.FINISH_SENT): _S.COMMITTING,
    (_S.FINISHING, _E.READERS_LEFT): _S.FINISHED,
    (_S.FINISHING, _E.FAIL): _S.FAILED,
    (_S.FINISHING, _E.CLOSE): _S.CLOSED,
    (_S.COMMITTING, _E.FINISH): _S.COMMITTING,
    (_S.COMMITTING, _E.FINISH_SENT): _S.COMMITTING,
    (_S.COMMITTING, _E.PARTITION_FINISHED): _S.FINISHED,
    (_S.COMMITTING, _E.READERS_LEFT): _S.FINISHED,
    (_S.COMMITTING, _E.FAIL): _S.FAILED,
    (_S.COMMITTING, _E.CLOSE): _S.CLOSED,
    (_S.DISCARDING, _E.FINISH): _S.FINISHED,
    (_S.DISCARDING, _E.FAIL): _S.FAILED,
    (_S.DISCARDING, _E.CLOSE): _S.CLOSED,
    (_S.FINISHED, _E.CLOSE): _S.FINISHED_AND_CLOSED,
    (_S.FAILED, _E.CLOSE): _S.CLOSED,
}


def next_state(state: WriterState, event: WriterEvent) -> WriterState:
    """The table. AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
