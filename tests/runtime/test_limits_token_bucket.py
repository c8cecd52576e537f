"""The arithmetic of quotas: against a slow model in fractions, and how exactly a busy client gets its quota."""

import random
from collections.abc import Callable
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.limits import TokenBucket
from broker.security.client_quotas import Windows
from tests.loops import loop_over


class Model:
    """Every millisecond by itself: a step of the quota flows in, up to what the bucket holds."""

    def __init__(self, ahead_ms: int, debt_ms: float) -> None:
        self.ahead_ms, self.debt_ms = ahead_ms, debt_ms
        self.tokens: Fraction | None = None  # None: full, whatever the first quota is
        self.now_ms = 0

    def pass_ms(self, elapsed_ms: int, quota_per_ms: Fraction) -> None:
        for _ in range(elapsed_ms):
            if self.tokens is not None:
                self.tokens += quota_per_ms
                self._spill(quota_per_ms)
        self.now_ms += elapsed_ms

    def _spill(self, quota_per_ms: Fraction) -> Fraction:
        full = quota_per_ms * self.ahead_ms
        self.tokens = full if self.tokens is None else min(self.tokens, full)
        return self.tokens

    def take(self, count: int, quota_per_ms: Fraction) -> Fraction:
        """Until when it is to be throttled (ms)."""
        self.tokens = self._spill(quota_per_ms) - count
        if -self.tokens > self.debt_ms * quota_per_ms:
            self.tokens = -Fraction(self.debt_ms) * quota_per_ms
        return max(Fraction(0), -self.tokens / quota_per_ms)


QUOTAS = st.sampled_from([Fraction(1, 100), Fraction(1), Fraction(250), Fraction(10**6)])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take_unless_in_debt", "look"]),
        st.integers(0, 400),
        st.integers(0, 100_000),
        QUOTAS,
    ),
    max_size=30,
)


@given(ahead_ms=st.sampled_from([0, 200, 11_000]), debt_ms=st.sampled_from([inf, 11_000]), steps=STEPS)
def test_tokens_flow_in_continuously(
    ahead_ms: int, debt_ms: float, steps: list[tuple[str, int, int, Fraction]]
) -> None:
    model, bucket = Model(ahead_ms, debt_ms), TokenBucket(ahead_ms / 1000, debt_ms / 1000)
    for what, elapsed_ms, count, quota in steps:
        model.pass_ms(elapsed_ms, quota)
        now, per_s = 50_000 + model.now_ms / 1000, float(quota * 1000)
        expected_ms = model.take(0, quota)
        if what == "look":
            got_s = bucket.take(0, per_s, now)
        elif what == "take":
            expected_ms = model.take(count, quota)
            got_s = bucket.take(count, per_s, now)
        else:
            got_s = bucket.take_unless_in_debt(count, per_s, now)
            # At the very moment at which the debt is paid, the one may see a rest of it that the other does not.
            if not got_s:
                model.take(count, quota)
                assert expected_ms < 1e-3
                continue
        assert got_s * 1000 == pytest.approx(float(expected_ms), rel=1e-6, abs=1e-3)


def test_new_bucket_is_full_and_idle() -> None:
    bucket = TokenBucket(11.0)
    assert bucket.idle(100.0)
    assert bucket.tokens(5.0, 100.0) == 55.0
    assert bucket.take(60, 5.0, 100.0) == 1.0
    assert not bucket.idle(111.9)
    assert bucket.idle(112.0)
    assert bucket.tokens(5.0, 500.0) == 55.0


def test_overdraft_is_allowed_without_a_debt() -> None:
    bucket = TokenBucket(1.0)
    assert bucket.take_unless_in_debt(300, 100.0, 0.0) == 0.0
    assert bucket.take_unless_in_debt(1, 100.0, 0.5) == 1.5
    assert bucket.take(0, 100.0, 0.5) == 1.5  # what was not taken does not count
    assert bucket.take_unless_in_debt(1, 100.0, 2.0) == 0.0


def test_new_quota_applies_at_once_to_earlier_use() -> None:
    bucket = TokenBucket(0.0)
    assert bucket.take(1000, 100.0, 0.0) == 10.0
    assert bucket.take(0, 1000.0, 0.0) == 1.0
    assert bucket.take(0, 10.0, 0.0) == 100.0


SIZES: list[Callable[[random.Random], int]] = [
    lambda _: 500,
    lambda _: 20_000,
    lambda rnd: rnd.choice([100, 5_000, 20_000]),
    lambda rnd: rnd.randrange(1, 25_000),
]


@loop_over("connections", [1, 10])
@loop_over("size", SIZES)
@loop_over("seed", range(5))
def test_busy_client_gets_its_quota_within_5_percent(
    size: Callable[[random.Random], int], connections: int, seed: int
) -> None:
    """Requests of up to a quarter of a second's quota; each connection sends the next as soon as it is not throttled."""
    rnd, quota, windows = random.Random(seed), 100_000.0, Windows()
    bucket = TokenBucket(windows.ahead_s)
    due = [0.0] * connections
    sent: list[tuple[float, int]] = []
    while (now := min(due)) < 40:
        count = size(rnd) // connections + 1
        sent.append((now, count))
        due[due.index(now)] = now + rnd.random() * 0.001 + bucket.take(count, quota, now)
    for begin in range(0, 300, 7):
        total = sum(count for at, count in sent if begin / 10 <= at < begin / 10 + 10)
        assert total / (10 * quota) == pytest.approx(1, abs=0.05)
