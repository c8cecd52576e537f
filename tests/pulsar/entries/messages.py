"""Messages as Pulsar's producers send them, and the entries that they become, for tests."""

from collections.abc import Sequence
from typing import Any

from broker.pulsar import entry
from broker.pulsar.entry import Entry
from broker.storage.log.log import Log
from protocol.kafka.records.batch import read_header
from protocol.kafka.records.entry import build_entry
from protocol.pulsar.payload import compress
from protocol.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from protocol.pulsar.sends import write_stored_part
from tests.storage.helpers import NOW_MS


def message(payload: bytes, **fields: Any) -> bytes:
    """The stored part of a message. ``fields`` are those of its metadata."""
    metadata = MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": NOW_MS, **fields})
    return write_stored_part(metadata.SerializeToString(), payload)


def batch_of(*payloads: bytes, keys: Sequence[str | None] = (), **fields: Any) -> bytes:
    """The stored part of a batch of messages."""
    return message(_batched(payloads, keys), num_messages_in_batch=len(payloads), **fields)


def compressed_batch_of(codec: Any, *payloads: bytes, **fields: Any) -> bytes:
    body = _batched(payloads, ())
    return message(
        compress(codec, body),
        num_messages_in_batch=len(payloads),
        compression=codec,
        uncompressed_size=len(body),
        **fields,
    )


def _batched(payloads: Sequence[bytes], keys: Sequence[str | None]) -> bytes:
    body = b""
    for number, payload in enumerate(payloads):
        metadata = SingleMessageMetadata(payload_size=len(payload), sequence_id=number)
        if keys and (key := keys[number]) is not None:
            metadata.partition_key = key
        single = metadata.SerializeToString()
        body += len(single).to_bytes(4, "big") + single + payload
    return body


def append_entry(log: Log, stored: bytes, messages: int = 1, timestamp: int = NOW_MS) -> Entry:
    """Append, as the path of the producers does; the entry shares the bytes that were written."""
    view = memoryview(build_entry(stored, messages, timestamp))
    log.append(view, now_ms=NOW_MS, entries=True)
    return entry.from_batch(view, read_header(view))
