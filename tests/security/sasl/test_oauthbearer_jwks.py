"""Which keys of a JWKS are used, and when they are fetched again, on a simulated clock."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from broker.runtime.timers import Timer
from broker.runtime.web import Done
from broker.security.sasl.oauthbearer import KeySet, Schedule, parse_jwks
from tests.tokens import jwk, jwks, private_key

SCHEDULE = Schedule(refresh_s=3600, backoff_s=0.1, backoff_max_s=10)


class World:
    """A clock, a timer, and fetches that end when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer = Timer(self)  # type: ignore[arg-type]
        self.waiting: list[Done] = []
        self.keys = KeySet("https://x/", SCHEDULE, self, self, self.timer)  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.now

    def start(self, url: str, timeout: float, max_bytes: int, done: Done) -> None:
        assert ("https://x/", True) == (url, timeout <= 10)
        self.waiting.append(done)

    def answer(self, what: bytes | OSError) -> None:
        (done,) = self.waiting
        self.waiting = []
        done(what)

    def after(self, seconds: float) -> bool:
        """Let the time pass. Whether a fetch goes on now."""
        self.now += seconds
        self.timer.step(0)
        return bool(self.waiting)


ONE, OTHER = jwks(jwk(private_key(), "one")), jwks(jwk(private_key(), "other"))


def test_keys_are_fetched_at_once_and_refreshed() -> None:
    world = World()
    world.keys.begin()
    assert world.keys.find("one", "ES256") is None
    world.answer(ONE)
    assert world.keys.find("one", "ES256")
    assert not world.after(3599)
    assert world.after(1)
    world.answer(OTHER)
    assert world.keys.find("other", "ES256")
    assert not world.after(3599)


@pytest.mark.parametrize("answer", [OSError("refused"), b"", b"{}", jwks(), b"\xff", b"[" * 100_000])
def test_failed_fetch_keeps_keys_and_backs_off(answer: bytes | OSError) -> None:
    world = World()
    world.keys.begin()
    world.answer(ONE)
    world.after(3600)
    for delay in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10):
        world.answer(answer)
        assert not world.after(delay - 0.01)
        assert world.after(0.02)
        assert world.keys.find("one", "ES256")
    world.answer(OTHER)
    assert world.keys.find("other", "ES256")
    assert not world.after(3599)
    assert world.after(1)


def test_unknown_key_starts_a_fetch_occasionally() -> None:
    world = World()
    world.keys.use(ONE)
    world.keys.begin_later()
    for _ in range(100):
        assert world.keys.find("other", "ES256") is None
    assert 1 == len(world.waiting)
    world.answer(OTHER)
    assert world.keys.find("other", "ES256")
    world.after(9)
    assert world.keys.find("made-up", "ES256") is None
    assert not world.waiting
    world.after(1)
    assert world.keys.find("made-up", "ES256") is None
    assert world.waiting


def test_hanging_server_blocks_fetches_and_keys_stay() -> None:
    world = World()
    world.keys.use(ONE)
    world.keys.begin()
    for _ in range(100):
        world.after(60)
        assert world.keys.find("one", "ES256")
        world.keys.find("made-up", "ES256")
        assert 1 == len(world.waiting)


def test_key_id_with_another_algorithm_fetches_nothing() -> None:
    world = World()
    world.keys.use(ONE)
    assert world.keys.find("one", "RS256") is None
    assert not world.waiting


def test_entries_without_signature_key_are_left_out() -> None:
    usable = jwk(private_key(), "good")
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
    others: list[Any] = [
        secret,
        jwk(private_key(), "encryption", use="enc"),
        jwk(private_key(), "wrong", alg="RS256"),
        jwk(private_key(), "symmetric", alg="HS256"),
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "RSA", "kid": "broken", "n": 5, "e": "AQAB"},
        {"kty": []},
        {},
        None,
        5,
        "x",
        [],
    ]
    assert ["good"] == [key.kid for key in parse_jwks(jwks(*others, usable))]
    with pytest.raises(ValueError, match="no public key"):
        parse_jwks(jwks(*others))


def test_private_key_is_reduced_to_its_public_half() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (parsed,) = parse_jwks(jwks(ECAlgorithm.to_jwk(key, as_dict=True)))
    assert parsed.public.public_numbers() == key.public_key().public_numbers()  # type: ignore[union-attr]


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 200 keys"):
        parse_jwks(jwks(*[jwk(private_key())] * 201))


@given(st.binary(max_size=100))
def test_any_bytes_are_keys_or_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_jwks(content)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["kty", "crv", "x", "y", "n", "e", "d", "kid", "alg", "use"]), _json))
def test_a_spoiled_key_is_used_or_left_out(members: dict[str, Any]) -> None:
    for base in (jwk(private_key()), jwk(private_key("RS256")), jwk(private_key("EdDSA"))):
        try:
            parse_jwks(jwks(base | members))
        except ValueError:
            pass
