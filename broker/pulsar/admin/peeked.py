"""One entry as the answer to a peek: the payload as the body, and what its metadata says as headers.

Tests: tests/pulsar/admin/test_subscriptions.py.
"""

import struct

from broker.network.routes import Answer
from broker.pulsar.entry import Entry
from broker.pulsar.topics.topic import Topic
from broker.runtime.disk import FileRegion
from protocol.pulsar.metadata import read_stored_metadata

_MAGIC = b"\x0e\x01"
_SIZE = struct.Struct(">I")
# Properties of a message that become headers, and characters of each.
_PROPERTIES_MAX = 50
_VALUE_MAX = 512


def peeked(topic: Topic, entry: Entry) -> Answer:
    """Reads the disk where the entry is not in memory."""
    data = entry.data
    content = data.file.pread(data.size, data.offset) if isinstance(data, FileRegion) else bytes(data)
    start = 6 if content[:2] == _MAGIC else 0  # the magic number and the checksum
    (size,) = _SIZE.unpack_from(content, start)
    metadata = read_stored_metadata(content[start + 4 : start + 4 + size])
    payload = content[start + 4 + size :]
    headers = [
        ("x-pulsar-message-id", f"{topic.ledger}:{entry.offset}"),
        ("x-pulsar-publish-time", str(metadata.publish_time)),
        ("x-pulsar-producer-name", metadata.producer_name),
        ("x-pulsar-sequence-id", str(metadata.sequence_id)),
    ]
    if metadata.HasField("num_messages_in_batch"):
        headers += [
            ("x-pulsar-num-batch-message", str(metadata.num_messages_in_batch)),
            ("x-pulsar-batch-size", str(len(payload))),
        ]
    if metadata.HasField("partition_key"):
        headers.append(("x-pulsar-partition-key", metadata.partition_key))
    for pair in metadata.properties[:_PROPERTIES_MAX]:
        headers.append((f"x-pulsar-property-{pair.key}", pair.value))
    legal = tuple((_name(name), _value(value)) for name, value in headers)
    return Answer(200, payload, "application/octet-stream", legal)


def _name(text: str) -> str:
    """What a header may be called: clients choose the names of properties."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in text)[
        :200
    ]


def _value(text: str) -> str:
    return "".join(letter if " " < letter < "\x7f" else "?" for letter in text[:_VALUE_MAX])
