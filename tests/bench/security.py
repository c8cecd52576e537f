"""The cost of TLS for a processor, and of a login for the broker, by mechanism.

``tls``: one thread; the steps of a processor with the echo service on a real TCP connection take turns with a client. Only the
steps' CPU counts, and the best of several rounds. ``handshake``: the same for a handshake, with accepting and closing.

``login``: several connections at once log in, in steps; the client computes its password only once, so that it costs less than
the broker. The CPU is the broker's, with accepting and closing the connection; "no login" is that alone, with one request.
"""

import base64
import hashlib
import hmac
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import SystemDisk
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import make_row
from protocol.kafka.api_keys import ApiKey
from tests import certificates
from tests.bench.frame import CPU, Figures, Meter, Options, Row, medians
from tests.bench.process import BrokerProcess
from tests.bench.wire import Wire
from tests.certificates import Algorithm, Identity
from tests.network.echo import frame
from tests.network.harness import Bench
from tests.network.tls_client import TlsClient, context, listener
from tests.tokens import jwk, jwks, message, private_key, token

_MIB = 1 << 20
USER, PASSWORD = "alice", "secret"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
TOKENS = ("ES256", "RS256")
LOGINS = ("no login", *HASHES, "PLAIN", "PLAIN of SHA-512", "PLAIN, wrong user", *TOKENS)
_AT_ONCE = 16


class Stepped:
    """A bench whose processor's CPU is counted."""

    def __init__(
        self, tls: bool, algorithm: Algorithm = "ecdsa", shown: Identity | None = None, **settings: str
    ) -> None:
        def client(address: tuple[str, int], *, receive_buffer: int = 0) -> TlsClient:
            return TlsClient(address, receive_buffer=receive_buffer, tls=context(shown))

        secured: dict[str, Any] = {}
        if tls:
            secured = {"tls": listener(certificates.server(algorithm), **settings), "client": client}
        self.bench = Bench(high=64 * _MIB, **secured)
        self.bench._ident = self.bench.roles.get_ident()
        self.cpu_s = 0.0

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            before = time.thread_time()
            self.bench.processor.step(0.0)
            self.cpu_s += time.thread_time() - before
            for client in self.bench.clients:
                client.pump()

    def cost_us(self, count: int, once: Callable[[int], None]) -> float:
        """Of each of so many."""
        self.cpu_s = 0.0
        for number in range(count):
            once(number)
        self.bench.close()
        return self.cpu_s / count * 1e6


def _exchanged(tls: bool, count: int, request: bytes, size: int, path: str = "") -> float:
    """us of the processor for a request whose answer has more than ``size`` bytes; 0: for a request without an answer."""
    stepped = Stepped(tls)
    bench = stepped.bench
    client = bench.connect()
    if path:
        bench.service.file = SystemDisk().open(path, read_only=True)

    def once(number: int) -> None:
        client.received.clear()
        client.send(request)
        stepped.until(lambda: len(client.received) > size if size else bench.processor.stats.requests > number)

    return stepped.cost_us(count, once)


def bench_tls(options: Options) -> Iterator[Row]:
    small = frame(b"e", b"x" * 95)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/file"
        Path(path).write_bytes(bytes(_MIB))
        for name, usual, request, size, file in (
            ("a small request", 2000, small, len(small) - 1, ""),
            ("1 MiB received", 60, frame(b"n", bytes(_MIB)), 0, ""),
            ("1 MiB sent from memory", 60, frame(b"z", b"x"), _MIB, ""),
            ("1 MiB sent from a file", 60, frame(b"f", f"0 {_MIB}".encode()), _MIB, path),
        ):
            for tls in (False, True):
                work = (tls, options.count(usual), request, size, file)
                cost = min(_exchanged(*work) for _ in range(options.rounds))
                yield Row(f"{name}, {'TLS 1.3' if tls else 'plaintext'}", {CPU: cost})


def _handshake(algorithm: Algorithm, with_client: bool, count: int) -> float:
    shown = certificates.client("alice", algorithm) if with_client else None
    stepped = Stepped(True, algorithm, shown, ssl_client_auth="required" if with_client else "none")
    bench = stepped.bench

    def once(number: int) -> None:
        client = bench.dial()
        bench.processor.offer(bench.new_connection())
        stepped.until(lambda: bench.processor.handshakes.stats.completed > number)
        bench.clients.remove(client)
        client.close()
        stepped.until(lambda: not bench.processor.connections)

    return stepped.cost_us(count, once)


def bench_handshake(options: Options) -> Iterator[Row]:
    algorithms: dict[str, Algorithm] = {"P-256": "ecdsa", "RSA-2048": "rsa"}
    for name, algorithm in algorithms.items():
        for with_client in (False, True):
            costs = [_handshake(algorithm, with_client, options.count(200)) for _ in range(options.rounds)]
            yield Row(f"handshake, {name}{', client certificate' if with_client else ''}", {CPU: min(costs)})


@cache
def _salted(algorithm: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(algorithm, PASSWORD.encode(), salt, iterations)


def _scram(algorithm: str) -> Generator[bytes, bytes, None]:
    """Yields tokens and is sent the broker's."""
    bare = f"n={USER},r=nonce"
    challenge = (yield f"n,,{bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    key = hmac.digest(_salted(algorithm, base64.b64decode(fields["s"]), int(fields["i"])), b"Client Key", algorithm)
    without = f"c=biws,r={fields['r']}"
    stored = hashlib.new(algorithm, key).digest()
    signature = hmac.digest(stored, f"{bare},{challenge},{without}".encode(), algorithm)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    yield f"{without},p={base64.b64encode(proof).decode()}".encode()


def _tokens(case: str, bearer: dict[str, bytes]) -> tuple[str, Any]:
    """The mechanism, and its tokens."""
    if case in HASHES:
        return case, _scram(HASHES[case])
    if case in bearer:
        return "OAUTHBEARER", iter([bearer[case]])
    user = {"PLAIN": USER, "PLAIN of SHA-512": "bob"}.get(case, "nobody")
    return "PLAIN", iter([f"\0{user}\0{PASSWORD}".encode()])


def _log_in(broker: BrokerProcess, case: str, turns: int, bearer: dict[str, bytes]) -> Figures:
    with Meter(broker) as meter:
        for _ in range(turns):
            wires = [Wire(broker.address) for _ in range(_AT_ONCE)]
            if case == "no login":
                for wire in wires:
                    wire.call(ApiKey.API_VERSIONS, 0, {})
            else:
                given = [_tokens(case, bearer) for _ in wires]
                for wire, (mechanism, _) in zip(wires, given, strict=True):
                    wire.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
                for wire in wires:
                    wire.answer(ApiKey.SASL_HANDSHAKE, 1)
                answers: list[Any] = [None] * len(wires)
                for _ in range(2 if case in HASHES else 1):
                    for wire, (_, tokens), answer in zip(wires, given, answers, strict=True):
                        mine = next(tokens) if answer is None else tokens.send(answer.auth_bytes)
                        wire.ask(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": mine})
                    answers = [wire.answer(ApiKey.SASL_AUTHENTICATE, 1) for wire in wires]
                assert {58 if "wrong" in case else 0} == {answer.error_code for answer in answers}, case
            for wire in wires:
                wire.close()
    return meter.figures(turns * _AT_ONCE)


def bench_login(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys.json"
        keys.write_bytes(jwks(*(jwk(private_key(name), name) for name in TOKENS)))
        bearer = {name: message(token(name, name)) for name in TOKENS}
        broker = BrokerProcess(
            "sasl_enabled_mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            f"sasl_oauthbearer_jwks_endpoint_url=file://{keys}",
            "connection_failed_authentication_delay_ms=0",
            listener="kafka+sasl",
        )
        broker.data_dir.mkdir()
        catalogue = SqliteCatalogue(f"{broker.data_dir}/catalogue.sqlite")
        rows = [make_row(USER, mechanism, PASSWORD, SystemEntropy()) for mechanism in HASHES]
        rows.append(make_row("bob", "SCRAM-SHA-512", PASSWORD, SystemEntropy()))
        catalogue.alter_credentials(rows, [])
        catalogue.close()
        with broker:
            for case in LOGINS:
                _log_in(broker, case, 1, bearer)  # warm
                runs = [_log_in(broker, case, options.count(60), bearer) for _ in range(options.rounds)]
                yield Row(f"login, {case}", medians(runs))


SECTIONS = {"tls": bench_tls, "handshake": bench_handshake, "login": bench_login}
