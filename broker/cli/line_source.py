"""Cuts standard input, or a file, into lines: as many at a time as are there, at most about a megabyte.

Tests: tests/cli/test_produce_consume.py.
"""

from collections.abc import Iterator

from broker.errors import BrokerError
from broker.runtime.text_input import TextInput

# The bytes of one chunk: with what a batch adds to each line, one to a few batches.
_CHUNK_BYTES = 512 * 1024
# Lines that arrive within this time after others travel with them.
_LINGER_S = 0.005
# The longest line: the largest record that a broker can be told to take is not much longer.
_LINE_BYTES_MAX = 100 * 1024 * 1024


class LineSource:
    """``for lines in source.chunks()``. An empty chunk means that no more lines are there now: the next step waits for some.

    Lines are without their line breaks; the last one needs none.
    """

    def __init__(self, descriptor: int) -> None:
        self._input = TextInput(descriptor)
        self.bytes_read = 0

    def chunks(self) -> Iterator[list[bytes]]:
        parts: list[bytes] = []
        size = 0
        idle = False
        while True:
            piece = self._read(None if idle else _LINGER_S)
            if piece is None:
                lines, rest = _cut(parts)
                if lines:
                    yield lines
                yield []
                parts, size, idle = [rest] if rest else [], len(rest), True
            elif not piece:
                lines, rest = _cut(parts)
                if rest:
                    lines.append(rest)
                if lines:
                    yield lines
                return
            else:
                idle = False
                parts.append(piece)
                size += len(piece)
                if size >= _CHUNK_BYTES:
                    if size > _LINE_BYTES_MAX:
                        raise BrokerError(
                            f"A line has more than {_LINE_BYTES_MAX} bytes, which is more than a record can have."
                        )
                    # Joined only where a line ends, so that a very long line is not copied for every piece of it.
                    if b"\n" in piece:
                        lines, rest = _cut(parts)
                        yield lines
                        parts, size = [rest] if rest else [], len(rest)

    def _read(self, wait_s: float | None) -> bytes | None:
        try:
            piece = self._input.read(_CHUNK_BYTES, wait_s)
        except OSError as error:
            raise BrokerError(f"The input cannot be read any more: {error.strerror}.") from error
        self.bytes_read += len(piece or b"")
        return piece


def _cut(parts: list[bytes]) -> tuple[list[bytes], bytes]:
    lines = b"".join(parts).split(b"\n")
    rest = lines.pop()
    return lines, rest
