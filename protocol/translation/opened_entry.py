"""An entry as the log has it, for whoever needs its messages as Kafka's records: how large it is inside, and whether it may be
taken apart.

Pure. Decompressing is left to ``records``, which may take as long as ``to_kafka`` says.

Tests: tests/storage/log/test_entry_records.py.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader, read_header, set_log_append_time
from protocol.kafka.records.entry import entry_value
from protocol.kafka.records.records import records
from protocol.pulsar.compression import CODEC_NAMES
from protocol.pulsar.metadata import read_stored_metadata
from protocol.pulsar.parsing import as_bytes
from protocol.pulsar.payload import is_readable
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import read_stored_part
from protocol.translation.to_kafka import to_kafka

# The header of a record that stands for an entry that should have been readable and is not.
_UNREADABLE = "pulsar.unreadable"


class Described(NamedTuple):
    producer_name: bytes
    sequence_id: int
    compression: str


class OpenedEntry(NamedTuple):
    """``inner_size`` is what the payload claims to be when it is decompressed, in bytes. ``readable`` is False for a payload that
    is encrypted, and for a part of a message that was cut into chunks."""

    header: BatchHeader
    value: memoryview
    inner_size: int
    readable: bool

    @property
    def messages(self) -> int:
        return self.header.last_offset_delta + 1

    def described(self) -> Described:
        """What tells people which entry it is."""
        metadata = _metadata(self.value)
        codec = CODEC_NAMES.get(metadata.compression, f"codec {metadata.compression}")
        return Described(as_bytes(metadata.producer_name), metadata.sequence_id, codec)

    def records(self) -> memoryview:
        """The batch of records that has the offsets of the entry, and its time where the broker has set that."""
        header = self.header
        batch = to_kafka(self.value, header.base_offset, self.messages, leader_epoch=header.partition_leader_epoch)
        if header.is_log_append_time:
            set_log_append_time(batch, 0, read_header(batch), header.max_timestamp)
        return memoryview(batch)


def open_entry(batch: memoryview, header: BatchHeader) -> OpenedEntry | None:
    """The entry in a whole batch; None for a batch that is none, even if it has the mark."""
    try:
        position, size = entry_value(batch, 0, header)
        value = batch[position : position + size]
        metadata = _metadata(value)
    except ProtocolError:
        return None
    return OpenedEntry(header, value, max(size, metadata.uncompressed_size), is_readable(metadata))


def _metadata(value: memoryview) -> MessageMetadata:
    stored = read_stored_part(value)
    return read_stored_metadata(value[stored.metadata : stored.payload])


def stands_for_unreadable(batch: memoryview) -> bool:
    """Whether these records, made of a readable entry, hold its payload as it is, because it could not be read after all."""
    if read_header(batch).record_count != 1:
        return False
    (record,) = records(batch)
    return any(name == _UNREADABLE for name, _ in record.headers)
