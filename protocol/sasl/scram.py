"""Both sides of SCRAM (RFC 5802, RFC 7677) as Kafka uses it: SHA-256 and SHA-512, without channel binding.

Like Kafka, this module uses user names and passwords as UTF-8 without preparing them (SASLprep). The server's messages are at
most ``MESSAGE_MAX_BYTES`` long, which bounds the memory of an unfinished exchange. An exchange is used by one thread at a time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from protocol.errors import ProtocolError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# More iterations would only keep the client busy: Kafka's default is 4096, and 600,000 are recommended for
# passwords in web forms.
MAX_ITERATIONS = 10_000_000
MIN_ITERATIONS = 4096  # RFC 7677, and Kafka's own lower bound


class ScramClient:
    """An exchange: send ``first()``, then ``final(answer)``, then pass the second answer to ``verify``."""

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


# A user name of USER_MAX_BYTES, each byte escaped by three bytes, and 1 KiB for the nonce and the rest.
USER_MAX_BYTES = 1000
MESSAGE_MAX_BYTES = 4096

# GS2 header with the authorization id, the user name, the nonce, and optional extensions. "y" is from a client that supports
# channel binding and believes that the server does not, which is true.
_FIRST = re.compile(
    r"(?P<gs2>(?P<flag>[ny]),(?:a=(?P<authzid>[^,\0]+))?,)"
    r"(?P<bare>n=(?P<user>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-ln-z][A-Za-z]*=[^,\0]+)*)"
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<channel>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-ln-z][A-Za-z]*=[^,\0]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)
_ESCAPED = re.compile(r"=(2C|3D)?")


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword, which clients compute from a password. Takes milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def salted_bytes(mechanism: str) -> int:
    """The length of a salted password, and of the keys."""
    return hashlib.new(HASHES[mechanism]).digest_size


def stored_keys(mechanism: str, salted: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey of a salted password, which a server keeps."""
    algorithm = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    return hashlib.new(algorithm, client_key).digest(), hmac.digest(salted, b"Server Key", algorithm)


class ScramServer:
    """An exchange: ``user = first(message)``, ``challenge(...)``, ``final(message)``."""

    __slots__ = ("_first_bare", "_gs2", "_hash", "_nonce", "_server_first", "_server_key", "_stored_key")

    def __init__(self, mechanism: str) -> None:
        self._hash = HASHES[mechanism]

    def __repr__(self) -> str:
        return f"ScramServer({self._hash})"

    def first(self, message: bytes) -> str:
        """The user's name. Raises ProtocolError, also where the client asks to act as another user."""
        match = _FIRST.fullmatch(_scram_server_text(message))
        if match is None:
            raise ProtocolError("a first SCRAM message that cannot be read")
        user = _unescaped(match["user"])
        if len(user.encode()) > USER_MAX_BYTES:
            raise ProtocolError("a user name that is too long")
        if match["authzid"] is not None and _unescaped(match["authzid"]) != user:
            raise ProtocolError("an authorization id that is not the user's name")
        self._gs2, self._first_bare, self._nonce = match["gs2"], match["bare"], match["nonce"]
        return user

    def challenge(self, salt: bytes, iterations: int, stored_key: bytes, server_key: bytes, nonce: str) -> bytes:
        """The answer to the first message. ``nonce``: random, used once."""
        self._nonce += nonce
        self._stored_key, self._server_key = stored_key, server_key
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes | None:
        """The answer to the last message, or None if the client does not know the password. Raises ProtocolError."""
        match = _FINAL.fullmatch(_scram_server_text(message))
        if match is None:
            raise ProtocolError("a last SCRAM message that cannot be read")
        # librdkafka before 2.6.1 repeats its own nonce in front of the whole nonce. As in Kafka, the end decides; the proof signs
        # the broker's nonce in any case.
        is_of_this_exchange = match["nonce"].endswith(self._nonce)
        if match["channel"] != base64.b64encode(self._gs2.encode()).decode() or not is_of_this_exchange:
            raise ProtocolError("a last SCRAM message of another exchange")
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError("a proof that is not base64") from None
        signed = f"{self._first_bare},{self._server_first},{match['without_proof']}".encode()
        signature = hmac.digest(self._stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise ProtocolError("a proof of another length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._server_key, signed, self._hash))


def _scram_server_text(message: bytes) -> str:
    if len(message) > MESSAGE_MAX_BYTES:
        raise ProtocolError("a SCRAM message that is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a SCRAM message that is not UTF-8") from None


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is None:
            raise ProtocolError("a user name with an equals sign that is not escaped")
        return "," if match[1] == "2C" else "="

    return _ESCAPED.sub(character, text)
