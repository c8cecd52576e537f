"""Faults on demand for the messages of the shuffle protocol.

``Faulting.faults`` is None as long as there is no fault. Otherwise every message of a reader or writer becomes a ``Step`` and
meets faults by itself, also where several have arrived together, and so does every buffer that is sent to a reader: as
BUFFER_RESPONSE.

| kind | what happens |
|---|---|
| observe | the message passes |
| delay | the message is handled, or the buffer sent, ``delay_ms`` later, and so are the connection's later ones |
| reset | the connection is closed: instead of handling the message, or after the buffer has been sent |
| partition_released | the partition is released as by its owner: before the message is handled, or after the buffer was sent |

On the connection's processor, where nothing may block; ``trigger`` on any other thread.

Tests: tests/shuffle/test_faulting.py.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import attrs

from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Entity, Fault, Kind, Passing, Vocabulary
from broker.faults.faults import Faults
from broker.network.service import Connection
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.shuffle.partitions import Partitions
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.messages import MessageId
from protocol.shuffle.writer_frames import WriterId

BUFFER_RESPONSE: Final = MessageId.BUFFER_RESPONSE.name
# ListPartitions, by which clients also ask whether the broker is alive, is not in here.
_OF_A_PARTITION: Final = (
    MessageId.PARTITION_REQUEST,
    MessageId.ADD_CREDIT,
    MessageId.RESUME_CONSUMPTION,
    MessageId.ACK_ALL_USER_RECORDS_PROCESSED,
    MessageId.NEW_BUFFER_SIZE,
    MessageId.TASK_EVENT_REQUEST,
    MessageId.CANCEL_PARTITION_REQUEST,
    MessageId.BUFFER_RESPONSE,
    WriterId.OPEN_PARTITION,
    WriterId.PUSH_BUFFER,
    WriterId.FINISH_PARTITION,
    WriterId.FAIL_PARTITION,
    WriterId.CLOSE_WRITER,
    WriterId.RELEASE_PARTITION,
)
_OTHERS: Final = (MessageId.CLOSE_REQUEST, WriterId.RELEASE_DATA_SET)
_APIS: Final = {int(each): each.name for each in (*_OF_A_PARTITION, *_OTHERS)}
CHANGES: Final[Mapping[str, Kind]] = {"partition_released": Kind(changes=True, thing="partition_id")}


def vocabulary() -> Vocabulary:
    """Clients get no errors on demand: see ``partition_released``."""
    of_a_partition = {each.name for each in _OF_A_PARTITION}
    return Vocabulary(
        kinds={
            "observe": Kind(passes=True),
            "delay": Kind(frozenset({"delay_ms"})),
            "reset": Kind(),
            **CHANGES,
        },
        apis=tuple(_APIS.values()),
        errors=(),
        names_of=lambda api: ("partition_id", "partition") if api in of_a_partition else (),
        plain=_with_plain_id,
    )


def _with_plain_id(fault: Fault) -> Fault:
    """A partition may be named as clients name it. Raises ConfigError."""
    if fault.partition_id is None:
        return fault
    try:
        return attrs.evolve(fault, partition_id=ResultPartitionID.from_words(fault.partition_id).hex())
    except ValueError as error:
        raise ConfigError(str(error)) from None


class Step(NamedTuple):
    """A message, by its number, and how it is handled. It does not refer to the received bytes."""

    message: int
    partition: ResultPartitionID | None
    work: Callable[[], None]


class Faulting:
    """The faults of all shuffle listeners."""

    def __init__(self, faults: Faults, partitions: Partitions, clock: Clock, timer: Timer) -> None:
        self.faults: Faults | None = None  # None: there is no fault
        self._all = faults
        self._partitions = partitions
        self._clock = clock
        self._timer = timer

    def open(self) -> None:
        self._all.attach(self._changed, dict.fromkeys(CHANGES, self.trigger))

    def close(self) -> None:
        self._all.detach(self._changed)

    def _changed(self, is_any: bool) -> None:
        self.faults = self._all if is_any else None

    def meet(self, connection: Connection, message: int, partition_id: ResultPartitionID | None) -> Fault | None:
        """The ``delay`` or ``reset`` that is to be carried out; other faults have happened."""
        api, faults = _APIS.get(message), self.faults
        if api is None or faults is None:
            return None
        entity = Entity()
        if partition_id is not None:
            entity = Entity(partition=partition_id.number, partition_id=partition_id.hex())
        now, principal = self._clock.time_ms(), str(connection.principal)
        taken = faults.take(Passing(now, api, None, principal, (entity,), "shuffle"))
        if taken is None or taken.fault.kind not in CHANGES:
            return None if taken is None else taken.fault
        released = taken.fault.partition_id or taken.entities[0].partition_id
        assert released is not None  # one of them has it
        self._partitions.release(ResultPartitionID.from_hex(released))
        return None

    def later(self, fault: Fault, work: Callable[[], None]) -> None:
        """Call ``work`` when the fault's delay is over, on the timer's thread."""
        self._timer.at(self._clock.monotonic() + (fault.delay_ms or 0) / 1000, work)

    def trigger(self, fault: Fault) -> None:
        """Release a partition. Raises BrokerError if there is no such one."""
        assert fault.partition_id is not None
        if not self._partitions.release(ResultPartitionID.from_hex(fault.partition_id)):
            raise BrokerError(f"There is no partition {fault.partition_id}.")
