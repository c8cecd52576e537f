"""Answers to Metadata requests, kept until a topic changes, because clients of one kind send the same request again and again.

Shared by processors and handlers; each method is one step on a dict and one under a lock, so that a processor may call it.
"""

from broker.runtime.threads import Lock
from protocol.wire import BytesLike

# (API version, address that the client is told, the body of the request, the topics that the client must not see)
Key = tuple[int, tuple[str, int], bytes, frozenset[str]]

# Enough for the kinds of clients that are connected at a time.
ENTRIES_MAX = 64
# The size of all keys and answers. An answer about 10,000 partitions has some 400 kB.
BYTES_MAX = 16 * 1024 * 1024
# Of a set, for each of its elements, besides the characters.
_ELEMENT_BYTES = 120


class MetadataCache:
    def __init__(self) -> None:
        self._answers: dict[Key, tuple[int, BytesLike]] = {}
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key, generation: int) -> BytesLike | None:
        """The answer, if it was made when the topics were of this generation."""
        kept = self._answers.get(key)
        return kept[1] if kept is not None and kept[0] == generation else None

    def put(self, key: Key, generation: int, frame: BytesLike) -> None:
        """Keep an answer, unless it is so large that it would leave no room for others."""
        size = _size(key) + len(frame)
        if size > BYTES_MAX // 4:
            return
        with self._lock:
            replaced = self._answers.pop(key, None)
            if replaced is not None:
                self.size_bytes -= _size(key) + len(replaced[1])
            if len(self._answers) >= ENTRIES_MAX or self.size_bytes + size > BYTES_MAX:
                self._answers.clear()
                self.size_bytes = 0
            self._answers[key] = (generation, frame)
            self.size_bytes += size


def _size(key: Key) -> int:
    hidden = key[3]
    return len(key[2]) + (sum(map(len, hidden)) + _ELEMENT_BYTES * len(hidden) if hidden else 0)
