"""The client's side of SCRAM (RFC 5802), message by message, so that a test can send what no proper client would.

The salted password is remembered: it takes milliseconds, and simulated clients log in often.
"""

import base64
import functools
import hashlib
import hmac

import attrs

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@functools.cache
def _salted(name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)


@attrs.define
class ScramClient:
    """``first()``, then ``final(server_first)``, then ``is_genuine(server_final)``."""

    mechanism: str
    user: str
    password: str
    nonce: str  # of the client
    server_signature: bytes = b""

    @property
    def _bare(self) -> str:
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self.nonce}"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes, *, nonce: str | None = None) -> bytes:
        """``nonce``: in the place of the server's."""
        text = server_first.decode()
        fields = dict(field.split("=", 1) for field in text.split(","))
        digest = _HASHES[self.mechanism]
        salted = _salted(digest, self.password, base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        without_proof = f"c=biws,r={nonce or fields['r']}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def is_genuine(self, server_final: bytes) -> bool:
        """The server knows the password, too."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)


def stored_keys(mechanism: str, password: str, salt: bytes, iterations: int = 4096) -> tuple[bytes, bytes]:
    """What a server keeps of a password: the stored key and the server key."""
    digest = _HASHES[mechanism]
    salted = _salted(digest, password, salt, iterations)
    return (
        hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest(),
        hmac.digest(salted, b"Server Key", digest),
    )
