"""A proxy in front of a broker that cuts connections after a given number of bytes, in either direction."""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self


class Cut(NamedTuple):
    """The connection ends when this many bytes have gone to the broker, or come from it."""

    to_broker: int | None = None
    from_broker: int | None = None


class CuttingProxy:
    """Each connection takes the next of ``cuts``; when none is left, connections are not cut."""

    def __init__(self) -> None:
        self.cuts: deque[Cut] = deque()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._target: tuple[str, int] | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._closed = False

    def forward_to(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self._run(self._accept)

    def cut(self, cuts: Iterable[Cut]) -> None:
        self.cuts = deque(cuts)

    def cut_all(self) -> None:
        """End all open connections."""
        for one in list(self._sockets):
            _end(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        _end(self._listener)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for one in self._sockets:
            one.close()

    def _run(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="proxy")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self._target is not None
            try:
                server = socket.create_connection(self._target, 10)
            except OSError:  # the broker is down: so are we
                _end(client)
                client.close()
                continue
            self.connections += 1
            cut = self.cuts.popleft() if self.cuts else Cut()
            for one in (client, server):
                one.settimeout(None)
                self._sockets.append(one)
            self._run(self._copy, client, server, cut.to_broker)
            self._run(self._copy, server, client, cut.from_broker)

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
