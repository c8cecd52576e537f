"""A gate in front of a broker's listener that speaks TLS with clients and plain TCP with the broker."""

import contextlib
import socket
import ssl
from typing import Self

from tests.client.gate import Gate


class TlsGate(Gate):
    def __init__(self, context: ssl.SSLContext, target: str = "") -> None:
        super().__init__()
        self.let_in = 0  # finished handshakes
        self._context = context
        self.target = target  # may be set later, before the first client comes

    def __enter__(self) -> Self:
        self.start()
        return self

    def serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            encrypted = self._context.wrap_socket(client, server_side=True)
            self.sockets.append(encrypted)
            host, port = self.target.rsplit(":", 1)
            broker = socket.create_connection((host, int(port)), 30)
            broker.settimeout(None)
            self.sockets.append(broker)
            self.let_in += 1
            self.run(_copy, broker, encrypted)
            _copy(encrypted, broker)
        with contextlib.suppress(OSError):
            client.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError, ValueError):
            sock.shutdown(socket.SHUT_RDWR)
