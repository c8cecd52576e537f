"""One entry as the answer to a peek: the payload as the body, and what its metadata says as headers.

Tests: tests/pulsar/admin/test_subscriptions.py.
"""

import struct
from datetime import UTC, datetime
from typing import Final

from broker.network.routes import UNPROCESSABLE, Answer, HttpError
from broker.pulsar.entry import Entry
from broker.pulsar.topics.topic import Topic
from broker.runtime.disk import FileRegion
from protocol.errors import ProtocolError
from protocol.pulsar.metadata import is_encrypted, read_stored_metadata
from protocol.pulsar.payload import decompressed, is_readable
from protocol.pulsar.pulsar_pb2 import CompressionType
from protocol.wire import BytesLike

_MAGIC = b"\x0e\x01"
_SIZE = struct.Struct(">I")
# Properties of a message that become headers, and characters of each.
_PROPERTIES_MAX = 50
_VALUE_MAX = 512
# The last millisecond of the year 9999: clients choose the times.
_TIME_MAX_MS: Final = 253_402_300_799_999


def peeked(topic: Topic, entry: Entry) -> Answer:
    """Decompressed, unless it is encrypted or a part of a larger message. Reads the disk where the entry is not in memory. Raises
    HttpError."""
    data = entry.data
    content = data.file.pread(data.size, data.offset) if isinstance(data, FileRegion) else bytes(data)
    start = 6 if content[:2] == _MAGIC else 0  # the magic number and the checksum
    (size,) = _SIZE.unpack_from(content, start)
    metadata = read_stored_metadata(content[start + 4 : start + 4 + size])
    payload: BytesLike = content[start + 4 + size :]
    if is_readable(metadata):
        try:
            payload = decompressed(metadata, payload)
        except ProtocolError as error:
            raise HttpError(UNPROCESSABLE, f"The message cannot be decompressed: {error}") from None
    headers = [
        ("Message-ID", f"{topic.ledger}:{entry.offset}"),
        *((f"PROPERTY-{pair.key}", pair.value) for pair in metadata.properties[:_PROPERTIES_MAX]),
        ("Is-Encrypted", "true" if is_encrypted(metadata) else "false"),
        ("producer-name", metadata.producer_name),
        ("sequence-id", str(metadata.sequence_id)),
        ("compression", CompressionType.Name(metadata.compression)),
        ("uncompressed-size", str(metadata.uncompressed_size)),
    ]
    for name, time_ms in (
        ("publish-time", metadata.publish_time),
        ("event-time", metadata.event_time),
        ("deliver-at-time", metadata.deliver_at_time),
    ):
        if 0 < time_ms <= _TIME_MAX_MS:
            headers.append((name, _date(time_ms)))
    if metadata.HasField("num_messages_in_batch"):
        headers += [
            ("num-batch-message", str(metadata.num_messages_in_batch)),
            ("batch-size", str(len(payload))),
        ]
    if metadata.HasField("partition_key"):
        headers.append(("partition-key", metadata.partition_key))
    if metadata.partition_key_b64_encoded:
        headers.append(("partition-key-b64-encoded", "true"))
    if metadata.null_value:
        headers.append(("null-value", "true"))
    # Java's client finds the properties only in this case.
    legal = tuple((_name(f"X-Pulsar-{name}"), _value(value)) for name, value in headers)
    return Answer(200, bytes(payload), "application/octet-stream", legal)


def _date(time_ms: int) -> str:
    """As Java's client reads it."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _name(text: str) -> str:
    """What a header may be called: clients choose the names of properties."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in text)[
        :200
    ]


def _value(text: str) -> str:
    return "".join(letter if " " < letter < "\x7f" else "?" for letter in text[:_VALUE_MAX])
