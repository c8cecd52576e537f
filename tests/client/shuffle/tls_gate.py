"""A gate in front of a broker's listener that speaks TLS with clients and plain TCP with the broker."""

import contextlib
import socket
import ssl
import threading
from types import TracebackType
from typing import Self


class TlsGate:
    def __init__(self, context: ssl.SSLContext, target: str = "") -> None:
        self.let_in = 0  # finished handshakes
        self._context = context
        self.target = target  # may be set later, before the first client comes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.break_connections(self._listener)
        for thread in list(self._threads):
            thread.join(30)
            assert not thread.is_alive()
        for one in [self._listener, *self._sockets]:
            one.close()

    def break_connections(self, *others: socket.socket) -> None:
        for one in [*others, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _run(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="tls-gate")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            encrypted = self._context.wrap_socket(client, server_side=True)
            self._sockets.append(encrypted)
            host, port = self.target.rsplit(":", 1)
            broker = socket.create_connection((host, int(port)), 30)
            broker.settimeout(None)
            self._sockets.append(broker)
            self.let_in += 1
            self._run(_copy, broker, encrypted)
            _copy(encrypted, broker)
        with contextlib.suppress(OSError):
            client.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError, ValueError):
            one.shutdown(socket.SHUT_RDWR)
