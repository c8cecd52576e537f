"""What a login costs the broker, by mechanism: ``python -m tests.bench.security [--count 1000] [--at-once 16]``.

The client logs in on so many connections at once, in steps, and computes its password only once, so that it costs less than the
broker. CPU is the broker's, with accepting and closing the connection; "no login" is that alone, with one request.
"""

import argparse
import base64
import hashlib
import hmac
import json
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import make_row
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.bench.process import BrokerProcess
from tests.tokens import jwk, jwks, message, private_key, token

USER, PASSWORD = "alice", "secret"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
CASES = [
    "no login",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "PLAIN",
    "PLAIN of SHA-512",
    "PLAIN, wrong user",
    "ES256",
    "RS256",
]


class SaslProcess(BrokerProcess):
    listener = "kafka+sasl://127.0.0.1:0"

    def add_users(self) -> None:
        data = Path(self._directory.name) / "data"
        data.mkdir()
        catalogue = SqliteCatalogue(f"{data}/catalogue.sqlite")
        rows = [make_row(USER, mechanism, PASSWORD, SystemEntropy()) for mechanism in HASHES]
        rows.append(make_row("bob", "SCRAM-SHA-512", PASSWORD, SystemEntropy()))
        catalogue.alter_credentials(rows, [])
        catalogue.close()


@cache
def salted(algorithm: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(algorithm, PASSWORD.encode(), salt, iterations)


def scram(algorithm: str) -> Iterator[bytes]:
    """Yields tokens and is sent the broker's."""
    bare = f"n={USER},r=nonce"
    challenge = (yield f"n,,{bare}".encode()).decode()  # type: ignore[misc]
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    key = hmac.digest(salted(algorithm, base64.b64decode(fields["s"]), int(fields["i"])), b"Client Key", algorithm)
    without = f"c=biws,r={fields['r']}"
    stored = hashlib.new(algorithm, key).digest()
    signature = hmac.digest(stored, f"{bare},{challenge},{without}".encode(), algorithm)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    yield f"{without},p={base64.b64encode(proof).decode()}".encode()


def tokens(case: str, bearer: dict[str, bytes]) -> tuple[str, Any]:
    """The mechanism, and its tokens."""
    if case in HASHES:
        return case, scram(HASHES[case])
    if case in bearer:
        return "OAUTHBEARER", iter([bearer[case]])
    user = {"PLAIN": USER, "PLAIN of SHA-512": "bob"}.get(case, "nobody")
    return "PLAIN", iter([f"\0{user}\0{PASSWORD}".encode()])


class Client:
    def __init__(self, address: tuple[str, int], case: str, bearer: dict[str, bytes]) -> None:
        self.socket = socket.create_connection(address)
        self._mechanism, self._tokens = tokens(case, bearer)
        self._answer: bytes | None = None

    def send(self, step: int) -> None:
        if step == 0:
            self._ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=self._mechanism)
        else:
            given = self._tokens.send(self._answer) if self._mechanism in HASHES else next(self._tokens)
            self._ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=given)

    def receive(self, step: int) -> int:
        frame = self._frame()
        if step == 0:
            return 0
        answer = control.parse_response(ApiKey.SASL_AUTHENTICATE, 1, frame)[1]
        self._answer = answer.auth_bytes
        return int(answer.error_code)

    def versions(self) -> None:
        self._ask(ApiKey.API_VERSIONS, 0)
        self._frame()

    def _ask(self, key: ApiKey, version: int, **fields: Any) -> None:
        self.socket.sendall(control.encode_request(key, version, 7, "bench", fields))

    def _frame(self) -> bytes:
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            piece = self.socket.recv(65536)
            assert piece, "the broker closed the connection"
            data += piece
        return data


def run(broker: SaslProcess, case: str, count: int, at_once: int, bearer: dict[str, bytes]) -> dict[str, float]:
    host, port = broker.address.rsplit(":", 1)
    steps = 3 if case in HASHES else 2
    expected = 58 if "wrong" in case else 0
    cpu, began = broker.cpu_s(), time.perf_counter()
    for _ in range(count // at_once):
        clients = [Client((host, int(port)), case, bearer) for _ in range(at_once)]
        if case == "no login":
            for client in clients:
                client.versions()
        else:
            for step in range(steps):
                for client in clients:
                    client.send(step)
                codes = [client.receive(step) for client in clients]
            assert codes == [expected] * at_once, codes
        for client in clients:
            client.socket.close()
    took = time.perf_counter() - began
    done = count // at_once * at_once
    return {"logins/s": done / took, "broker us/login": (broker.cpu_s() - cpu) / done * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys.json"
        keys.write_bytes(jwks(jwk(private_key("ES256"), "ES256"), jwk(private_key("RS256"), "RS256")))
        bearer = {name: message(token(name, name)) for name in ("ES256", "RS256")}
        broker = SaslProcess(
            "sasl_enabled_mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            f"sasl_oauthbearer_jwks_endpoint_url=file://{keys}",
            "connection_failed_authentication_delay_ms=0",
        )
        broker.add_users()
        with broker:
            for case in CASES:
                run(broker, case, 2 * arguments.at_once, arguments.at_once, bearer)  # warm
                figures = results[case] = run(broker, case, arguments.count, arguments.at_once, bearer)
                print(
                    f"{case:24} {figures['logins/s']:8.0f} logins/s {figures['broker us/login']:8.0f} us CPU of the broker"
                )
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
