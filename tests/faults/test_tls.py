"""Clients that misuse TLS: handshakes that stop, drip or are noise, TLS on plain listeners and plain clients on TLS listeners,
old versions, bad certificates, and thousands of connections."""

import os
import random
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests import certificates
from tests.faults.raw import API_VERSIONS, Faults, Raw, fetch, produce
from tests.open_files import open_files, wait_for_files
from tests.waiting import wait_for

TLS, MUTUAL = "kafka+ssl", "mutual"
LISTENERS = ("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=mutual")

shared = hypothesis_settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.server().write(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture
def settings(request: pytest.FixtureRequest, files: certificates.Files) -> dict[str, Any]:
    """``mutual`` requires client certificates."""
    return {
        "listeners": LISTENERS,
        "ssl_keystore_location": str(files.both),
        "ssl_truststore_location": str(files.authority),
        "listener_settings": {"mutual.ssl.client.auth": "required"},
        **getattr(request, "param", {}),
    }


def with_settings(**values: Any) -> Any:
    return pytest.mark.parametrize("settings", [values], indirect=True, ids=["-".join(values)])


def client_context(**attributes: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificates.authority().pem)
    for name, value in attributes.items():
        setattr(context, name, value)
    return context


def client_hello(context: ssl.SSLContext | None = None) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = (context or client_context()).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def secure(raw: Raw, context: ssl.SSLContext | None = None) -> Raw:
    """The same connection, over TLS. Raises OSError if the broker or the client rejects the other."""
    raw.socket = (context or client_context()).wrap_socket(raw.socket, server_hostname="localhost")
    return raw


def is_served(raw: Raw) -> bool:
    return raw.asks_for_versions(3)


# -- good ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_is_served_over_tls(faults: Faults, version: ssl.TLSVersion) -> None:
    context = client_context(minimum_version=version, maximum_version=version)
    with secure(faults.connect(listener=TLS), context) as raw:
        assert is_served(raw)


def test_handshake_sent_byte_by_byte_is_served(faults: Faults) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with faults.connect(listener=TLS) as raw:
        done = False
        while not done:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            for byte in outgoing.read():
                raw.send(bytes([byte]))
            if not done:
                incoming.write(raw.socket.recv(1 << 16))
        tls.write(API_VERSIONS)
        for byte in outgoing.read():
            raw.send(bytes([byte]))
        answer = b""
        while not answer:
            incoming.write(raw.socket.recv(1 << 16))
            try:
                answer = tls.read(1 << 16)
            except ssl.SSLWantReadError:
                pass
        assert answer
        assert faults.serves()


# -- not spoken ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [TLS, MUTUAL])
def test_client_without_tls_is_told_nothing(faults: Faults, listener: str) -> None:
    with faults.connect(listener=listener) as raw:
        raw.try_send(API_VERSIONS * 3)
        answer = raw.rest()
        assert len(answer) < 20  # a TLS alert at most
    assert faults.serves()


def test_tls_client_of_plain_listener_is_disconnected(faults: Faults) -> None:
    raw = faults.connect()
    with pytest.raises(OSError):
        secure(raw)
    assert faults.serves()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(faults: Faults, version: ssl.TLSVersion) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = client_context(minimum_version=version, maximum_version=version)
    try:
        context.set_ciphers("ALL:@SECLEVEL=0")
        hello = client_hello(context)
    except (ssl.SSLError, AssertionError) as error:
        pytest.skip(f"this OpenSSL does not speak {version.name}: {error}")
    with faults.connect(listener=TLS) as raw:
        raw.send(hello)
        answer = raw.rest()
        assert answer[:1] in (b"", b"\x15")  # nothing, or an alert
    with pytest.raises(OSError):
        secure(faults.connect(listener=TLS), context)


# -- certificates ----------------------------------------------------------------------------------------------------------


def test_client_without_required_certificate_is_refused(faults: Faults) -> None:
    with pytest.raises((OSError, AssertionError)):
        is_served(secure(faults.connect(listener=MUTUAL)))
    assert faults.serves()


@pytest.mark.parametrize("identity", [certificates.expired, certificates.untrusted], ids=["expired", "untrusted"])
def test_a_client_with_a_bad_certificate_is_refused(
    faults: Faults, identity: Callable[..., certificates.Identity], tmp_path: Path
) -> None:
    context = certificates.client_context(identity("alice"), directory=tmp_path)
    with pytest.raises((OSError, AssertionError)):
        is_served(secure(faults.connect(listener=MUTUAL), context))


def test_a_client_with_a_good_certificate_is_served(faults: Faults, tmp_path: Path) -> None:
    context = certificates.client_context(certificates.client(), directory=tmp_path)
    with secure(faults.connect(listener=MUTUAL), context) as raw:
        assert is_served(raw)


# -- stopping -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_handshakes_that_stop_hold_nobody_up(faults: Faults, share: float) -> None:
    hello = client_hello()
    clients = [faults.connect(listener=TLS) for _ in range(100)]
    for raw in clients:
        raw.send(hello[: int(len(hello) * share)])
    assert faults.serves()
    with secure(faults.connect(listener=TLS)) as raw:
        assert is_served(raw)
    for number, raw in enumerate(clients):
        if number % 2:
            raw.close()
        else:
            raw.abort()


@with_settings(handshake_timeout_ms=300)
@pytest.mark.parametrize("drips", [False, True])
def test_slow_handshake_is_given_up(faults: Faults, drips: bool) -> None:
    """Even if a byte comes from time to time."""
    raw = faults.connect(listener=TLS)
    hello = iter(client_hello())
    raw.send(bytes([next(hello)]))
    raw.socket.settimeout(0.02)

    def given_up() -> bool:
        try:
            if drips:
                raw.send(bytes([next(hello, 0)]))
            return raw.socket.recv(1 << 16) == b"" or raw.socket.recv(1 << 16) == b""  # an alert may come first
        except TimeoutError:
            return False
        except OSError:
            return True

    wait_for(given_up)


def test_clients_leaving_during_handshakes_leave_nothing(faults: Faults) -> None:
    hello = client_hello()
    for number in range(100):
        raw = faults.connect(listener=TLS)
        raw.send(hello)
        if number % 4:
            raw.socket.recv(1 + 100 * (number % 20))
        if number % 2:
            raw.abort()
        else:
            raw.close()
    assert faults.serves()


def test_a_handshake_is_not_begun_again(faults: Faults) -> None:
    """Renegotiation: OpenSSL's client cannot ask for it here, so the record that asks for it is sent in place of data."""
    context = client_context(maximum_version=ssl.TLSVersion.TLSv1_2)
    with secure(faults.connect(listener=TLS), context) as raw:
        assert is_served(raw)
        with socket.socket(fileno=os.dup(raw.socket.fileno())) as beside:
            beside.settimeout(30)
            beside.sendall(client_hello(context))
            while beside.recv(1 << 16):
                pass
    assert faults.serves()


# -- noise -----------------------------------------------------------------------------------------------------------------


def is_answered_or_closed(faults: Faults, data: bytes) -> None:
    with faults.connect(listener=TLS) as raw:
        raw.try_send(data)
        raw.finish()
        raw.rest()


@given(data=st.binary(min_size=1, max_size=300))
@shared
def test_random_bytes(faults: Faults, data: bytes) -> None:
    is_answered_or_closed(faults, data)


@given(
    kind=st.sampled_from([20, 21, 22, 23, 24, 0, 255]),
    version=st.sampled_from([0x0301, 0x0303, 0x0304, 0x0002, 0xFFFF]),
    length=st.one_of(st.none(), st.integers(0, 65_535)),
    body=st.binary(max_size=200),
)
@shared
def test_records_of_random_bytes(faults: Faults, kind: int, version: int, length: int | None, body: bytes) -> None:
    size = len(body) if length is None else length
    is_answered_or_closed(faults, bytes([kind]) + version.to_bytes(2, "big") + size.to_bytes(2, "big") + body)


@given(changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=5), cut=st.booleans())
@shared
def test_a_hello_that_was_altered(faults: Faults, changes: list[tuple[int, int]], cut: bool) -> None:
    hello = bytearray(client_hello())
    for position, value in changes:
        hello[position % len(hello)] = value
    is_answered_or_closed(faults, bytes(hello[: changes[0][0] % len(hello)] if cut else hello))


def test_noise_after_a_handshake_closes_the_connection(faults: Faults) -> None:
    rng = random.Random(6)
    for _ in range(20):
        with secure(faults.connect(listener=TLS)) as raw:
            assert is_served(raw)
            with socket.socket(fileno=os.dup(raw.socket.fileno())) as beside:
                beside.settimeout(30)
                beside.sendall(b"\x17\x03\x03\x00\x40" + rng.randbytes(64))
                try:
                    while beside.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
    assert faults.serves()


def test_kafka_noise_inside_tls_is_no_worse(faults: Faults) -> None:
    rng = random.Random(7)
    for _ in range(30):
        with secure(faults.connect(listener=TLS)) as raw:
            raw.try_send(rng.randbytes(rng.randrange(1, 200)))
            raw.finish()
            raw.rest()


# -- many ------------------------------------------------------------------------------------------------------------------


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_and_close(faults: Faults, context: ssl.SSLContext, count: int) -> None:
    for number in range(count):
        raw = Raw(faults.broker, listener=TLS)
        try:
            secure(raw, context)
            if number % 3 == 0:
                assert is_served(raw)
            if number % 3 == 1:
                raw.abort()
        finally:
            raw.close()
    wait_for(lambda: faults.connections == 0, "connections are left")


@pytest.mark.slow
def test_closed_tls_connections_leave_no_memory_or_descriptors(faults: Faults) -> None:
    """TLS_CONNECTIONS=10000 for a long run."""
    count = int(os.environ.get("TLS_CONNECTIONS", "600"))
    context = client_context()
    _open_and_close(faults, context, count // 3)  # so that one-time allocations are done
    files, memory = open_files(), _resident_bytes()
    _open_and_close(faults, context, count)
    wait_for_files(files)
    assert _resident_bytes() - memory < 8 << 20
    assert faults.serves()


def test_a_large_response_goes_through_tls_whole(faults: Faults) -> None:
    value = random.Random(8).randbytes(900_000)
    with faults.connect() as producer:
        for _ in range(5):
            producer.send(produce(faults.topic, value))
            producer.frame()
    with secure(faults.connect(listener=TLS)) as raw:
        raw.send(fetch(faults.topic, max_bytes=64 << 20))
        assert raw.frame().count(value) == 5
        assert is_served(raw)
