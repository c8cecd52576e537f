"""Cuts standard input, or a file, into lines: as many at a time as are there, at most about a megabyte."""

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

    Lines are without their line breaks; the last one needs none. An exception of a signal handler ends the iteration; then
    ``whole_lines`` has what was read before it.
    """

    def __init__(self, descriptor: int) -> None:
        self._input = TextInput(descriptor)
        self._parts: list[bytes] = []
        self._size = 0

    def chunks(self) -> Iterator[list[bytes]]:
        idle = False
        while True:
            piece = self._read(None if idle else _LINGER_S)
            idle = piece is None
            if piece is None:
                lines = self.whole_lines()
                if lines:
                    yield lines
                yield []
            elif not piece:
                lines = self.whole_lines() + self._parts
                if lines:
                    yield lines
                return
            else:
                self._parts.append(piece)
                self._size += len(piece)
                if self._size > _LINE_BYTES_MAX:
                    raise BrokerError(f"A line has more than {_LINE_BYTES_MAX} bytes, more than a record can have.")
                # Joined only where a line ends, so that a very long line is not copied for every piece of it.
                if self._size >= _CHUNK_BYTES and b"\n" in piece:
                    yield self.whole_lines()

    def whole_lines(self) -> list[bytes]:
        """Take the lines that were read and not given yet. Half a line at the end stays."""
        lines = b"".join(self._parts).split(b"\n")
        rest = lines.pop()
        self._parts, self._size = [rest] if rest else [], len(rest)
        return lines

    def _read(self, wait_s: float | None) -> bytes | None:
        try:
            return self._input.read(_CHUNK_BYTES, wait_s)
        except OSError as error:
            raise BrokerError(f"The input cannot be read any more: {error.strerror}.") from error
