"""Finds records of equal lengths, thousands at a time. Pure.

Where all values of a topic have the same size, so have its records, but for the bytes that larger offsets and times take. A batch
of thousands of such records consists of a few runs in which all records are equally long. In a run, the length that the first
record begins with is repeated at equal distances. One comparison finds all its repetitions, and proves that a record begins at
each of them and ends at the next.

Tests: tests/client/kafka/columns/test_even_records.py, tests/client/kafka/columns/test_columns.py.
"""

from collections.abc import Sequence

import numpy as np

from broker.client.kafka.columns.varints import I64, U8

# A run costs as much to find as 50 to 100 records cost otherwise.
_SHORTEST_BATCH = 256
_SHORTEST_RUN = 64
# So many records are compared with the first of a run at most. Without a bound, a batch of many short runs would take a time
# that grows with the square of its records.
_COMPARED = 4096

_LONGEST_VARINT = 5


def even_records(data: U8, sections: Sequence[tuple[int, int, int]]) -> tuple[I64, I64] | None:
    """For each record of the ``sections`` (start, end, records): the position after its length, and its end.

    None if the records do not tile the sections in long runs of equal lengths; that they do not tile them at all is for others
    to say.
    """
    bodies: list[I64] = []
    ends: list[I64] = []
    for section in sections:
        if section[2] < _SHORTEST_BATCH or not _append_runs(data, section, bodies, ends):
            return None
    return np.concatenate(bodies), np.concatenate(ends)


def _append_runs(data: U8, section: tuple[int, int, int], bodies: list[I64], ends: list[I64]) -> bool:
    pos, end, left = section
    runs = 0
    while left:
        body, size = _length_at(data, pos, end)
        step = body - pos + size
        most = min(left, (end - pos) // step, _COMPARED) if size > 0 else 0
        if not most:
            return False
        # A row for each record, if all of them are as long as the first.
        rows = data[pos : pos + most * step].reshape(most, step)
        same = rows[:, 0] == rows[0, 0]
        for column in range(1, body - pos):
            same &= rows[:, column] == rows[0, column]
        count = most if same.all() else int(same.argmin())
        after = np.arange(pos + step, pos + (count + 1) * step, step)
        ends.append(after)
        bodies.append(after - size)
        pos += count * step
        left -= count
        runs += 1
        if section[2] - left < runs * _SHORTEST_RUN:
            return False
    return pos == end


def _length_at(data: U8, pos: int, end: int) -> tuple[int, int]:
    """The position after the varint at ``pos``, and its value; 0 if there is no varint."""
    raw = 0
    for index, byte in enumerate(data[pos : min(pos + _LONGEST_VARINT, end)].tolist()):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return pos + index + 1, raw >> 1 ^ -(raw & 1)
    return pos, 0
