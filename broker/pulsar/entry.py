"""An entry: what one SEND has stored, with one message or a batch of them, as it goes to consumers.

Entries are made once, where they are appended or read, and shared by all subscriptions; nobody changes them. Any thread.

Tests: tests/pulsar/dispatch/test_dispatcher.py.
"""

from typing import NamedTuple

import attrs

from broker.runtime.disk import Buffer, FileRegion
from protocol.pulsar.metadata import read_stored_metadata, sticky_key
from protocol.pulsar.murmur3 import key_hash
from protocol.pulsar.sends import read_stored_part


class Chunk(NamedTuple):
    """The place of an entry in a message that its producer has cut into several."""

    uuid: bytes
    number: int  # from 0
    total: int


@attrs.define(eq=False)  # not frozen: that costs 0.4 us for each message
class Entry:
    """It covers the log's offsets from ``offset`` to ``offset + messages - 1``; ``offset`` is its entry id."""

    offset: int
    messages: int
    size: int  # bytes of ``data``
    data: Buffer | FileRegion  # what a MESSAGE carries after its command: from the magic number 0x0e01 to the payload
    # The key that orders, its hash, or None: it is found in ``data``. In Python that takes microseconds, and only Key_Shared
    # asks for it.
    _sticky: bytes | int | None = attrs.field(default=0, alias="sticky_hash")
    deliver_at_ms: int = 0  # 0: at once
    chunk: Chunk | None = None
    marker: bool = False  # of the server, not for consumers
    batched: bool = False  # a batch, if only of one message: the ids of its messages then have an index

    @property
    def sticky_hash(self) -> int:
        """Murmur3 of the key that orders, & 0x7fffffff."""
        sticky = self._sticky
        if isinstance(sticky, int):
            return sticky
        if sticky is None:
            assert not isinstance(self.data, FileRegion)
            stored = read_stored_part(self.data)
            sticky = sticky_key(read_stored_metadata(self.data[stored.metadata : stored.payload]))
        self._sticky = hashed = key_hash(sticky)  # whoever else does so sets the same
        return hashed

    @property
    def last(self) -> int:
        """The last offset."""
        return self.offset + self.messages - 1
