"""The times of nested calls, and pauses that end in time."""

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


def test_a_call_inside_of_another_has_no_more_time_than_that() -> None:
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


def test_an_error_ends_the_time_of_its_call() -> None:
    limit = Limit(HandClock())
    with pytest.raises(KeyError), limit.within(2000):
        raise KeyError
    assert inf == limit.deadline


def test_a_failure_is_raised_when_there_is_no_time_for_another_try() -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    failure = KafkaClientError("no")
    retry.again(failure)
    clock.now = 100.995
    with pytest.raises(KafkaClientError, match="no"):
        retry.again(failure)


def test_a_failure_is_raised_when_a_pause_has_taken_all_the_time() -> None:
    """As on a busy machine: the next try would fail for want of time, and its error would hide this one."""

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
def test_an_attempt_that_is_cut_off_hides_the_failure_before_it_only_if_it_had_more_time(
    failed_after_s: float, named: str
) -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    clock.now += failed_after_s
    retry.again(KafkaClientError("refused"))
    clock.now = 101.001
    with pytest.raises(KafkaClientError, match=named):
        retry.again(KafkaClientError("no answer in time"))


def test_the_failures_of_a_call_are_not_those_of_the_next_one() -> None:
    clock = HandClock()
    retry = Retry(CONFIG, clock, 1000, Limit(clock))
    clock.now += 0.7
    retry.again(KafkaClientError("refused"))
    retry.begin_another()
    clock.now = 101.001
    with pytest.raises(KafkaClientError, match="no answer in time"):
        retry.again(KafkaClientError("no answer in time"))


def test_a_retry_ends_with_the_call_that_it_is_in_and_can_be_shortened() -> None:
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
