"""BufferResponse, the message with the data, and the decoder of everything that a server sends.

A server encodes a header and sends the payload after it as a separate part, untouched. The client's decoder is as incremental as
Flink's: it uses a BufferResponse's ``size`` field, not the length of the frame.

A decoder may also return *rows*: the BufferResponse frames that a client received together, decoded together. As for rows of
pushes (``push_row.py``), consecutive frames of the same length are unpacked by one ``struct``, header and payload, which copies
each payload once. The frames of several receivers may alternate; each receiver has its own row. Only data buffers of generation
2.0 that are not partial, compressed or empty are in a row. Objects here belong to one thread at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.shuffle import messages, writer_frames
from protocol.shuffle.data_type import BUFFERS, DATA_TYPES, DataType
from protocol.shuffle.frame import FIRST_WRITER_ID, HEADER, HEADER_BYTES, MAGIC, frame_size, whole_frame
from protocol.shuffle.ids import Generation
from protocol.wire import BytesLike

# Length, magic, id; receiver, subpartition, number of partial buffers, sequence, backlog, type, compressed, size of the payload.
_HEADER = ">iIB16siiiiBBi"
_header = struct.Struct(_HEADER)
ROW_HEADER_BYTES = _header.size


class RowBuffer(NamedTuple):
    """A buffer of a row."""

    subpartition: int
    sequence: int
    data_type: DataType
    payload: bytes


class BufferRow:
    """Data buffers of a receiver with consecutive numbers from ``sequence`` on, in columns."""

    __slots__ = ("backlog", "data_types", "payloads", "receiver", "sequence", "subpartitions")

    def __init__(self, receiver: bytes, sequence: int) -> None:
        self.receiver = receiver
        self.sequence = sequence
        self.backlog = 0  # of the last buffer
        self.subpartitions: list[int] = []
        self.data_types: list[int] = []
        self.payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[RowBuffer]:
        columns = zip(self.subpartitions, self.data_types, self.payloads, strict=True)
        for sequence, (subpartition, data_type, payload) in enumerate(columns, self.sequence):
            yield RowBuffer(subpartition, sequence, DATA_TYPES[data_type], payload)


def take_rows(view: memoryview, max_payload: int) -> tuple[list[BufferRow], int]:
    """The rows of the whole frames at the beginning of ``view``, and the size of these frames. None and 0 unless it begins with
    two such frames.

    Whatever the frames are, each is examined at most twice.
    """
    end = len(view)
    length = _data_frame(view, 0, end, max_payload)
    if not length or not _data_frame(view, length, end, max_payload):
        return [], 0
    rows: dict[bytes, BufferRow] = {}
    pos = 0
    while length:
        # Following frames of other lengths are not unpacked in vain.
        alike = view[pos + length : pos + length + 4] == view[pos : pos + 4]
        most = (end - pos) // length if alike else 1
        added = _add(rows, view[pos : pos + most * length], length)
        if not added:
            break
        pos += added * length
        length = _data_frame(view, pos, end, max_payload)
    return list(rows.values()), pos


def _data_frame(view: memoryview, pos: int, end: int, max_payload: int) -> int:
    """The length of the whole BufferResponse frame with data at ``pos``. 0: there is none."""
    if end - pos <= ROW_HEADER_BYTES:
        return 0
    length: int
    length, magic, frame_id, _, _, partials, _, _, data_type, compressed, size = _header.unpack_from(view, pos)
    if magic != MAGIC or frame_id or partials or compressed or data_type not in BUFFERS or not 0 < size <= max_payload:
        return 0
    return length if length == ROW_HEADER_BYTES + size and length <= end - pos else 0


def _add(rows: dict[bytes, BufferRow], view: memoryview, length: int) -> int:
    """Adds the frames at the beginning of ``view`` that have this length and belong in a row; returns their number."""
    count = 0
    payload_size = length - ROW_HEADER_BYTES
    last: bytes | None = None
    row = BufferRow(b"", 0)
    frames = whole_frame(_HEADER, length).iter_unpack(view)
    for (
        total,
        magic,
        frame_id,
        receiver,
        index,
        partials,
        number,
        backlog,
        data_type,
        compressed,
        size,
        payload,
    ) in frames:
        if total != length or magic != MAGIC or frame_id or partials or size != payload_size:
            break
        if compressed or data_type not in BUFFERS or number < 0 or backlog < 0:
            break
        if receiver != last:
            last = receiver
            existing = rows.get(receiver)
            row = rows[receiver] = existing or BufferRow(receiver, number)
            payloads = row.payloads
        if number != row.sequence + len(payloads):
            break
        row.subpartitions.append(index)
        row.data_types.append(data_type)
        payloads.append(payload)
        row.backlog = backlog
        count += 1
    return count


# 32 KiB: Flink's memory segment. A larger payload breaks a Flink client's connection.
DEFAULT_BUFFER_SIZE = 32 * 1024
# From this size on, a copy costs more than a system call.
_DIRECT_BYTES = 64 * 1024
# At most this much is allocated for a payload of which no byte has come, whatever size its header states; more is allocated as
# its bytes come.
_BELIEVED_BYTES = 2 * 1024 * 1024


class BufferHeader(NamedTuple):
    """A BufferResponse without its payload.

    ``partial_sizes`` is empty for an ordinary buffer. Otherwise the payload is that many buffers, back to back, numbered
    from ``sequence`` on. ``subpartition`` is -1 if the sender did not send it (1.16 never does).
    """

    receiver: bytes
    subpartition: int
    partial_sizes: tuple[int, ...]
    sequence: int
    backlog: int
    data_type: DataType
    compressed: bool
    size: int

    @property
    def next_sequence(self) -> int:
        """The sequence number of the receiver's next frame."""
        return self.sequence + (len(self.partial_sizes) or 1)


class BufferResponse(NamedTuple):
    """A ``BufferHeader`` with its ``payload``."""

    receiver: bytes
    subpartition: int
    partial_sizes: tuple[int, ...]
    sequence: int
    backlog: int
    data_type: DataType
    compressed: bool
    size: int
    payload: bytes | bytearray

    @property
    def next_sequence(self) -> int:
        return self.sequence + (len(self.partial_sizes) or 1)

    def partials(self) -> list[BytesLike]:
        """The buffers in the payload; an ordinary payload is one buffer."""
        if not self.partial_sizes:
            return [self.payload]
        view = memoryview(self.payload)
        parts: list[BytesLike] = []
        pos = 0
        for size in self.partial_sizes:
            parts.append(view[pos : pos + size])
            pos += size
        return parts


# Whole headers; see docs/PROTOCOLS.md. Length, magic and id; receiver; (1.19) subpartition; (2.0) number of partial
# buffers; sequence, backlog, data type, compressed, size.
_HEADER_1_16 = struct.Struct(">iIB16siiB?i")
_HEADER_1_19 = struct.Struct(">iIB16siiiB?i")
_HEADER_2_0 = struct.Struct(">iIB16siiiiB?i")
# The same without the frame header.
_BODY_1_16 = struct.Struct(">16siiBBi")
_BODY_1_19 = struct.Struct(">16siiiBBi")
_BODY_2_0 = struct.Struct(">16siiiiBBi")
_I32 = struct.Struct(">i")
# The end of a header, after its length and the constant fields of a receiver's subpartition: sequence, backlog, data
# type, compressed, size.
_VARYING_BYTES = 14
_PACK_VARYING = {
    generation: struct.Struct(f">i{HEADER_BYTES + generation.buffer_header_bytes - 4 - _VARYING_BYTES}siiBBi").pack
    for generation in Generation
}

_pack_1_16, _pack_1_19, _pack_2_0 = _HEADER_1_16.pack, _HEADER_1_19.pack, _HEADER_2_0.pack
_V1_16, _V1_19, _V2_0 = Generation.V1_16, Generation.V1_19, Generation.V2_0
_new = tuple.__new__  # skips the generated __new__


def header(
    generation: Generation,
    receiver: bytes,
    subpartition: int,
    sequence: int,
    backlog: int,
    data_type: int,
    compressed: bool,
    size: int,
    partial_sizes: Sequence[int] = (),
) -> bytes:
    """Frame header and message header, to be sent immediately before ``size`` bytes of payload.

    Raises ValueError for partial sizes in a generation without them.
    """
    if partial_sizes:
        return _header_with_partials(
            generation, receiver, subpartition, sequence, backlog, data_type, compressed, size, partial_sizes
        )
    if generation is _V2_0:
        return _pack_2_0(47 + size, MAGIC, 0, receiver, subpartition, 0, sequence, backlog, data_type, compressed, size)
    if generation is _V1_19:
        return _pack_1_19(43 + size, MAGIC, 0, receiver, subpartition, sequence, backlog, data_type, compressed, size)
    return _pack_1_16(39 + size, MAGIC, 0, receiver, sequence, backlog, data_type, compressed, size)


class HeaderTemplate(NamedTuple):
    """The constant part of the headers of a receiver's buffers of one subpartition, for a sender of many.

    ``pack(fixed_bytes + size, fixed, sequence, backlog, data_type, compressed, size)`` is the ``header``.
    """

    pack: Callable[[int, bytes, int, int, int, int, int], bytes]
    fixed: bytes
    fixed_bytes: int  # length of a header


def header_template(generation: Generation, receiver: bytes, subpartition: int) -> HeaderTemplate:
    whole = header(generation, receiver, subpartition, 0, 0, 0, False, 0)
    return HeaderTemplate(_PACK_VARYING[generation], whole[4:-_VARYING_BYTES], len(whole))


def _header_with_partials(
    generation: Generation,
    receiver: bytes,
    subpartition: int,
    sequence: int,
    backlog: int,
    data_type: int,
    compressed: bool,
    size: int,
    partial_sizes: Sequence[int],
) -> bytes:
    count = len(partial_sizes)
    if generation is not _V2_0:
        raise ValueError(f"Flink {generation.value} has no partial buffers")
    # Flink's client skips partial sizes before an empty payload without reading them.
    if size == 0 or sum(partial_sizes) != size:
        raise ValueError(f"partial buffers of {sum(partial_sizes)} bytes in a payload of {size}")
    length = 47 + 4 * count + size
    return _pack_2_0(
        length, MAGIC, 0, receiver, subpartition, count, sequence, backlog, data_type, compressed, size
    ) + struct.pack(f">{count}i", *partial_sizes)


def parse_header(view: BytesLike, generation: Generation, pos: int = 0) -> BufferHeader:
    """The header of the frame that begins at ``pos``. The payload may be missing.

    The frame's length is ignored, as in Flink. Raises ProtocolError.
    """
    partial_sizes: tuple[int, ...] = ()
    try:
        if generation is _V2_0:
            receiver, subpartition, count, sequence, backlog, data_type, compressed, size = _BODY_2_0.unpack_from(
                view, pos + 9
            )
            if count:
                partial_sizes = _parse_partial_sizes(view, pos + 47, count, size)
        elif generation is _V1_19:
            receiver, subpartition, sequence, backlog, data_type, compressed, size = _BODY_1_19.unpack_from(
                view, pos + 9
            )
        else:
            receiver, sequence, backlog, data_type, compressed, size = _BODY_1_16.unpack_from(view, pos + 9)
            subpartition = -1
    except struct.error:
        raise ProtocolError("a buffer's header that ends too early") from None
    if data_type > generation.last_data_type:
        raise ProtocolError(f"a buffer of the unknown type {data_type}")
    if sequence < 0 or backlog < 0 or size < 0:
        raise ProtocolError(f"a buffer with the number {sequence}, a backlog of {backlog} and {size} bytes")
    member = DATA_TYPES[data_type]
    if size == 0 and member.is_event:
        raise ProtocolError("an event of no bytes")
    return _new(
        BufferHeader,
        (receiver, subpartition, partial_sizes, sequence, backlog, member, compressed != 0, size),
    )


def _parse_partial_sizes(view: BytesLike, pos: int, count: int, size: int) -> tuple[int, ...]:
    if count < 0 or 4 * count > len(view) - pos:
        raise ProtocolError(f"{count} partial buffers in a header of {len(view)} bytes")
    sizes: tuple[int, ...] = struct.unpack_from(f">{count}i", view, pos)
    if size == 0 or min(sizes) < 0 or sum(sizes) != size:
        raise ProtocolError(f"partial buffers that do not make up {size} bytes")
    return sizes


ServerMessage = BufferResponse | BufferRow | messages.Message | writer_frames.ServerFrame


class ClientDecoder:
    """Splits a server's stream into messages, however its bytes arrive. Belongs to one thread.

    Payloads are copied once, out of the bytes given to ``feed``; or not at all, if the rest of a large payload is received into
    ``space`` and reported by ``filled``. Only an unfinished message is kept: at most ``max_payload`` bytes of a buffer and
    ``max_frame`` of any other message, and, except for the first 2 MiB of a payload, at most twice the bytes that have come.
    After a ProtocolError the connection cannot be used any more. ``rows``: data buffers that come together are returned as
    rows, where ``take_rows`` can.
    """

    __slots__ = (
        "_filled",
        "_fixed",
        "_generation",
        "_head",
        "_header",
        "_max_frame",
        "_max_payload",
        "_payload",
        "_rows",
    )

    def __init__(
        self,
        generation: Generation,
        max_payload: int = DEFAULT_BUFFER_SIZE,
        max_frame: int = DEFAULT_MAX_FRAME,
        *,
        rows: bool = False,
    ) -> None:
        self._generation = generation
        self._rows = rows and generation is _V2_0
        self._fixed = HEADER_BYTES + generation.buffer_header_bytes
        self._max_payload = max_payload
        self._max_frame = max_frame
        self._head = bytearray()  # of an unfinished message, up to a buffer's payload
        self._header: BufferHeader | None = None  # of the buffer whose payload is being read
        self._payload = bytearray()
        self._filled = 0  # bytes of it that have come

    @property
    def pending(self) -> int:
        """Bytes kept of an unfinished message. If there are any at the end of the stream, the stream was truncated."""
        header = self._header
        return len(self._head) if header is None else self._fixed + 4 * len(header.partial_sizes) + self._filled

    @property
    def space(self) -> memoryview | None:
        """Memory for the rest of an unfinished payload, if that is large enough for its own system call."""
        if self._header is None or self._header.size - self._filled < _DIRECT_BYTES:
            return None
        self._make_room(1)
        return memoryview(self._payload)[self._filled :]

    def filled(self, size: int) -> list[ServerMessage]:
        """Takes ``size`` bytes that were received into ``space``, which must not be used again.

        Returns the message that they finish, if any.
        """
        out: list[ServerMessage] = []
        self._filled += size
        self._finish_payload(out)
        return out

    def feed(self, data: BytesLike) -> list[ServerMessage]:
        """The messages that ``data`` finishes, in order. Raises ProtocolError."""
        view = memoryview(data)
        end = len(view)
        out: list[ServerMessage] = []
        pos = self._finish(view, out)
        generation, fixed = self._generation, self._fixed
        has_partials = generation is _V2_0
        unpack, unpack_count = HEADER.unpack_from, _I32.unpack_from
        while end - pos >= HEADER_BYTES:
            length, magic, message_id = unpack(view, pos)
            if message_id == 0 and magic == MAGIC:
                if self._rows and end - pos > length:
                    rows, size = take_rows(view[pos:], self._max_payload)
                    if rows:
                        out += rows
                        pos += size
                        continue
                start = pos + fixed
                if start > end:
                    break
                if has_partials and (count := unpack_count(view, pos + 29)[0]):
                    start += self._partials_size(count)
                    if start > end:
                        break
                header = parse_header(view, generation, pos)
                size = header.size
                if size > self._max_payload:
                    raise self._too_large(size)
                after = start + size
                if after > end:
                    self._begin_payload(header)
                    self._fill(view[start:])
                    return out
                out.append(_new(BufferResponse, (*header, bytes(view[start:after]))))
                pos = after
            else:
                length = frame_size(view[pos:], self._max_frame)
                if length > end - pos:
                    break
                out.append(self._message(view[pos : pos + length]))
                pos += length
        if pos < end:
            self._head += view[pos:]
            frame_size(self._head, self._max_frame)  # an invalid beginning raises at once
        return out

    def _finish(self, view: memoryview, out: list[ServerMessage]) -> int:
        """Continues the unfinished message. Returns the position in ``view`` of the next message."""
        pos = 0
        head = self._head
        while head:
            needed = self._needed(head)
            if len(head) < needed:
                before = pos
                pos = min(len(view), pos + needed - len(head))
                head += view[before:pos]
                if len(head) < needed:
                    return pos
            elif head[8]:
                out.append(self._message(memoryview(bytes(head))))
                head.clear()
            else:
                self._begin_payload(parse_header(head, self._generation))
                head.clear()
        if self._header is None:
            return pos
        before = pos
        pos = min(len(view), pos + self._header.size - self._filled)
        self._fill(view[before:pos])
        self._finish_payload(out)
        return pos

    def _begin_payload(self, header: BufferHeader) -> None:
        if header.size > self._max_payload:
            raise self._too_large(header.size)
        self._header = header
        self._payload = bytearray(min(header.size, _BELIEVED_BYTES))
        self._filled = 0

    def _fill(self, data: memoryview) -> None:
        self._make_room(len(data))
        self._payload[self._filled : self._filled + len(data)] = data
        self._filled += len(data)

    def _make_room(self, size: int) -> None:
        """Makes room for at least ``size`` more bytes."""
        assert self._header is not None
        payload, filled = self._payload, self._filled
        if filled + size > len(payload):
            # A new array, because the caller may still have a view of the old array.
            self._payload = payload + bytes(min(self._header.size, 2 * (filled + size)) - len(payload))

    def _finish_payload(self, out: list[ServerMessage]) -> None:
        header, payload = self._header, self._payload
        if header is not None and self._filled == header.size:
            out.append(_new(BufferResponse, (*header, payload)))
            self._header = None
            self._payload = bytearray()

    def _needed(self, head: bytearray) -> int:
        """The bytes that ``head`` needs for the next step: to determine its length, or to be complete."""
        length = frame_size(head, self._max_frame)
        if len(head) < HEADER_BYTES:
            return HEADER_BYTES
        if head[8]:
            return length
        if len(head) < self._fixed or self._generation is not _V2_0:
            return self._fixed
        return self._fixed + self._partials_size(_I32.unpack_from(head, 29)[0])

    def _partials_size(self, count: int) -> int:
        """The bytes of this many partial sizes."""
        if not 0 <= count <= self._max_payload:
            raise ProtocolError(f"a frame of {count} partial buffers")
        return 4 * count

    def _message(self, frame: memoryview) -> ServerMessage:
        if frame[8] >= FIRST_WRITER_ID:
            return writer_frames.parse_server(frame)
        return messages.parse(frame, self._generation)

    def _too_large(self, size: int) -> ProtocolError:
        return ProtocolError(f"a buffer of {size} bytes: at most {self._max_payload} have room here")
