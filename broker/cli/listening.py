"""Finds which service listens at an address. Used after a command got no answer, because the port may be another
listener's.

It makes three short requests and a TLS handshake, each on its own connection and in the protocol of one service. The
first bytes of an answer are enough.

Tests: tests/cli/test_listening.py.
"""

from broker.errors import BrokerError
from broker.runtime.client_tls import TlsRefused, TlsSettings, tls_context
from broker.runtime.clock import SystemClock
from broker.runtime.dial import dial

# The time limit of each request (s). A service on the same machine answers within some milliseconds.
_ANSWER_S = 1.0

# The first byte of our correlation id is a letter, so that the answer can be recognised by it.
_KAFKA_ID = b"K\0\0\0"
_SHUFFLE_MAGIC = 0xBA
_TLS_ALERT = 0x15
_HEAD = 5


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


_HTTP = b"GET / HTTP/1.0\r\n\r\n"
# ApiVersions (18) version 0 without a client id.
_KAFKA = _framed(b"\0\x12\0\0" + _KAFKA_ID + b"\xff\xff")
# CONNECT with a client version and protocol version 19, behind the length of the command.
_PULSAR = _framed(_framed(b"\x08\x02\x12\x08\x0a\x04ping\x20\x13"))


def service_at(host: str, port: int) -> str | None:
    """``kafka``, ``shuffle``, ``pulsar``, ``http``, or ``tls`` for any service with TLS; None if no known service
    answers."""
    for request in (_HTTP, _KAFKA, _PULSAR):
        try:
            kind = kind_of(_head(host, port, request), request is _PULSAR)
        except ConnectionRefusedError:
            return None
        except OSError:
            continue
        if kind is not None:
            return kind
    return "tls" if _has_tls(host, port) else None


def may_be_kafka(host: str, port: int) -> bool:
    """Whether a Kafka broker answers, or nothing listens yet. One request, for commands that would retry for long."""
    try:
        return kind_of(_head(host, port, _KAFKA), False) == "kafka"
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def _has_tls(host: str, port: int) -> bool:
    """A server with TLS may have closed the connection without an alert, so this tries a handshake."""
    try:
        dial(host, port, _ANSWER_S, tls_context(TlsSettings(verify=False, check_hostname=False))).close()
    except (OSError, TlsRefused):
        return False
    return True


def _head(host: str, port: int, request: bytes) -> bytes:
    connection = dial(host, port, _ANSWER_S)
    try:
        deadline = SystemClock.monotonic() + _ANSWER_S
        connection.send([request], deadline)
        head = bytearray(_HEAD)
        connection.receive(memoryview(head), deadline)
        return bytes(head)
    finally:
        connection.close()


def kind_of(head: bytes, asked_pulsar: bool) -> str | None:
    """The service whose answers begin with these five bytes."""
    if head == b"HTTP/":
        return "http"
    if head[0] == _TLS_ALERT and head[1] == 3:
        return "tls"
    if head[4] == _SHUFFLE_MAGIC:
        return "shuffle"
    if head[4] == _KAFKA_ID[0]:
        return "kafka"
    # The length of the command is below 16 MiB.
    return "pulsar" if asked_pulsar and head[4] == 0 else None


def other_service(host: str, port: int, wanted: str, option: str) -> BrokerError | None:
    """An error that names the service at the address, if it is not ``wanted`` without TLS.

    ``option``: how the user gives the right address.
    """
    service = service_at(host, port)
    if service is None or service == wanted:
        return None
    if service == "tls":
        return BrokerError(
            f"{host}:{port} is a listener with TLS: set security.protocol to SSL or SASL_SSL, with -X or --client-config."
        )
    return BrokerError(
        f"{host}:{port} is {_ARTICLES[service]} {service}:// listener, and this command needs {_ARTICLES[wanted]} "
        f"{wanted}:// one: give its address {option}."
    )


_ARTICLES = {"kafka": "a", "shuffle": "a", "pulsar": "a", "http": "an"}
