"""A gate in front of a broker that demands a login, over TLS if configured, and then only forwards. With ``lifetime_ms`` a login
counts for that time (KIP-368): the gate takes a further login and closes connections that send anything else later.

A faithful peer for the client's tests: other clients must be able to log in, too (``test_security.py``).
"""

import base64
import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from tests.client.gate import Gate
from tests.kafka_connection import exactly

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ["PLAIN", *HASHES, "OAUTHBEARER"]
ROUNDS = 4096
_LENGTH = struct.Struct(">i")
_UNSUPPORTED_MECHANISM, _FAILED = 33, 58


class Refused(Exception):
    """The login failed."""


class SaslGate(Gate):
    tokens = ("good.token",)  # accepted by OAUTHBEARER

    def __init__(self, users: dict[str, str], context: ssl.SSLContext | None = None, lifetime_ms: int = 0) -> None:
        super().__init__()
        self.let_in = 0
        self.renewed = 0  # further logins on a connection
        self.expired = 0  # connections closed because their login had ended
        self.lifetime_ms = lifetime_ms
        self.seen = bytearray()  # all bytes that clients have sent before their login succeeded
        self._users = users
        self._context = context
        self._target: tuple[str, int] | None = None

    def forward_to(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self.start()

    def forget(self, user: str) -> None:
        self._users = {name: password for name, password in self._users.items() if name != user}

    def serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, Refused):
            client.settimeout(30)
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
                self.sockets.append(client)
            assert self._target is not None
            broker = socket.create_connection(self._target, 30)
            self.sockets.append(broker)
            self._log_in(client, broker, _frame(client))
            self.let_in += 1
            client.settimeout(None)
            broker.settimeout(None)
            self.run(_copy, broker, client)
            if self.lifetime_ms:
                self._forward(client, broker)
            else:
                _copy(client, broker)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()

    # The login ------------------------------------------------------------------------------------------------------

    def _forward(self, client: socket.socket, broker: socket.socket) -> None:
        ends = time.monotonic() + self.lifetime_ms / 1000
        while True:
            frame = _frame(client)
            if parse_request_header(frame).api_key == ApiKey.SASL_HANDSHAKE:
                self._log_in(client, broker, frame)
                self.renewed += 1
                ends = time.monotonic() + self.lifetime_ms / 1000
            elif time.monotonic() > ends:
                self.expired += 1
                raise Refused
            else:
                broker.sendall(frame)

    def _log_in(self, client: socket.socket, broker: socket.socket, frame: bytes) -> None:
        steps: Steps | None = None
        tokens: list[bytes] = []
        while True:
            self.seen += frame
            header = parse_request_header(frame)
            key, version = header.api_key, header.api_version
            fields: dict[str, object]
            if key == ApiKey.API_VERSIONS:
                broker.sendall(frame)
                client.sendall(self._with_sasl(_frame(broker), version))
                frame = _frame(client)
                continue
            request = control.parse_request(key, version, frame[header.body_offset :])
            done = False
            if key == ApiKey.SASL_HANDSHAKE:
                known = request.mechanism in MECHANISMS
                fields = {"error_code": 0 if known else _UNSUPPORTED_MECHANISM, "mechanisms": MECHANISMS}
                steps = self._mechanism(request.mechanism, tokens) if known else None
            else:
                assert key == ApiKey.SASL_AUTHENTICATE, key
                assert steps is not None
                tokens.append(bytes(request.auth_bytes))
                try:
                    fields = {"error_code": 0, "auth_bytes": next(steps)}
                    done = len(tokens) == steps.count
                    if done and version >= 1:
                        fields["session_lifetime"] = self.lifetime_ms
                except Refused as error:
                    fields = {"error_code": _FAILED, "error_message": str(error), "auth_bytes": b""}
            client.sendall(control.encode_response(key, version, header.correlation_id, fields))
            if fields["error_code"] == _FAILED:
                raise Refused
            if done:
                return
            frame = _frame(client)

    def _with_sasl(self, frame: bytes, version: int) -> bytes:
        correlation_id, answer = control.parse_response(ApiKey.API_VERSIONS, version, frame)
        ranges = [
            {"api_key": api.api_key, "min_version": api.min_version, "max_version": api.max_version}
            for api in answer.api_keys
        ]
        ranges += [
            {"api_key": int(key), "min_version": 0, "max_version": most}
            for key, most in ((ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2))
        ]
        fields = {"error_code": answer.error_code, "api_keys": ranges}
        return control.encode_response(ApiKey.API_VERSIONS, version, correlation_id, fields)

    def _mechanism(self, name: str, tokens: list[bytes]) -> "Steps":
        if name == "OAUTHBEARER":
            return Bearer(self.tokens, tokens)
        return Steps(self._plain(tokens), 1) if name == "PLAIN" else Steps(self._scram(HASHES[name], tokens), 2)

    def _plain(self, tokens: list[bytes]) -> Iterator[bytes]:
        _, user, password = tokens[0].decode().split("\0")
        if self._users.get(user) != password:
            raise Refused("Authentication failed: Invalid username or password")
        yield b""

    def _scram(self, algorithm: str, tokens: list[bytes]) -> Iterator[bytes]:
        """RFC 5802, the server's side."""
        channel, _, bare = tokens[0].decode().split(",", 2)
        assert channel == "n"
        first = dict(part.split("=", 1) for part in bare.split(","))
        user = first["n"].replace("=2C", ",").replace("=3D", "=")
        salt, nonce = os.urandom(16), first["r"] + base64.b64encode(os.urandom(9)).decode()
        server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i={ROUNDS}"
        yield server_first.encode()
        without_proof, proof = tokens[1].decode().rsplit(",p=", 1)
        assert without_proof == f"c=biws,r={nonce}"
        salted = hashlib.pbkdf2_hmac(algorithm, self._users.get(user, "?").encode(), salt, ROUNDS)
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        stored_key = hashlib.new(algorithm, client_key).digest()
        signed = f"{bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, algorithm)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if user not in self._users or base64.b64decode(proof) != expected:
            raise Refused("Authentication failed during authentication due to invalid credentials")
        server_key = hmac.digest(salted, b"Server Key", algorithm)
        yield b"v=" + base64.b64encode(hmac.digest(server_key, signed, algorithm))


class Steps:
    """The answers of a mechanism, and their number."""

    def __init__(self, answers: Iterator[bytes], count: int) -> None:
        self._answers = answers
        self.count = count

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._answers)


class Bearer(Steps):
    """RFC 7628: a refusal is an answer, to which the client sends a single byte."""

    def __init__(self, taken: tuple[str, ...], tokens: list[bytes]) -> None:
        super().__init__(iter(()), 1)
        self._taken, self._tokens = taken, tokens

    def __next__(self) -> bytes:
        if len(self._tokens) == 2:
            assert b"\x01" == self._tokens[1]
            raise Refused('{"status":"invalid_token"}')
        start, _, token = self._tokens[0].decode().partition("\x01auth=Bearer ")
        assert "n,," == start
        assert token.endswith("\x01\x01")
        if token[:-2] in self._taken:
            return b""
        self.count = 2
        return b'{"status":"invalid_token"}'


def _frame(sock: socket.socket) -> bytes:
    length = exactly(sock, 4)
    return length + exactly(sock, _LENGTH.unpack(length)[0])


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
