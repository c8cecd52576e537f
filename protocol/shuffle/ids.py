"""The ids of the shuffle protocol, and Flink's three layouts of it.

A receiver's id (Flink's InputChannelID) is 16 plain bytes. A ``ResultPartitionID`` is its 60 bytes on the wire with names for
their parts, so creating, hashing and comparing it costs as much as for bytes, and it equals those bytes:

    0   16  data set (IntermediateDataSetID)            36  16  job vertex (JobVertexID)
    16   4  partition number                            52   4  subtask index, >= 0
    20  16  execution graph (ExecutionGraphID)          56   4  attempt number, >= 0

A ``Generation`` is a layout of the protocol. The protocol has no version field, so a port speaks one of them. A generation
extends from the release that it is named after to the next generation, and has the features of its newest release. Layouts before
1.16, which had shorter partition ids, are not served.
"""

from __future__ import annotations

import hashlib
import re
import struct
from enum import Enum
from typing import NamedTuple

from protocol.wire import BytesLike

DATA_SET_BYTES = 16
PARTITION_ID_BYTES = 60

_PARTS = struct.Struct(">16si16s16sii")
_I32 = struct.Struct(">i")
_TEXT = re.compile(r"([0-9a-f]{32})#(-?\d{1,10})@([0-9a-f]{32})_([0-9a-f]{32})_(\d{1,10})_(\d{1,10})", re.IGNORECASE)
# Ids are long strings of hex digits, alone or with # and @ between them. Text that looks like part of an id is not a
# name, so that an id with a missing digit does not silently become another partition.
_NAME = re.compile(r"(?![0-9A-Fa-f]{24,}\Z)[A-Za-z0-9._/-]{1,200}", re.ASCII)


class ResultPartitionID(bytes):
    """An attempt of a producer at a partition. ``hex()`` is the short text for people, ``str()`` is Flink's form."""

    __slots__ = ()

    def __new__(cls, data: BytesLike) -> ResultPartitionID:
        """From 60 bytes. Raises ValueError for another length, and for a subtask index or an attempt number below 0."""
        self = super().__new__(cls, data)
        if len(self) != PARTITION_ID_BYTES:
            raise ValueError(f"a partition id of {len(self)} bytes: {PARTITION_ID_BYTES} are needed")
        if self[52] > 127 or self[56] > 127:
            raise ValueError("a partition id with a subtask index or an attempt number below 0")
        return self

    @classmethod
    def of(
        cls,
        data_set: bytes,
        number: int = 0,
        graph: bytes = bytes(16),
        vertex: bytes = bytes(16),
        subtask: int = 0,
        attempt: int = 0,
    ) -> ResultPartitionID:
        """From its parts; ids have 16 bytes each. Raises ValueError if an id has another length or a number is out of range."""
        if not len(data_set) == len(graph) == len(vertex) == 16:
            raise ValueError("a data set, graph and vertex have ids of 16 bytes")
        try:
            return cls(_PARTS.pack(data_set, number, graph, vertex, subtask, attempt))
        except struct.error as error:
            raise ValueError(f"a number of a partition id is out of range: {error}") from None

    @classmethod
    def from_hex(cls, text: str) -> ResultPartitionID:
        """From the 120 digits of ``hex()``. Raises ValueError."""
        digits = text.strip()
        if len(digits) != 2 * PARTITION_ID_BYTES:
            raise ValueError(f"a partition id is {2 * PARTITION_ID_BYTES} hex digits, not {len(digits)}")
        return cls(bytes.fromhex(digits))

    @classmethod
    def from_text(cls, text: str) -> ResultPartitionID:
        """From 120 hex digits or Flink's ``<data set>#<n>@<graph>_<vertex>_<subtask>_<attempt>``. Raises ValueError."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            return cls.from_hex(text)
        data_set, number, graph, vertex, subtask, attempt = match.groups()
        as_bytes = bytes.fromhex
        return cls.of(as_bytes(data_set), int(number), as_bytes(graph), as_bytes(vertex), int(subtask), int(attempt))

    @classmethod
    def of_name(cls, name: str) -> ResultPartitionID:
        """The partition of a plain name, always and everywhere the same: number 0, subtask 0 and attempt 0 of a data set and a
        graph with the halves of the name's SHA-256 as ids."""
        digest = hashlib.sha256(name.encode()).digest()
        return cls.of(digest[:16], graph=digest[16:])

    @classmethod
    def from_words(cls, text: str) -> ResultPartitionID:
        """From what a user writes: a name, or what ``from_text`` reads. Raises ValueError."""
        name = text.strip()
        if _NAME.fullmatch(name):
            return cls.of_name(name)
        try:
            return cls.from_text(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no partition: write a name of letters, digits and ._-/ (not of hex digits alone), the 120 hex "
                "digits of an id, or Flink's <data set>#<n>@<graph>_<vertex>_<subtask>_<attempt>"
            ) from None

    @property
    def data_set(self) -> bytes:
        return self[:16]

    @property
    def number(self) -> int:
        """The partition's number in its data set. It may be below 0, because Flink does not check it."""
        return self._number(16)

    @property
    def graph(self) -> bytes:
        return self[20:36]

    @property
    def vertex(self) -> bytes:
        return self[36:52]

    @property
    def subtask(self) -> int:
        return self._number(52)

    @property
    def attempt(self) -> int:
        return self._number(56)

    @property
    def producer_key(self) -> bytes:
        """The id without its attempt number: the same for all attempts of a producer at this partition."""
        return self[:56]

    def with_attempt(self, attempt: int) -> ResultPartitionID:
        return ResultPartitionID(self[:56] + _I32.pack(attempt))

    @property
    def producer_text(self) -> str:
        """The ExecutionAttemptID as Flink prints it."""
        return f"{self.graph.hex()}_{self.vertex.hex()}_{self.subtask}_{self.attempt}"

    def _number(self, pos: int) -> int:
        number: int = _I32.unpack_from(self, pos)[0]
        return number

    def __str__(self) -> str:
        return f"{self.data_set.hex()}#{self.number}@{self.producer_text}"

    def __repr__(self) -> str:
        return f"ResultPartitionID({str(self)!r})"


class IndexSet(NamedTuple):
    """Subpartitions ``start`` to ``end``, both included (Flink's ResultSubpartitionIndexSet)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start + 1

    @property
    def indices(self) -> range:
        return range(self.start, self.end + 1)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"


class Generation(Enum):
    """``Generation("1.20")`` is the generation of that Flink release, from 1.16 to 2.3; ValueError for other releases."""

    V1_16 = "1.16"
    V1_19 = "1.19"
    V2_0 = "2.0"

    buffer_header_bytes: int  # of a BufferResponse, after the frame header and without partial sizes
    partition_request_bytes: int  # the whole frame
    last_data_type: int  # the highest ordinal of Buffer.DataType
    last_message_id: int
    last_event_tag: int

    @classmethod
    def _missing_(cls, value: object) -> Generation | None:
        if not isinstance(value, str):  # 1.20 as a number is 1.2
            return None
        numbers = value.split(".")
        if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
            return None
        release = (int(numbers[0]), int(numbers[1]))
        for first, last, generation in _RELEASES:
            if first <= release <= last:
                return cls(generation)
        return None


# First release, last release, and their generation. 2.3 is the newest release that was checked; later releases may
# differ.
_RELEASES = (((1, 16), (1, 18), "1.16"), ((1, 19), (1, 20), "1.19"), ((2, 0), (2, 3), "2.0"))

for _generation, _facts in {
    Generation.V1_16: (30, 93, 7, 11, 9),
    Generation.V1_19: (34, 97, 11, 11, 10),
    Generation.V2_0: (38, 97, 13, 11, 12),
}.items():
    (
        _generation.buffer_header_bytes,
        _generation.partition_request_bytes,
        _generation.last_data_type,
        _generation.last_message_id,
        _generation.last_event_tag,
    ) = _facts
