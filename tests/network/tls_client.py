"""The other end of a TLS connection for the reactor's tests, and the listener's TLS."""

import functools
import ssl
import tempfile
from pathlib import Path
from typing import Any

from broker.config import load
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.security.tls_listener import TlsListener
from tests import certificates
from tests.certificates import Identity
from tests.network.harness import Client


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tls-")


def listener(identity: Identity | None = None, **settings: Any) -> TlsListener:
    """With the usual server certificate, and ``authority()`` for clients."""
    identity = identity or certificates.server()
    files = identity.write(Path(_directory().name), f"server-{identity.x509.serial_number}")
    config = load(ssl_keystore_location=str(files.both), ssl_truststore_location=str(files.authority), **settings)
    return TlsListener("echo", config, SystemDisk(), SystemClock())


@functools.cache
def context(identity: Identity | None = None) -> ssl.SSLContext:
    return certificates.client_context(identity, directory=Path(_directory().name))


class TlsClient(Client):
    """``polite``: says close_notify before it closes its side."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        receive_buffer: int = 0,
        tls: ssl.SSLContext | None = None,
        polite: bool = True,
    ) -> None:
        super().__init__(address, receive_buffer=receive_buffer)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (tls or context()).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.polite = polite
        self.established = False
        self.failure: ssl.SSLError | None = None  # what the broker's alert says
        self._unsent = b""  # encrypted

    def pump(self) -> None:
        if self.socket.fileno() >= 0 and not self.established and self.failure is None and not self.eof:
            self._receive_encrypted()
            try:
                self.tls.do_handshake()
                self.established = True
            except ssl.SSLWantReadError:
                if self.eof:
                    return
            except ssl.SSLError as error:
                self.failure = error
            self._send_encrypted()
        if self.established:
            self._send_encrypted()  # also when there is nothing more to encrypt
            super().pump()

    def _send(self, data: bytearray) -> int:
        """Encrypts all of it, as far as what was encrypted before has been sent."""
        self._send_encrypted()
        if self._unsent:
            raise BlockingIOError
        sent = self.tls.write(data[:65536])
        self._send_encrypted()
        return sent

    def _receive(self) -> bytes:
        while True:
            try:
                return self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                if not self._receive_encrypted():
                    if self.eof:
                        return b""
                    raise BlockingIOError from None
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                self.failure = error
                raise

    def trickle(self, size: int) -> bytes:
        data = b""
        self._receive_encrypted(size)
        try:
            while got := self.tls.read(1 << 20):
                data += got
        except ssl.SSLWantReadError:
            pass
        return data

    def _receive_encrypted(self, size: int = 1 << 16) -> bool:
        try:
            got = self.socket.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            self.eof = self.reset = True
            return False
        if not got:
            self.eof = True
        self.incoming.write(got)
        return bool(got)

    def _send_encrypted(self) -> None:
        self._unsent += self.outgoing.read()
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""

    def finish(self) -> None:
        if self.polite and self.established:
            try:
                self.tls.unwrap()
            except OSError:
                pass
            self._send_encrypted()
        super().finish()

    def close(self) -> None:
        if self.polite and self.established and self.socket.fileno() >= 0 and not self.eof:
            try:
                self.tls.unwrap()
            except OSError:
                pass
            self._send_encrypted()
        super().close()
