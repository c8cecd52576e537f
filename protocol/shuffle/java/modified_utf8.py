"""Text as Java writes it (``DataOutput.writeUTF``): UTF-16 units in UTF-8, and two bytes for U+0000."""

from __future__ import annotations

import struct

from protocol.errors import ProtocolError
from protocol.wire import BytesLike, Reader

# A text's length is a u16.
MAX_BYTES = 65535


def encode(text: str) -> bytes:
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    apart = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    return apart.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def encode_prefixed(text: str) -> bytes:
    """With its length in two bytes before it. A text that is too long for that is cut after a whole character."""
    encoded = encode(text)
    if len(encoded) > MAX_BYTES:
        end = MAX_BYTES
        while encoded[end] & 0xC0 == 0x80:
            end -= 1
        encoded = encoded[:end]
    return len(encoded).to_bytes(2, "big") + encoded


def decode(data: BytesLike) -> str:
    """Raises ProtocolError. Half a surrogate pair becomes U+FFFD."""
    raw = bytes(data)
    if raw.isascii():
        return raw.decode()
    try:
        apart = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not Java's UTF-8") from None
    return apart.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def read_prefixed(reader: Reader) -> str:
    return decode(reader.take(reader.u16(), "a text"))
