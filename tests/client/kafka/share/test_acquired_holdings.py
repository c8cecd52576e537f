"""The records that a broker has locked for a consumer."""

from math import inf
from uuid import UUID

from broker.client.kafka.share.acquired import ACCEPT, RELEASE, RENEW, AcquiredRange, Holdings, RecordState, Settled

JOBS, MORE = (UUID(int=1), 0), (UUID(int=2), 3)


def held(first: int, last: int, partition: tuple[UUID, int] = JOBS, until: float = 30.0) -> AcquiredRange:
    made = AcquiredRange("jobs" if partition == JOBS else "more", partition, first, last, 1, until)
    for offset in made:
        made.received(offset)
        made.deliver(offset)
    return made


def holdings(*ranges: AcquiredRange) -> Holdings:
    made = Holdings()
    made.lock_s = 30.0
    made.add(ranges)
    return made


def test_decisions_go_and_errors_come_by_partition() -> None:
    made = holdings(held(0, 4), held(10, 14), held(0, 0, MORE))
    made.accept_delivered()
    assert made.partitions_with_pending() == [JOBS, MORE]
    accept = bytes([ACCEPT])
    assert made.send([JOBS]) == {JOBS: [(0, 4, accept), (10, 14, accept)]}
    assert made.send() == {MORE: [(0, 0, accept)]}
    assert made.send() == {}
    assert made.settle(lambda partition: 121 if partition == MORE else 0) == [
        Settled("jobs", 0, ((0, 4, accept), (10, 14, accept)), 0),
        Settled("more", 3, ((0, 0, accept),), 121),
    ]
    assert not made
    assert made.count() == 0


def test_decision_during_request_waits_for_next_request() -> None:
    jobs = held(0, 1)
    made = holdings(jobs)
    jobs.decide(0, ACCEPT)
    made.send()
    jobs.decide(1, RELEASE)
    assert [settled.batches for settled in made.settle(lambda _: 0)] == [((0, 0, bytes([ACCEPT])),)]
    assert made.send() == {JOBS: [(1, 1, bytes([RELEASE]))]}


def test_redelivered_record_is_no_longer_held_twice() -> None:
    first, again = held(0, 3), held(2, 5)
    made = holdings(first)
    made.add([again])
    assert not first.decide(2, ACCEPT)
    assert first.decide(1, ACCEPT)
    assert again.decide(2, ACCEPT)
    assert made.send() == {JOBS: [(1, 1, bytes([ACCEPT])), (2, 2, bytes([ACCEPT]))]}


def test_locks_are_renewed_at_half_their_time() -> None:
    soon, later = held(0, 1, until=30.0), held(5, 6, until=40.0)
    made = holdings(soon, later)
    assert made.next_renewal_at() == 15.0
    assert made.renewals(14.9, automatic=True) == {}
    due = made.renewals(15.0, automatic=True)
    assert due == {JOBS: [(0, 1, bytes([RENEW]))]}
    made.renewed(due, 45.0)
    assert (soon.expires_at, later.expires_at) == (45.0, 40.0)
    assert made.next_renewal_at() == 25.0
    made.accept_delivered()
    assert made.next_renewal_at() == inf


def test_expired_locks_are_forgotten_unless_in_flight() -> None:
    jobs = held(0, 2, until=30.0)
    made = holdings(jobs)
    jobs.decide(0, ACCEPT)
    made.send()
    jobs.decide(1, ACCEPT)
    made.expire(59.9)
    assert jobs.state(1) is RecordState.PENDING_ACCEPT
    made.expire(60.0)
    assert jobs.state(1) is jobs.state(2) is RecordState.SETTLED
    assert made.count() == 3
    made.settle(lambda _: 0)
    assert made.count() == 0
