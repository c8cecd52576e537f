"""Which protocol is spoken at an address, for an error that says so where a client waits for an answer that cannot come.

A frame of one protocol is often the beginning of a longer frame of another, so the other side waits for the rest of it, and a
client of the wrong protocol waits as long as its own time limit.
"""

from broker.runtime.client_tls import TlsContext
from broker.runtime.clock import SystemClock
from broker.runtime.dial import dial

_CORRELATION = b"\x00\x00\x2f\x51"
# ApiVersions, version 0, without a client id.
_KAFKA = b"\x00\x00\x00\x0a\x00\x12\x00\x00" + _CORRELATION + b"\xff\xff"
# CONNECT with a client version: the sizes of frame and command, type 2, field 2.
_PULSAR = b"\x00\x00\x00\x0f\x00\x00\x00\x0b\x08\x02\x12\x07\x0a\x05probe"
_PULSAR_ANSWERS = (3, 8)  # CONNECTED, ERROR
_HTTP = b"GET / HTTP/1.0\r\n\r\n"


def what_listens(host: str, port: int, tls: TlsContext | None = None, timeout_s: float = 0.4) -> str | None:
    """ "Kafka", "Pulsar" or "HTTP"; None where nothing listens, or something else. Takes three times ``timeout_s`` at most."""
    answer = _answer(host, port, tls, timeout_s, _KAFKA, 8)
    if answer[4:8] == _CORRELATION:
        return "Kafka"
    if answer[:5] == b"HTTP/" or _answer(host, port, tls, timeout_s, _HTTP, 5) == b"HTTP/":
        return "HTTP"
    answer = _answer(host, port, tls, timeout_s, _PULSAR, 10)
    if answer[8:9] == b"\x08" and answer[9] in _PULSAR_ANSWERS:
        return "Pulsar"
    return None


def _answer(host: str, port: int, tls: TlsContext | None, timeout_s: float, request: bytes, size: int) -> bytes:
    """The first ``size`` bytes that come back, or nothing."""
    deadline = SystemClock.monotonic() + timeout_s
    answer = bytearray(size)
    try:
        link = dial(host, port, timeout_s, tls)
    except (OSError, ValueError):
        return b""
    try:
        link.send([request], deadline)
        link.receive(memoryview(answer), deadline)
    except OSError:
        return b""
    finally:
        link.close()
    return bytes(answer)
