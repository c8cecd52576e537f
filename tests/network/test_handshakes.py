"""TLS handshakes on a processor that the test steps: who they let in, what they cost the others, and how they fail."""

import gc
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import InvalidVersion

from broker.config import load
from broker.network import handshakes
from broker.network.mute import HANDSHAKING
from broker.runtime.poller import READ
from broker.security.principal import ANONYMOUS, Principal
from broker.security.tls_listener import TlsListener
from tests import certificates
from tests.certificates import Identity
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Client, Stage, descriptors
from tests.network.tls_client import TlsClient, context, listener

MakeBench = Callable[..., Bench]


@pytest.fixture
def tls_bench() -> Iterator[MakeBench]:
    made: list[Bench] = []

    def make(
        service: Any = None, *, identity: Identity | None = None, shown: Identity | None = None, **keywords: Any
    ) -> Bench:
        """``identity``: the server's. ``shown``: the clients'."""
        names = {key: keywords.pop(key) for key in list(keywords) if key.startswith("ssl_")}

        def client(address: tuple[str, int], *, receive_buffer: int = 0) -> TlsClient:
            return TlsClient(address, receive_buffer=receive_buffer, tls=context(shown))

        made.append(Bench(service, tls=listener(identity, **names), client=client, **keywords))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def offer(bench: Bench) -> TlsClient:
    """A client that has connected; nothing of its handshake was handled yet."""
    client = bench.dial()
    assert bench.processor.offer(bench.new_connection())
    assert isinstance(client, TlsClient)
    return client


def plain(bench: Bench) -> Client:
    """A client that speaks no TLS."""
    client = Client(bench._listener.address)
    bench.clients.append(client)
    assert bench.processor.offer(bench.new_connection())
    return client


# -- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["none", "requested", "required"])
@pytest.mark.parametrize("shown", ["alice", "nothing", "untrusted", "expired"])
def test_client_authentication(tls_bench: MakeBench, auth: str, shown: str) -> None:
    identity = {
        "alice": certificates.client,
        "nothing": lambda: None,
        "untrusted": certificates.untrusted,
        "expired": lambda: certificates.expired("late"),
    }[shown]()
    b = tls_bench(shown=identity, ssl_client_auth=auth)
    client = offer(b)
    refused = (auth == "required" and shown != "alice") or (auth == "requested" and shown in ("untrusted", "expired"))
    b.until(lambda: client.eof if refused else client.established and not len(b.processor.handshakes))
    stats = b.processor.handshakes.stats
    assert (stats.completed, stats.failed) == ((0, 1) if refused else (1, 0))
    if refused:
        b.settle()
        assert client.failure is not None  # it was told, and not only cut off
        assert "ALERT" in (client.failure.reason or "")
        assert not b.processor.connections
        assert b.quotas.total == 0
    else:
        expected = (
            Principal("User", "CN=alice")
            if (auth, shown) in (("requested", "alice"), ("required", "alice"))
            else ANONYMOUS
        )
        assert b.connection_of(client).principal == expected
        client.send(frame(b"e", b"hello"))
        b.until(lambda: client.frames == [(b"e", b"hello")])


def test_a_client_that_no_rule_names_is_refused(tls_bench: MakeBench) -> None:
    b = tls_bench(
        shown=certificates.client("mallory"),
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=alice$/alice/",
    )
    client = offer(b)
    b.until(lambda: client.eof)
    assert b.processor.handshakes.stats.failed == 1
    assert b.service.connections == []


def test_unusable_certificate_costs_only_its_connection(tls_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def principal(_listener: Any, _certificate: bytes | None) -> Principal:
        raise InvalidVersion("17 is not a valid X509 version", 17)

    b = tls_bench()
    busy = b.connect()
    monkeypatch.setattr(TlsListener, "principal", principal)
    client = offer(b)
    b.until(lambda: client.eof)
    assert b.processor.handshakes.stats.failed == 1
    busy.send(frame(b"e", b"x"))
    b.until(lambda: busy.frames)


def test_data_arriving_with_end_of_handshake_is_served(tls_bench: MakeBench) -> None:
    b = tls_bench()
    client = offer(b)
    client.unsent += frame(b"e", b"early") + frame(b"e", b"bird")  # leaves in the packet that ends the handshake
    b.until(lambda: len(client.frames) == 2)


def test_while_the_handshake_lasts_the_connection_is_held(tls_bench: MakeBench) -> None:
    b = tls_bench()
    client = offer(b)
    b.step()
    connection = b.connection_of(client)
    assert connection.holds == HANDSHAKING
    assert connection.interest == READ
    b.until(lambda: not connection.holds)


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"e", b"plaintext"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(100),  # a record that is too long
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",  # a ClientHello of one byte
        b"\x17\x03\x03\x00\x10" + bytes(16),
        b"\x15\x03\x03\x00\x02\x02\x28",  # an alert
        b"\x80\x2e\x01\x03\x01" + bytes(50),  # SSL 2.0
        bytes(1000),
    ],
)
def test_what_is_no_handshake_fails_at_once(tls_bench: MakeBench, sent: bytes) -> None:
    b = tls_bench()
    client = plain(b)
    client.send(sent)
    b.until(lambda: client.eof)
    assert not client.reset
    assert b.processor.handshakes.stats.failed == 1


def test_tls_on_plaintext_port_is_refused_by_size() -> None:
    b = Bench(client=TlsClient)  # type: ignore[arg-type]
    try:
        client = b.dial()
        assert b.processor.offer(b.new_connection())
        b.until(lambda: client.eof)
        assert b.processor.stats.protocol_errors == 1
    finally:
        b.close()


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("how", ["close", "abort", "finish"])
def test_hanging_up_during_the_handshake_frees_everything(tls_bench: MakeBench, how: str, steps: int) -> None:
    b = tls_bench()
    client = b.dial()
    client.reads = False
    raw = client.socket
    assert b.processor.offer(b.new_connection())
    hello = ssl.MemoryBIO()
    hidden = context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hidden.do_handshake()
    b.clients.remove(client)
    data = hello.read()
    raw.send(data[: {1: 3, 2: len(data) // 2, 3: len(data)}[steps]])
    for _ in range(steps):
        b.step(timeout=0.01)
    getattr(Client, how)(client)
    b.until(lambda: not b.processor.connections)
    assert b.processor.handshakes.stats.failed == 1
    assert not len(b.processor.handshakes)
    raw.close()


def test_stopped_handshake_is_closed_after_its_time(tls_bench: MakeBench) -> None:
    b = tls_bench(handshake_timeout=10.0)
    silent, half = plain(b), plain(b)
    b.step()
    b.clock.now += 5
    half.send(b"\x16\x03\x01")
    late = offer(b)
    b.until(lambda: late.established)
    b.clock.now += 6
    b.until(lambda: silent.eof and half.eof)
    assert b.processor.handshakes.stats.late == 2
    assert len(b.processor.connections) == 1
    late.send(frame(b"e", b"still here"))
    b.until(lambda: late.frames)


def test_slow_handshake_ends_with_its_time(tls_bench: MakeBench) -> None:
    b = tls_bench(handshake_timeout=10.0)
    client = plain(b)
    hello = ssl.MemoryBIO()
    hidden = context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hidden.do_handshake()
    sent = 0
    for byte in hello.read():
        b.clock.now += 1
        client.send(bytes([byte]))
        b.step(3, timeout=0.001)
        sent += 1
        if client.eof:
            break
    assert sent <= 12
    assert b.processor.handshakes.stats.late == 1


# -- what it costs the others -----------------------------------------------------------------------------------------


def test_handshakes_have_budget_and_others_are_served(tls_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    b = tls_bench()
    busy = b.connect()
    monkeypatch.setattr(handshakes, "_STEP_S", 0.0)  # one a step
    crowd = [offer(b) for _ in range(15)]
    b.step()
    for client in crowd:
        client.pump()
    for answered in range(5):
        before = b.processor.handshakes.stats.completed
        busy.send(frame(b"e", b"x"))
        b.until(lambda n=answered: len(busy.frames) > n)  # type: ignore[misc]
        assert b.processor.handshakes.stats.completed - before <= 3
    b.until(lambda: all(client.established for client in crowd) and not len(b.processor.handshakes))


def test_push_waits_for_end_of_handshake(tls_bench: MakeBench) -> None:
    b = tls_bench(EchoService(in_flight_max=0))
    client = offer(b)
    b.step()
    b.outbox.push(b.connection_of(client), [frame(b"P", b"pushed")])
    b.until(lambda: client.frames == [(b"P", b"pushed")])


def test_failures_are_logged_once_a_second(tls_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **values: Any) -> None:
            assert event == "handshake_failed"
            seen.append(values)

    monkeypatch.setattr(handshakes, "log", Log())
    b = tls_bench()
    for _ in range(5):
        client = plain(b)
        client.send(b"garbage")
        b.until(lambda c=client: c.eof)  # type: ignore[misc]
    assert [each["unlogged_before"] for each in seen] == [0]
    b.clock.now += 2
    client = plain(b)
    client.send(b"garbage")
    b.until(lambda: client.eof)
    assert [each["unlogged_before"] for each in seen] == [0, 4]
    assert b.processor.handshakes.stats.failed == 6


def test_server_sends_its_certificates_and_those_above(tls_bench: MakeBench) -> None:
    below = certificates.authority().intermediate()
    b = tls_bench(identity=below.issue("broker", hosts=["localhost"]))
    b.connect()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_tls_versions_are_spoken_older_refused(tls_bench: MakeBench, version: ssl.TLSVersion) -> None:
    b = tls_bench()
    own = ssl.create_default_context(cadata=certificates.authority().pem)
    own.minimum_version = own.maximum_version = version
    client = TlsClient(b._listener.address, tls=own)
    b.clients.append(client)
    assert b.processor.offer(b.new_connection())
    b.until(lambda: client.established and not len(b.processor.handshakes))
    client.send(frame(b"e", b"x" * 100_000))
    b.until(lambda: client.frames == [(b"e", b"x" * 100_000)])


# -- crowds, chains and changes ---------------------------------------------------------------------------------------


def hello() -> bytes:
    """What a client says first."""
    said = ssl.MemoryBIO()
    hidden = context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hidden.do_handshake()
    return said.read()


def test_crowd_of_stopped_handshakes_delays_no_other(tls_bench: MakeBench) -> None:
    b = tls_bench(handshake_timeout=10.0)
    busy = b.connect()
    before = descriptors()
    said = hello()
    crowd = []
    for number in range(400):
        client = Client(b._listener.address)
        crowd.append(client)
        assert b.processor.offer(b.new_connection())
        client.send(said if number % 2 else said[:100])
        if number % 10 == 0:
            b.step()
    busy.send(frame(b"e", b"x"))
    b.until(lambda: busy.frames)
    b.until(lambda: all(each.interest for each in b.processor.connections))
    assert len(b.processor.connections) == 401
    b.clock.now += 11
    b.until(lambda: len(b.processor.connections) == 1)
    assert b.processor.handshakes.stats.late == 400
    assert not len(b.processor.handshakes)
    for client in crowd:
        client.close()
    assert descriptors() <= before
    busy.send(frame(b"e", b"y"))
    b.until(lambda: len(busy.frames) == 2)


def test_many_come_and_go_and_nothing_is_left(tls_bench: MakeBench) -> None:
    b = tls_bench()

    def some(count: int) -> None:
        for _ in range(count):
            client = b.connect()
            client.send(frame(b"e", b"x" * 20_000))
            b.until(lambda c=client: c.frames)  # type: ignore[misc]
            client.close()
            b.clients.remove(client)
            b.until(lambda: not b.processor.connections)
        b.service.gone.clear()
        b.service.connections.clear()

    some(20)
    gc.collect()
    objects, open_before = len(gc.get_objects()), descriptors()
    some(100)
    gc.collect()
    assert len(gc.get_objects()) <= objects + 50
    assert descriptors() <= open_before
    assert b.memory.in_use == 0


@pytest.mark.parametrize("padding", [5_000, 60_000, 110_000])
def test_large_client_chain_is_taken_or_refused(tls_bench: MakeBench, padding: int) -> None:
    b = tls_bench(shown=certificates.authority().issue("large", padding=padding), ssl_client_auth="required")
    client = offer(b)
    b.until(lambda: client.eof or not len(b.processor.handshakes))
    stats = b.processor.handshakes.stats
    assert (stats.completed, stats.failed) == ((0, 1) if padding > 100_000 else (1, 0))


@pytest.mark.parametrize("revoked", [True, False])
def test_a_revoked_certificate_is_refused(tls_bench: MakeBench, tmp_path: Path, revoked: bool) -> None:
    alice, bob = certificates.client("alice"), certificates.client("bob")
    lists = tmp_path / "revoked.pem"
    lists.write_text(certificates.authority().revoke(alice if revoked else bob))
    b = tls_bench(shown=alice, ssl_client_auth="required", ssl_crl_location=str(lists))
    client = offer(b)
    b.until(lambda: client.eof or not len(b.processor.handshakes))
    assert b.processor.handshakes.stats.failed == revoked
    if revoked:
        b.settle()
        assert "REVOKED" in ((client.failure and client.failure.reason) or "")


def test_outdated_revocation_lists_let_nobody_in(tls_bench: MakeBench, tmp_path: Path) -> None:
    lists = tmp_path / "revoked.pem"
    lists.write_text(certificates.authority().revoke(valid_days=(-9, -2)))
    b = tls_bench(shown=certificates.client(), ssl_client_auth="required", ssl_crl_location=str(lists))
    client = offer(b)
    b.until(lambda: client.eof)
    assert b.processor.handshakes.stats.failed == 1


def test_new_certificates_apply_only_to_new_connections(tls_bench: MakeBench, tmp_path: Path) -> None:
    b = tls_bench()
    assert b.tls is not None
    old = b.connect()
    renewed = certificates.authority().issue("broker", hosts=certificates.LOCAL)
    files = renewed.write(tmp_path)
    assert b.tls.reload(load(ssl_keystore_location=str(files.both))) is None
    new = b.connect()
    assert isinstance(old, TlsClient)
    assert isinstance(new, TlsClient)
    shown = [each.tls.getpeercert(True) for each in (old, new)]
    assert shown == [ssl.PEM_cert_to_DER_cert(each.certificate) for each in (certificates.server(), renewed)]
    for client in (old, new):
        client.send(frame(b"e", b"x"))
        b.until(lambda c=client: c.frames)  # type: ignore[misc]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_handshake_goes_on_on_another_processor(tls_bench: MakeBench, steps: int) -> None:
    stage = Stage()
    service = EchoService()
    one, other = tls_bench(service, stage=stage), tls_bench(service, stage=stage)
    client, silent = offer(one), plain(one)
    one.step(steps)
    one.replace(other.processor)
    other.until(lambda: (one.step(), client.established and len(other.processor.handshakes) == 1)[1])
    client.send(frame(b"e", b"x"))
    other.until(lambda: (client.pump(), client.frames)[1])
    stage.clock.now += 11
    other.until(lambda: (silent.pump(), silent.eof)[1])
    assert other.processor.handshakes.stats.late == 1


def test_client_that_never_reads_costs_bounded_amount(tls_bench: MakeBench) -> None:
    b = tls_bench()
    client = b.connect()
    client.reads = False
    client.send(frame(b"z", b"x" * 8) * 8)
    b.settle()
    connection = b.connection_of(client)
    assert connection.requests < 8
    assert 0 < connection.socket.held_bytes < 80_000
    client.reads = True
    b.until(lambda: len(client.received) == 8 * ((8 << 20) + 5))
