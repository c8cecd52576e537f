"""Which messages of a topic are the latest of their keys, and what is left of each entry. Pure.

Phase one notes every entry, phase two asks for what is left of it. As in Pulsar:

- A message without a payload deletes its key, and is left out as well.
- A message without a key is left out (topicCompactionRetainNullKey=false).
- Of a batch, the messages that are left out become empty ones that are marked ``compacted_out``, so that the others keep their
  indexes. A batch of which nothing is left goes as a whole, and one of which all is left stays as it is.
- What cannot be looked into stays as it is: encrypted batches, chunks of larger messages, and what cannot be read.

A key takes some 150 bytes. There are at most ``keys_max``; beyond that the topic is not compacted.
"""

import struct
from hashlib import blake2b
from typing import Final

from broker.errors import Refusal
from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.pulsar.metadata import is_batch, is_chunk, is_encrypted, message_key, read_stored_metadata
from protocol.pulsar.payload import build_batch, compress, decompressed, split_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from protocol.pulsar.sends import MAGIC_CRC32C, read_stored_part

KEYS_MAX: Final = 2_000_000
_SHORT: Final = 16
_HEAD: Final = struct.Struct(">HI")
_SIZE: Final = struct.Struct(">I")
_COMPACTED_OUT: Final = SingleMessageMetadata(payload_size=0, compacted_out=True)


class TooManyKeys(Refusal):
    """The topic has more keys than compaction remembers."""


class Latest:
    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._latest: dict[bytes, tuple[int, int]] = {}  # key -> offset of the entry, index in its batch

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._latest)

    def note(self, offset: int, data: memoryview) -> None:
        """Phase one. ``data``: the stored part of a message. Raises TooManyKeys."""
        try:
            metadata, payload = _opened(data)
            if not is_batch(metadata):
                if not is_chunk(metadata):
                    # What is compressed is never empty.
                    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
                    self._note(message_key(metadata), offset, 0, not size or metadata.null_value)
            elif not is_encrypted(metadata):
                batch = decompressed(metadata, payload)
                for index, one in enumerate(split_batch(batch, metadata.num_messages_in_batch)):
                    if not one.metadata.compacted_out:
                        empty = not one.metadata.payload_size or one.metadata.null_value
                        self._note(message_key(one.metadata), offset, index, empty)
        except ProtocolError:
            return  # it stays as it is

    def left(self, offset: int, data: memoryview) -> memoryview | bytes | None:
        """Phase two: the stored part of what is left of the entry; None: nothing."""
        try:
            metadata, payload = _opened(data)
            if not is_batch(metadata):
                if is_chunk(metadata) or self._is_latest(message_key(metadata), offset, 0):
                    return data
                return None
            if is_encrypted(metadata):
                return data
            return self._left_of_batch(offset, data, metadata, payload)
        except ProtocolError:
            return data

    def _note(self, key: bytes | None, offset: int, index: int, empty: bool) -> None:
        if key is None:
            return
        key = _remembered(key)
        if empty:
            self._latest.pop(key, None)
            return
        if len(self._latest) >= self._keys_max and key not in self._latest:
            raise TooManyKeys(f"The topic has more than {self._keys_max} keys.")
        self._latest[key] = (offset, index)

    def _is_latest(self, key: bytes | None, offset: int, index: int) -> bool:
        return key is not None and self._latest.get(_remembered(key)) == (offset, index)

    def _left_of_batch(
        self, offset: int, data: memoryview, metadata: MessageMetadata, payload: memoryview
    ) -> memoryview | bytes | None:
        batch = decompressed(metadata, payload)
        messages: list[tuple[bytes, bytes | memoryview]] = []
        left = gone = 0
        for index, one in enumerate(split_batch(batch, metadata.num_messages_in_batch)):
            if self._is_latest(message_key(one.metadata), offset, index):
                messages.append((one.metadata.SerializeToString(), one.payload))
                left += 1
            else:
                messages.append((_COMPACTED_OUT.SerializeToString(), b""))
                gone += not one.metadata.compacted_out
        if not left:
            return None
        if not gone:
            return data
        body = build_batch(messages)
        metadata.uncompressed_size = len(body)
        return _stored_part(metadata, compress(metadata.compression, body))


def _opened(data: memoryview) -> tuple[MessageMetadata, memoryview]:
    stored = read_stored_part(data)
    return read_stored_metadata(data[stored.metadata : stored.payload]), data[stored.payload : stored.end]


def _stored_part(metadata: MessageMetadata, payload: bytes) -> bytes:
    head = metadata.SerializeToString()
    body = b"".join((_SIZE.pack(len(head)), head, payload))
    return _HEAD.pack(MAGIC_CRC32C, crc32c(body)) + body


def _remembered(key: bytes) -> bytes:
    return key if len(key) < _SHORT else blake2b(key, digest_size=_SHORT).digest()
