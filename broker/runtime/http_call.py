"""One request over HTTP on a connection that is given up afterwards. Blocks the calling thread.

Tests: tests/cli/test_subscriptions.py, tests/process/test_nodes_pulsar.py.
"""

from collections.abc import Mapping, Sequence

import h11

from broker.runtime.clock import SystemClock
from broker.runtime.dial import Dialled


def exchange(
    connection: Dialled,
    method: str,
    path: str,
    headers: Sequence[tuple[str, str]],
    content: bytes,
    timeout_s: float,
    most_bytes: int,
) -> tuple[int, bytes, str]:
    """Status and body of the answer, and its header ``location``. Raises OSError, also for a body of more than ``most_bytes``,
    and h11.RemoteProtocolError."""
    deadline = SystemClock.monotonic() + timeout_s
    parser = h11.Connection(h11.CLIENT)
    request = parser.send(h11.Request(method=method, target=path, headers=list(headers))) or b""
    connection.send([request, content], deadline)
    parser.send(h11.Data(data=content))
    parser.send(h11.EndOfMessage())
    status, length, answer, location = 0, 1, bytearray(), ""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            # The head is read byte by byte, because `receive` waits until the whole buffer is full; the body at once.
            piece = bytearray(max(1, length))
            connection.receive(memoryview(piece), deadline)
            parser.receive_data(bytes(piece))
        elif isinstance(event, h11.Response):
            status, named = event.status_code, dict(event.headers)
            length, location = _length(named, most_bytes), named.get(b"location", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            answer += event.data
            length = 1
            if len(answer) > most_bytes:
                raise OSError("it is too long")
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(answer), location


def _length(headers: Mapping[bytes, bytes], most_bytes: int) -> int:
    length = int(headers.get(b"content-length", b"1"))
    if length > most_bytes:
        raise OSError("it is too long")
    return length
