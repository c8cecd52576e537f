"""Base of the gates in front of a broker's listener: a thread that accepts, a thread for each client, and their end."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Gate:
    """Subclasses serve one client in ``serve`` and put every socket that they open into ``sockets``."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self.address = f"{self.host}:{self.port}"
        self._threads: list[threading.Thread] = []
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.break_connections(self._listener)
        for thread in list(self._threads):
            thread.join(30)
            assert not thread.is_alive()
        for sock in [self._listener, *self.sockets]:
            sock.close()

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self.run(self._accept)

    def break_connections(self, *others: socket.socket) -> None:
        for sock in [*others, *self.sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def run(self, function: object, *arguments: object) -> None:
        """Run it on a thread that ends before the gate does."""
        thread = threading.Thread(target=function, args=arguments, name="gate")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.sockets.append(client)
            self.run(self.serve, client)
