"""The time limits of nested calls, and pauses within them."""

from math import inf

import attrs
import pytest

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.connection import Limit, Retry
from broker.client.kafka.errors import KafkaClientError
from broker.runtime.clock import SystemClock

CONFIG = ClientConfig((("localhost", 9092),), retry_backoff_ms=1, retry_backoff_max_ms=4)


class HandClock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_nested_call_has_no_more_time() -> None:
    limit = Limit(HandClock())
    assert inf == limit.deadline
    with limit.within(2000):
        assert 102.0 == limit.deadline
        with limit.within(5000):
            assert 102.0 == limit.deadline
        with limit.until(101.0):
            assert 101.0 == limit.deadline
        assert 102.0 == limit.deadline
    assert inf == limit.deadline


def test_error_ends_the_time_of_its_call() -> None:
    limit = Limit(HandClock())
    with pytest.raises(KeyError), limit.within(2000):
        raise KeyError
    assert inf == limit.deadline


def test_failure_without_time_for_retry_is_raised() -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    failure = KafkaClientError("no")
    retry.again(failure)
    clock.now = 100.995
    with pytest.raises(KafkaClientError, match="no"):
        retry.again(failure)


def test_failure_after_too_long_pause_is_raised() -> None:
    """As on a busy machine: the next try would fail for lack of time, and its error would hide the previous error."""

    class SlowMachine(HandClock):
        def monotonic(self) -> float:
            self.now += 0.6
            return self.now

    clock = SlowMachine()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    with pytest.raises(KafkaClientError, match="refused"):
        retry.again(KafkaClientError("refused"))


@pytest.mark.parametrize(
    ("failed_after_s", "named"), [(0.7, "refused"), (0.1, "no answer in time")], ids=["short", "long"]
)
def test_cut_off_attempt_hides_only_shorter_attempts_failures(failed_after_s: float, named: str) -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    clock.now += failed_after_s
    retry.again(KafkaClientError("refused"))
    clock.now = 101.001
    with pytest.raises(KafkaClientError, match=named):
        retry.again(KafkaClientError("no answer in time"))


def test_failures_of_a_call_do_not_outlive_it() -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    clock.now += 0.7
    retry.again(KafkaClientError("refused"))
    retry.begin_another()
    clock.now = 101.001
    with pytest.raises(KafkaClientError, match="no answer in time"):
        retry.again(KafkaClientError("no answer in time"))


def test_retry_ends_with_its_call_and_can_shorten() -> None:
    clock = HandClock()
    limit = Limit(clock)
    with limit.within(500):
        assert 100.5 == Retry(CONFIG, clock, 1000, limit).deadline
    retry = Retry(CONFIG, clock, 1000, limit)
    retry.shorten(2000)
    assert 101.0 == retry.deadline
    retry.shorten(300)
    assert 100.3 == retry.deadline


def test_no_backoff_is_a_short_pause_that_grows() -> None:
    clock = HandClock()
    retry = Retry(attrs.evolve(CONFIG, retry_backoff_ms=0), clock, 1000, Limit(clock))
    for expected in (0.0, 0.001, 0.002, 0.004, 0.004):
        assert expected == retry._pause_s
        retry.again(KafkaClientError("no"))
