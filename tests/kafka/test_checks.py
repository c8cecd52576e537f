"""What the administrative handlers share: repeated names, deadlines, epochs, replicas."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import RequestError, StorageError
from broker.kafka.checks import change_together, check_leader_epoch, check_replicas, check_time, deadline_of, repeated
from broker.network.work import Abandoned, Work
from protocol.kafka.errors import ErrorCode


def context(now: float = 0.0, nodes: Any = None, logs: Any = None) -> Any:
    return SimpleNamespace(node_id=1, clock=SimpleNamespace(monotonic=lambda: now), nodes=nodes, logs=logs)


def test_repeated_are_those_that_occur_more_than_once() -> None:
    assert repeated(["a", "b", "a", "c", "b", "a"]) == {"a", "b"}
    assert repeated([]) == set()


@pytest.mark.parametrize(("seconds", "deadline"), [(2, 12.0), (0, inf), (-1, inf)])
def test_timeout_of_zero_or_less_is_infinite(seconds: float, deadline: float) -> None:
    call: Any = SimpleNamespace(received_at=10.0)
    assert deadline_of(call, timedelta(seconds=seconds)) == deadline


def test_late_change_is_not_made() -> None:
    wanted, unwanted = Work(lambda: False), Work(lambda: True)
    check_time(context(9.9), wanted, 10.0)
    with pytest.raises(RequestError) as late:
        check_time(context(10.0), wanted, 10.0)
    assert late.value.code == ErrorCode.request_timed_out
    with pytest.raises(Abandoned):
        check_time(context(10.0), unwanted, 10.0)


@pytest.mark.parametrize(
    ("known", "code"),
    [(-1, None), (5, None), (4, ErrorCode.fenced_leader_epoch), (6, ErrorCode.unknown_leader_epoch)],
)
def test_other_leader_epoch_is_refused(known: int, code: ErrorCode | None) -> None:
    log: Any = SimpleNamespace(leader_epoch=5)
    if code is None:
        check_leader_epoch(log, known)
        return
    with pytest.raises(RequestError) as refused:
        check_leader_epoch(log, known)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("replicas", "message"), [([1, 2], "There is no broker 2"), ([1, 1], "more than once"), ([], "at least one")]
)
def test_a_partition_is_assigned_to_this_broker_once(replicas: list[int], message: str) -> None:
    check_replicas(context(), [1])
    with pytest.raises(RequestError, match=message) as refused:
        check_replicas(context(), replicas)
    assert refused.value.code == ErrorCode.invalid_replica_assignment


def test_a_partition_is_assigned_to_any_of_several_brokers_once() -> None:
    cluster = context(nodes=SimpleNamespace(node_ids=range(1, 4)))
    for replicas in ([3], [2, 1], [1, 2, 3]):
        check_replicas(cluster, replicas)
    for replicas, message in (([3, 4], "brokers 1, 2, 3"), ([2, 2], "Broker 2 is given more than once"), ([], "one")):
        with pytest.raises(RequestError, match=message):
            check_replicas(cluster, replicas)


def test_topics_that_cannot_be_begun_with_are_told_and_the_next_ones_are_tried() -> None:
    failing = [False, True, False]

    @contextmanager
    def together() -> Iterator[None]:
        if failing.pop(0):
            raise StorageError("another node is changing topics")
        yield

    changed: list[int] = []
    logs = SimpleNamespace(together=together)
    failed = [
        (list(some), str(error)) for some, error in change_together(context(logs=logs), range(120), changed.append)
    ]
    assert [(list(range(50, 100)), "another node is changing topics")] == failed
    assert [*range(50), *range(100, 120)] == changed
