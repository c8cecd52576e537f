"""The three layouts of Flink's shuffle protocol. The protocol has no version field, so a port speaks one of them.

A generation reaches from the release that it is named after up to the next generation, and knows what the newest of its releases
knows. Layouts before 1.16, which had shorter partition ids, are not served.
"""

from __future__ import annotations

from enum import Enum


class Generation(Enum):
    """``Generation("1.20")`` is the generation of that Flink release, from 1.16 to 2.3; ValueError for others."""

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


# First release, last release, and the generation that they speak. 2.3 is the newest release that was checked; later ones may
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
