"""The client's side of SCRAM (RFC 5802, RFC 7677) as Kafka uses it: SHA-256 and SHA-512, without channel binding.

Kafka uses user names and passwords as UTF-8 without preparing them (SASLprep), and so does this module.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from protocol.errors import ProtocolError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# More iterations than this can only serve to keep the client busy: Kafka's default is 4096, and 600,000 are recommended for
# passwords in web forms.
MAX_ITERATIONS = 10_000_000
MIN_ITERATIONS = 4096  # RFC 7677, and Kafka's own lower bound


class ScramClient:
    """One exchange: send ``first()``, then ``final(answer)``, then give the second answer to ``verify``."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._server_signature = b""

    def __repr__(self) -> str:
        return f"ScramClient({self._hash})"

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof that the client knows the password. Raises ProtocolError if the server's message cannot be trusted."""
        text = _text(server_first)
        fields = _fields(text)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ProtocolError("the server's nonce does not begin with the client's")
        salt = _base64(fields.get("s", ""))
        iterations = fields.get("i", "")
        is_number = iterations.isascii() and iterations.isdecimal()
        if not is_number or not MIN_ITERATIONS <= int(iterations[:9]) <= MAX_ITERATIONS:
            raise ProtocolError(f"an iteration count of {iterations[:9]!r}")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        signature = self._mac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises ProtocolError unless the server has proved that it knows the password."""
        fields = _fields(_text(server_final))
        if "e" in fields:
            raise ProtocolError(f"the server says {fields['e']!r}")
        if not self._server_signature or not hmac.compare_digest(self._server_signature, _base64(fields.get("v", ""))):
            raise ProtocolError("the server does not know the password either")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a SCRAM message that is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise ProtocolError("a SCRAM message that cannot be read")
        fields.setdefault(name, value)
    if "m" in fields:  # RFC 5802: an extension that the other side must understand
        raise ProtocolError("a SCRAM extension that is not supported")
    return fields


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("a field that is not base64") from None
