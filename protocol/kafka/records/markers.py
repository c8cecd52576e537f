"""Control batches: the markers with which a coordinator ends a transaction in a partition.

Kafka's format: a batch with the control bit and one record, whose key is (version 0, type: 0 abort, 1 commit) and whose
value is (version 0, epoch of the coordinator). Clients skip the record and learn from its type how the transaction ended.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, TRANSACTIONAL
from protocol.kafka.records.records import build_batch, records
from protocol.wire import BytesLike

ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """A whole control batch. The log assigns its offset."""
    key = _KEY.pack(0, COMMIT if commit else ABORT)
    return build_batch(
        [(key, _VALUE.pack(0, coordinator_epoch), [], timestamp_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def parse_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """The marker in a control record, or None for a control record of another kind, which is not about transactions.

    Raises ProtocolError for a record that Kafka would not write.
    """
    if key is None or len(key) < _KEY.size:
        raise ProtocolError("a control record without a type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise ProtocolError(f"a control record of version {version}")
    if kind not in (ABORT, COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise ProtocolError("the end of a transaction without the coordinator's epoch")
    return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1])


def read_marker(batch: BytesLike) -> Marker | None:
    """The marker in a control batch. Raises ProtocolError."""
    for record in records(batch):
        return parse_marker(record.key, record.value)
    return None
