"""The public keys by which tokens are checked: a JWKS (RFC 7517) of a file or a URL, read again from time to time.

Nobody waits for the server that has it: a fetch runs on a thread of its own (``runtime/web.py``), one at a time, and until it has
ended the keys that there are stay in use. They also stay if it fails. A token with an unknown key id asks for a fetch, at most
once in ``_UNKNOWN_EVERY_S``. Any thread may look a key up.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.runtime.web import Fetcher

log = get_logger("security")

# A JWKS has a few keys of 1 KiB each.
MAX_BYTES = 1024 * 1024
_KEYS_MAX = 200
TIMEOUT_S = 10.0
# Clients may send tokens with key ids that they have made up.
_UNKNOWN_EVERY_S = 10.0
_RSA_BITS_MIN = 2048

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_OF_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_OF_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_OF_ED25519 = frozenset({"EdDSA"})
# Asymmetric ones only: with a symmetric algorithm, everybody who has the public key could sign.
ALGORITHMS = _OF_RSA | _OF_ED25519 | frozenset(_OF_CURVE.values())


@attrs.frozen
class Key:
    """``algorithms``: those by which this key may have signed."""

    kid: str | None
    public: PublicKey = attrs.field(repr=False)
    algorithms: frozenset[str]


def parse_jwks(content: bytes) -> list[Key]:
    """The keys for signatures. Those of other kinds are left out, as well as RSA keys that are too short. Raises ValueError if
    none is left."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of keys")
    if len(entries) > _KEYS_MAX:
        raise ValueError(f"it has more than {_KEYS_MAX} keys")
    keys = [key for key in map(_parse_key, entries) if key is not None]
    if not keys:
        raise ValueError("it has no public key that can be used")
    return keys


def _parse_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
        return None
    kid, declared = entry.get("kid"), entry.get("alg")
    try:
        key = jwt.PyJWK(entry).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if hasattr(key, "public_key"):  # a private key: what is needed of it is public
        key = key.public_key()
    algorithms = _algorithms_of(key)
    if isinstance(declared, str):
        algorithms &= {declared}
    return Key(kid if isinstance(kid, str) else None, key, algorithms) if algorithms else None


def _algorithms_of(key: Any) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        return _OF_RSA if key.key_size >= _RSA_BITS_MIN else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        return frozenset({_OF_CURVE[key.curve.name]} if key.curve.name in _OF_CURVE else ())
    return _OF_ED25519 if isinstance(key, Ed25519PublicKey) else frozenset()


@attrs.frozen
class Schedule:
    """Seconds: between two fetches, and after one that has failed, at first and at most."""

    refresh_s: float
    backoff_s: float
    backoff_max_s: float


class KeySet:
    def __init__(self, url: str, schedule: Schedule, fetcher: Fetcher, clock: Clock, timer: Timer) -> None:
        self.url = url
        self._schedule = schedule
        self._fetcher = fetcher
        self._clock = clock
        self._timer = timer
        self._keys: Mapping[str | None, list[Key]] = {}
        self._lock = Lock()  # for what follows
        self._fetching = False
        self._turn = 0  # of the timer; older ones have been called off
        self._failures = 0
        self._unknown_at = -_UNKNOWN_EVERY_S

    def use(self, content: bytes) -> None:
        """Use these keys from now on. Raises ValueError and keeps those that there are."""
        keys: dict[str | None, list[Key]] = {}
        for key in parse_jwks(content):
            keys.setdefault(key.kid, []).append(key)
        self._keys = keys

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key that may have signed with this algorithm. Without ``kid``: the only one that may.

        None if there is none; if there is none with this ``kid``, the keys will be fetched."""
        known = self._keys
        candidates = known.get(kid, []) if kid is not None else [key for keys in known.values() for key in keys]
        fitting = [key for key in candidates if algorithm in key.algorithms]
        if kid is not None and not candidates:
            self._ask()
        return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None

    def begin(self) -> None:
        """Fetch now, if no fetch is going on. Does not wait."""
        with self._lock:
            if self._fetching:
                return
            self._fetching = True
            self._turn += 1
        self._fetcher.start(self.url, TIMEOUT_S, MAX_BYTES, self._fetched)

    def begin_later(self) -> None:
        """Fetch after the usual time."""
        self._again_after(self._schedule.refresh_s)

    def _ask(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now < self._unknown_at + _UNKNOWN_EVERY_S:
                return
            self._unknown_at = now
        self.begin()

    def _fetched(self, found: bytes | OSError) -> None:
        """On the fetcher's thread."""
        error: Exception | None = None
        if isinstance(found, OSError):
            error = found
        else:
            try:
                self.use(found)
            except ValueError as invalid:
                error = invalid
        with self._lock:
            self._fetching = False
            self._failures = self._failures + 1 if error else 0
            failures = self._failures
        if error is None:
            self._again_after(self._schedule.refresh_s)
            return
        if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... in a row
            log.warning("jwks_failed", url=self.url, failures=failures, error=str(error))
        delay_s = self._schedule.backoff_s * 2 ** min(failures - 1, 30)
        self._again_after(min(delay_s, self._schedule.backoff_max_s))

    def _again_after(self, seconds: float) -> None:
        with self._lock:
            self._turn += 1
            turn = self._turn

        def begin() -> None:
            if turn == self._turn:
                self.begin()

        self._timer.at(self._clock.monotonic() + seconds, begin)
