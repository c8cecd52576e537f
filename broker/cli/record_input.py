"""The input of `produce`: `LineSource` cuts a file or standard input into lines, and a parser makes records of them.

A chunk has all lines that are available, at most about a megabyte. A parser takes lines and returns their records in
columns: whole lines, key and value with a separator between them, a template, or JSON. It raises ``BadLine`` for the
first bad line; the records before it can still be sent. Parsers are pure.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs

from broker.cli.record_format import Template, line_parser, parse_record
from broker.client.kafka.record_encoder import NO_HEADERS, Records, encode_headers
from broker.errors import BrokerError
from broker.runtime.terminal import TextInput

# The bytes of one chunk: with what a batch adds to each line, one to a few batches.
_CHUNK_BYTES = 512 * 1024
# Lines that arrive within this time after others travel with them.
_LINGER_S = 0.005
# The longest line: the largest record that a broker can be configured to accept is not much longer.
_LINE_BYTES_MAX = 100 * 1024 * 1024


class LineSource:
    """``for lines in source.chunks()``. An empty chunk means that no more lines are available now: the next step waits
    for some.

    Lines are without their line breaks, which the last line need not have. An exception of a signal handler ends the
    iteration; then ``whole_lines`` returns the lines that were read before it.
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
                # Joined only when a line ends, so that a very long line is not copied for every piece of it.
                if self._size >= _CHUNK_BYTES and b"\n" in piece:
                    yield self.whole_lines()

    def whole_lines(self) -> list[bytes]:
        """Take the lines that were read and not returned yet. An incomplete last line stays."""
        lines = b"".join(self._parts).split(b"\n")
        rest = lines.pop()
        self._parts, self._size = [rest] if rest else [], len(rest)
        return lines

    def _read(self, wait_s: float | None) -> bytes | None:
        try:
            return self._input.read(_CHUNK_BYTES, wait_s)
        except OSError as error:
            raise BrokerError(f"The input cannot be read any more: {error.strerror}.") from error


Header = tuple[bytes, bytes | None]


class BadLine(Exception):
    """``index``: the line's index among the parser's lines. ``why``: continues a sentence that begins with the line's
    number."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why


@attrs.frozen(eq=False)
class Parsed:
    """``partitions``: the partition that each record names, or None; None if no record names a partition."""

    records: Records
    partitions: Sequence[int | None] | None = None


Parser = Callable[[list[bytes], int], Parsed]


@attrs.frozen
class Common:
    """The options that apply to every record. ``tombstones``: an empty value is null."""

    key: bytes | None = None
    headers: Sequence[Header] = ()
    tombstones: bool = False

    def columns(self, values: list[bytes], keys: Sequence[bytes | None] | None) -> Records:
        nullable: Sequence[bytes | None] = values
        if self.tombstones:
            nullable = [value or None for value in values]
            for index, value in enumerate(nullable):
                if value is None and self.key is None and (keys is None or keys[index] is None):
                    raise BadLine(index, "is empty: with --tombstones a record needs a key")
        if keys is None and self.key is not None:
            keys = [self.key] * len(values)
        headers = [encode_headers(self.headers)] * len(values) if self.headers else None
        return Records(nullable, keys, headers)


def whole_lines(common: Common) -> Parser:
    return lambda lines, _now_ms: Parsed(common.columns(lines, None))


def keyed_lines(separator: bytes, common: Common) -> Parser:
    def parse(lines: list[bytes], _now_ms: int) -> Parsed:
        parts = [line.partition(separator) for line in lines]
        for index, (_, middle, _) in enumerate(parts):
            if not middle:
                raise BadLine(index, f"has no key: it does not contain {separator.decode(errors='backslashreplace')!r}")
        return Parsed(common.columns([value for _, _, value in parts], [key for key, _, _ in parts]))

    return parse


def formatted_lines(template: Template, common: Common) -> Parser:
    """Raises click.UsageError for a template that cannot be parsed."""
    parse_line = line_parser(template)
    places = {field: index for index, field in enumerate(template.fields)}

    def parse(lines: list[bytes], now_ms: int) -> Parsed:
        rows = []
        for index, line in enumerate(lines):
            row = parse_line(line)
            if row is None:
                raise BadLine(index, f"does not have the form {template.text!r}")
            rows.append(row)
        columns = {field: [row[place] for row in rows] for field, place in places.items()}
        records = common.columns(columns["v"], columns.get("k"))
        if "h" in columns:
            of_line = [_header_list(text, index) for index, text in enumerate(columns["h"])]
            headers = [encode_headers([*common.headers, *pairs]) for pairs in of_line]
            records = attrs.evolve(records, headers=headers)
        if "T" in columns:
            times = [_number(text, index, 63) if text[0] != 45 else now_ms for index, text in enumerate(columns["T"])]
            records = attrs.evolve(records, times=times)
        if "p" not in columns:
            return Parsed(records)
        return Parsed(records, [_number(text, index, 31) for index, text in enumerate(columns["p"])])

    return parse


def json_lines(common: Common) -> Parser:
    def parse(lines: list[bytes], now_ms: int) -> Parsed:
        parsed = []
        for index, line in enumerate(lines):
            try:
                parsed.append(parse_record(line))
            except ValueError as error:
                raise BadLine(index, f"cannot be read: {error}") from None
        headers = [
            encode_headers([*common.headers, *record.headers]) if record.headers or common.headers else NO_HEADERS
            for record in parsed
        ]
        records = Records(
            [record.value for record in parsed],
            [common.key if record.key is None else record.key for record in parsed],
            headers,
            [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in parsed],
        )
        return Parsed(records, [record.partition for record in parsed])

    return parse


def _header_list(text: bytes, index: int) -> list[Header]:
    headers: list[Header] = []
    for pair in text.split(b",") if text else ():
        name, equals, value = pair.partition(b"=")
        if not equals:
            raise BadLine(index, "has headers that are not written as name=value,name=value")
        headers.append((name, value))
    return headers


def _number(text: bytes, index: int, bits: int) -> int:
    number = int(text)
    if not 0 <= number < 1 << bits:
        raise BadLine(index, f"has the number {number} where it cannot be")
    return number
