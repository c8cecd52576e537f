"""Signed tokens and the keys by which they are checked, as an identity provider makes them."""

import base64
import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://login.example.com", "broker"


def private_key(algorithm: str = "ES256") -> Any:
    """One for each algorithm, always the same."""
    return _private_key(algorithm)


@cache
def _private_key(kind: str) -> Any:
    if kind.startswith(("RS", "PS")):
        return rsa.generate_private_key(65537, 2048)
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[kind])


def jwk(key: Any, kid: str | None = "key-1", **members: Any) -> dict[str, Any]:
    algorithm = jwt.PyJWK(json.loads(_to_jwk(key))).Algorithm
    entry = json.loads(algorithm.to_jwk(key.public_key()))
    return entry | ({"kid": kid} if kid else {}) | members


def _to_jwk(key: Any) -> str:
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm = next((each for kind, each in kinds.items() if isinstance(key, kind)), OKPAlgorithm)
    return str(algorithm.to_jwk(key.public_key()))


def jwks(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": entries}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Valid ones; None takes a claim away."""
    now = int(time.time())
    valid = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, "scope": "read write"}
    return {name: value for name, value in (valid | changes).items() if value is not None}


def token(algorithm: str = "ES256", kid: str | None = "key-1", key: Any = None, **changes: Any) -> str:
    headers = {"kid": kid} if kid else {}
    return jwt.encode(claims(**changes), key or private_key(algorithm), algorithm, headers)


def unsigned(header: Any, payload: Any, signature: bytes = b"") -> str:
    """Anything in the form of a token."""
    parts = [header if isinstance(header, bytes) else json.dumps(header).encode()]
    parts += [payload if isinstance(payload, bytes) else json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def message(token: str, authzid: str = "", **extensions: str) -> bytes:
    """A client's first message."""
    pairs = "".join(f"{name}={value}\x01" for name, value in extensions.items())
    user = f"a={authzid}" if authzid else ""
    return f"n,{user},\x01auth=Bearer {token}\x01{pairs}\x01".encode()
