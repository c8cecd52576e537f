"""A proxy in front of a broker that cuts connections after a given number of bytes, in either direction."""

import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tests.client.gate import Gate


class Cut(NamedTuple):
    """The connection ends after this many bytes to the broker, or from it."""

    to_broker: int | None = None
    from_broker: int | None = None


class CuttingProxy(Gate):
    """Each connection takes the next of ``cuts``; without any left, connections are not cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: deque[Cut] = deque()
        self.connections = 0
        self._target: tuple[str, int] | None = None

    def forward_to(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self.start()

    def cut(self, cuts: Iterable[Cut]) -> None:
        self.cuts = deque(cuts)

    def cut_all(self) -> None:
        """End all open connections."""
        self.break_connections()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self._target is not None
            try:
                server = socket.create_connection(self._target, 10)
            except OSError:  # the broker is down, and so is the proxy
                _end(client)
                client.close()
                continue
            self.connections += 1
            cut = self.cuts.popleft() if self.cuts else Cut()
            for sock in (client, server):
                sock.settimeout(None)
                self.sockets.append(sock)
            self.run(self._copy, client, server, cut.to_broker)
            self.run(self._copy, server, client, cut.from_broker)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, limit: int | None) -> None:
        left = limit
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(65536 if left is None else min(left, 65536))
                if not data:
                    break
                target.sendall(data)
                if left is not None:
                    left -= len(data)
        _end(source)
        _end(target)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
