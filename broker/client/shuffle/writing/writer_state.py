"""The states of a writer to a broker, as one table. The state is guarded by the writer's lock.

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

The user causes START (``start``, ``open``), FINISH (``commit``, also when it is called again after a timeout), FAIL (``fail``)
and CLOSE (``close``). The connection causes FINISH_SENT, once for each connection on which FinishPartition was sent, and FAIL
when it is lost and the writer does not connect again. The broker causes PARTITION_FINISHED, READERS_LEFT and FAIL. It reports
PARTITION_FINISHED with PartitionFinished; or, if FinishPartition was sent on a connection that was then lost, by refusing to
open the partition because it is finished. READERS_LEFT means that all readers of a pipelined partition have cancelled: pushes
are dropped, and finishing succeeds. Any other refusal is FAIL.

In FINISHED, FAILED and CLOSED, the writer ignores ``fail`` and the events of the connection and the broker. The callers never
use another pair. The states of the connection are in ``link_state.py``.
"""

from enum import IntEnum


class WriterState(IntEnum):
    """The order matters: before DISCARDING, a lost connection is established again; from FINISHED on, the outcome is known."""

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
    """Look up the next state. Raises AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
