"""TLS on the client's side: the settings, their context, the reasons for a failed handshake, and the socket.

The settings and the context are for any thread. ``ssl`` reads a key only from a file. So a key that was given as text or in a
PKCS#12 store goes through a file that only this user can read, encrypted under a temporary password, and the file is removed at
once.

``ClientTlsSocket`` wraps a connected, non-blocking socket and belongs to one thread. (The broker's end is elsewhere, because it
must bound the cost of strangers; a client chooses its broker.) OpenSSL reads one record at a time from the descriptor, so a
poller sees the unread bytes; ``buffered`` says that the rest of a record is here already and that the poller will not report
it.
"""

import contextlib
import os
import secrets
import ssl
import tempfile
from collections.abc import Sequence

import attrs

from broker.runtime.disk import Buffer
from broker.runtime.net import WOULD_BLOCK, Socket, SystemSocket
from broker.runtime.poller import READ, WRITE

TlsContext = ssl.SSLContext


@attrs.frozen
class TlsSettings:
    """Files and texts are PEM. Without an authority (``ca_...``) the machine's own certificate authorities are trusted."""

    ca_file: str | None = None
    ca_data: str | None = None
    ca_pkcs12: str | None = None
    ca_password: str | None = attrs.field(default=None, repr=False)
    certificate_file: str | None = None
    key_file: str | None = None
    certificate_data: str | None = attrs.field(default=None, repr=False)  # may have the key in it, too
    key_data: str | None = attrs.field(default=None, repr=False)
    key_pkcs12: str | None = None  # a store with both
    key_password: str | None = attrs.field(default=None, repr=False)
    check_hostname: bool = True
    verify: bool = True

    @property
    def has_certificate(self) -> bool:
        """Whether the client shows a certificate."""
        return (self.certificate_file or self.certificate_data or self.key_pkcs12) is not None


class TlsRefused(Exception):
    """The handshake failed and would fail again: the certificate is not trusted, or the protocols do not match."""


_PLAINTEXT = " (security.protocol must then be PLAINTEXT or SASL_PLAINTEXT)"


CLOSED_EARLY = f"it has closed the connection during the handshake, as a listener without TLS does{_PLAINTEXT}"


def closed_early(error: ssl.SSLError) -> bool:
    """Whether the peer has closed the connection during the handshake. A broker that is being restarted does so, too."""
    return isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING"


def refusal(error: ssl.SSLError) -> TlsRefused:
    """A failed handshake in words that say what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsRefused(f"its certificate is not accepted: {error.verify_message.rstrip('.')}{_advice(error)}")
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"):
        return TlsRefused(f"what listens there speaks no TLS{_PLAINTEXT}")
    if closed_early(error):
        return TlsRefused(CLOSED_EARLY)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return TlsRefused(f"it asks for a certificate of this client ({_words(reason)}): set ssl.keystore.location")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return TlsRefused(f"it does not accept the certificate of this client ({_words(reason)})")
    return TlsRefused(_words(reason))


def _advice(error: ssl.SSLCertVerificationError) -> str:
    # X509_V_ERR_: 18 to 21 are about an unknown authority, 62 and 64 about names.
    if error.verify_code in (2, 18, 19, 20, 21):
        return " (set ssl.truststore.location or ssl.ca.location to the authority that has signed it)"
    if error.verify_code in (62, 64):
        return " (connect by a name that is in the certificate, or set ssl.endpoint.identification.algorithm=none)"
    return ""


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def tls_context(settings: TlsSettings) -> TlsContext:
    """What a client needs for TLS. OSError (ssl.SSLError among them) or ValueError for files that cannot be used.

    No error shows a secret; an OSError names the file.
    """
    ca_data = settings.ca_data
    if settings.ca_pkcs12 is not None:
        ca_data = (ca_data or "") + _authorities(settings.ca_pkcs12, settings.ca_password)
    with _naming(settings.ca_file):
        context = ssl.create_default_context(cafile=settings.ca_file, cadata=ca_data)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, settings)
    context.check_hostname = settings.check_hostname and settings.verify
    if not settings.verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_own(context: TlsContext, settings: TlsSettings) -> None:
    """Load the client's certificate, if it has any."""
    password = settings.key_password or ""
    if settings.key_pkcs12 is not None:
        passing = secrets.token_hex(16)
        _load_text(context, _store_as_pem(settings.key_pkcs12, password, passing), passing)
    elif settings.certificate_data is not None:
        _load_text(context, (settings.key_data or "") + "\n" + settings.certificate_data, password)
    elif settings.certificate_file is not None:
        with _naming(settings.certificate_file):
            # A function, so that OpenSSL never asks on the terminal.
            context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: password)


def _load_text(context: TlsContext, text: str, password: str) -> None:
    descriptor, path = tempfile.mkstemp(prefix="broker-")  # readable by this user only
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        context.load_cert_chain(path, None, lambda: password)
    except ssl.SSLError as error:
        raise ValueError(f"the client's key and certificate: {_why(error)}") from None
    finally:
        os.remove(path)


def _store_as_pem(path: str, password: str, passing: str) -> str:
    # Imported here: cryptography takes 0.1 s.
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, pkcs12

    try:
        key, certificate, chain = pkcs12.load_key_and_certificates(_read(path), password.encode())
    except ValueError:
        raise ValueError(f"{path}: no PKCS#12 store, or another password") from None
    if key is None or certificate is None:
        raise ValueError(f"{path}: a store without a key")
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passing.encode()))
    return b"".join([encrypted, *(cert.public_bytes(Encoding.PEM) for cert in (certificate, *chain))]).decode()


def _authorities(path: str, password: str | None) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        store = pkcs12.load_pkcs12(_read(path), None if password is None else password.encode())
    except ValueError:
        raise ValueError(f"{path}: no PKCS#12 store, or another password") from None
    entries = [store.cert, *store.additional_certs]
    text = b"".join(cert.certificate.public_bytes(Encoding.PEM) for cert in entries if cert is not None).decode()
    if not text:
        raise ValueError(f"{path}: a store without a certificate")
    return text


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class _naming:
    """Errors of ``ssl`` do not name the file that they are about."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if self._path is None:
            return
        if isinstance(error, ssl.SSLError):
            raise ValueError(f"{self._path}: {_why(error)}") from None
        if isinstance(error, OSError):
            raise ValueError(f"{self._path}: {error.strerror}") from None


def _why(error: ssl.SSLError) -> str:
    # OpenSSL gives no reason for a wrong password of a PKCS#8 key, nor for text that is no PEM.
    reason = error.reason or ""
    if not reason or "DECRYPT" in reason or "PASSWORD" in reason:
        return "no PEM of what is needed here, or its key has another password (ssl.key.password)"
    return _words(reason)


# The most data of one record.
_RECORD_BYTES = 16 * 1024
# The most of one call, so that other connections get their turn.
_SEND_BYTES = 16 * _RECORD_BYTES


class ClientTlsSocket:
    """Call ``handshake`` until it returns 0, then use it as a ``Socket``. ``host``: the name that the certificate must have."""

    def __init__(self, plain: Socket, context: TlsContext, host: str) -> None:
        """Takes over the descriptor of ``plain``, which must not be registered with a poller."""
        assert isinstance(plain, SystemSocket)
        self._socket = context.wrap_socket(plain.detach(), server_hostname=host, do_handshake_on_connect=False)
        self._record: memoryview | None = None  # OpenSSL has encrypted it and could not send it
        self.buffered = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def handshake(self) -> int:
        """Go on. Returns the events that it waits for, 0 if it is done. Raises TlsRefused, OSError."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return READ | WRITE
        except ssl.SSLError as error:
            raise refusal(error) from None
        return 0

    def recv_into(self, buffer: memoryview) -> int:
        """As ``Socket``. Raises TlsRefused if the peer refuses our certificate: with TLS 1.3 that happens after the handshake."""
        filled, size = 0, len(buffer)
        self.buffered = False
        while filled < size:
            try:
                got = self._socket.recv_into(buffer[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return filled or WOULD_BLOCK
            except ssl.SSLError as error:
                if error.reason and "ALERT" in error.reason and "CERTIFICATE" in error.reason:
                    raise refusal(error) from None
                raise
            if not got:
                return filled  # the next call returns 0
            filled += got
        self.buffered = self._socket.pending() > 0
        return filled

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """As ``Socket``. After WOULD_BLOCK the next call must begin with the same bytes, because they are encrypted already."""
        views = [memoryview(buffer) for buffer in buffers]
        sent = index = offset = 0
        while sent < _SEND_BYTES and index < len(views):
            record = self._record or _next_record(views, index, offset)
            try:
                size = self._socket.send(record)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._record = record
                break
            self._record = None
            sent += size
            offset += size
            while index < len(views) and offset >= len(views[index]):
                offset -= len(views[index])
                index += 1
        return sent or WOULD_BLOCK

    def close(self) -> None:
        """Send a close_notify if that is possible at once, and close."""
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()

    def forget(self) -> None:
        """Close this process's descriptor and send nothing."""
        self._socket.close()


def _next_record(views: list[memoryview], index: int, offset: int) -> memoryview:
    """The next bytes for one record. Small buffers are joined, because each record costs about as much as copying 16 KiB."""
    first = views[index][offset : offset + _RECORD_BYTES]
    if len(first) == _RECORD_BYTES or index + 1 == len(views):
        return first
    joined = bytearray(first)
    for view in views[index + 1 :]:
        joined += view[: _RECORD_BYTES - len(joined)]
        if len(joined) == _RECORD_BYTES:
            break
    return memoryview(joined)
