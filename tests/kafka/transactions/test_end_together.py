"""One decision for the transactions of several producers, on real logs and a real catalogue: all of them or none of them,
wherever the broker dies."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import Refusal
from broker.kafka.transactions.phases import Phase
from broker.kafka.transactions.transaction import Claim
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.house import Answer, Died, House
from tests.kafka.transactions.test_coordinator import cut_to

T0, T1, IN = ("t", 0), ("t", 1), ("in", 0)
# The first also commits an offset, the last has written nothing.
NAMES = ["lead", "a", "b", "idle"]
Claims = dict[str, Claim]


def write_all(house: House) -> Claims:
    claims = {name: house.init(name=name) for name in NAMES}
    for name, partition in (("a", T0), ("a", T1), ("b", T1)):
        assert house.add(claims[name], partition, name=name) == ErrorCode.none
        house.write(claims[name], partition, name.encode())
    assert house.commit_offset(claims["lead"], IN, 5, name="lead") == ErrorCode.none
    return claims


def ask(house: House, claims: Claims, commit: bool = True) -> Answer:
    return house.ask(house.transactions.end_together, list(claims.items()), commit)


def end(house: House, claims: Claims, commit: bool = True) -> tuple[object, ...]:
    answer = ask(house, claims, commit)
    house.settle()
    (given,) = answer.given
    return given


def what_is_seen(house: House) -> tuple[list[bytes | None], list[bytes | None], int | None]:
    return house.seen(), house.seen("t", 1), house.committed_offset()


NOTHING: tuple[list[bytes | None], list[bytes | None], int | None] = ([], [], None)
ALL: tuple[list[bytes | None], list[bytes | None], int | None] = ([b"a"], [b"a", b"b"], 5)


@pytest.mark.parametrize("commit", [True, False])
def test_all_is_seen_or_nothing_when_it_is_answered(house: House, commit: bool) -> None:
    claims = write_all(house)
    assert what_is_seen(house) == NOTHING
    assert end(house, claims, commit) == (ErrorCode.none, -1)
    assert what_is_seen(house) == (ALL if commit else NOTHING)
    ended = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT
    assert [house.phase(name) for name in NAMES] == [ended, ended, ended, Phase.EMPTY]
    for key in (T0, T1):
        assert house.log(*key).last_stable_offset == house.log(*key).high_watermark


def test_it_is_answered_once_and_only_when_the_last_is_durable(house: House) -> None:
    answer = ask(house, write_all(house))
    while house.turn():
        complete = all(house.catalogue_phase(name) == "CompleteCommit" for name in NAMES[:3])
        assert answer.is_owed or (complete and house.log("t", 1).durable_offset == 4)
    assert answer.given == [(ErrorCode.none, -1)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_request_again_changes_nothing(house: House, commit: bool) -> None:
    claims = write_all(house)
    end(house, claims, commit)
    before = [house.log(*key).log_end_offset for key in (T0, T1)]
    assert end(house, claims, commit) == (ErrorCode.none, -1)
    assert end(house, claims, not commit) == (ErrorCode.invalid_txn_state, 0)
    assert [house.log(*key).log_end_offset for key in (T0, T1)] == before


def test_a_late_copy_of_it_does_not_decide_the_leaders_next_transaction(house: House) -> None:
    claims = write_all(house)
    end(house, claims)
    house.commit_offset(claims["lead"], IN, 6, name="lead")
    assert end(house, claims) == (ErrorCode.invalid_txn_state, 1)
    assert house.phase("lead") is Phase.ONGOING
    assert house.is_unstable()


@pytest.mark.parametrize("commit", [True, False])
def test_one_that_is_fenced_leaves_the_others_as_they_are(house: House, commit: bool) -> None:
    claims = write_all(house)
    house.init(name="b")
    assert end(house, claims, commit) == (ErrorCode.producer_fenced, 2)
    assert what_is_seen(house) == NOTHING
    assert [house.phase(name) for name in ("lead", "a")] == [Phase.ONGOING] * 2
    house.write(claims["a"], T0, b"more")
    del claims["b"]
    assert end(house, claims, commit) == (ErrorCode.none, -1)
    assert house.seen() == ([b"a", b"more"] if commit else [])


def test_one_that_nobody_knows_leaves_the_others_as_they_are(house: House) -> None:
    claims = write_all(house)
    assert end(house, {**claims, "who": Claim(7, 0)}) == (ErrorCode.invalid_producer_id_mapping, 4)
    assert house.phase("a") is Phase.ONGOING


def test_one_whose_time_is_over_leaves_nothing_of_the_others(house: House) -> None:
    claims = write_all(house)
    slow = house.init(name="slow", timeout_ms=1_000)
    house.add(slow, T0, name="slow")
    house.write(slow, T0, b"slow")
    house.wait(2)
    assert end(house, {**claims, "slow": slow}) == (ErrorCode.producer_fenced, 4)
    assert what_is_seen(house) == NOTHING


def test_a_decision_that_cannot_be_made_durable_is_none(house: House) -> None:
    claims = write_all(house)
    house.database.fails = True
    assert end(house, claims) == (ErrorCode.coordinator_not_available, -1)
    assert [house.phase(name) for name in NAMES[:3]] == [Phase.ONGOING] * 3
    house.database.fails = False
    assert end(house, claims) == (ErrorCode.none, -1)
    assert what_is_seen(house) == ALL


def test_while_a_marker_cannot_be_written_the_decision_stands(house: House) -> None:
    claims = write_all(house)
    house.storage.disk.fail["write", "t-1/"] = errno.ENOSPC
    assert end(house, claims) == (ErrorCode.none, -1)
    assert end(house, claims) == (ErrorCode.concurrent_transactions, 1)
    house.storage.disk.fail.clear()
    house.wait(2)
    assert end(house, claims) == (ErrorCode.none, -1)
    assert what_is_seen(house) == ALL


def test_two_that_share_a_member_are_decided_one_after_the_other(house: House) -> None:
    claims = write_all(house)
    some = {name: claims[name] for name in ("b", "a")}
    first, second = ask(house, some), ask(house, claims)
    house.settle()
    assert first.given == [(ErrorCode.none, -1)]
    assert second.given == [(ErrorCode.concurrent_transactions, 1)]
    assert house.phase("lead") is Phase.ONGOING


def test_nothing_is_decided_after_shut_down(house: House) -> None:
    claims = write_all(house)
    house.transactions.shut_down()
    assert end(house, claims) == (ErrorCode.coordinator_not_available, -1)


# Crashes -------------------------------------------------------------------------------------------------------------


def decided(house: House) -> bool:
    """It is for all of them, or for none."""
    phases = {house.catalogue_phase(name) for name in NAMES[:3]}
    assert "Ongoing" not in phases or len(phases) == 1, phases
    return "Ongoing" not in phases


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "markers-lost"])
def test_a_crash_between_any_two_steps_leaves_all_or_nothing(tmp_path: Path, commit: bool, power: bool) -> None:
    """The broker dies after the n-th piece of work, for every n; with ``power`` markers not yet fsynced are lost."""
    for steps in range(100):
        house = House(tmp_path / f"{steps}")
        claims = write_all(house)
        answer = ask(house, claims, commit)
        finished = not all(house.turn() for _ in range(steps))
        was_decided = decided(house)
        assert was_decided or answer.is_owed
        durable = {key: house.log(*key).durable_offset for key in (T0, T1)}
        if power:
            house.catalogue.close()
            house.storage.kill()
            for (key, offset), records in zip(durable.items(), (1, 2), strict=True):
                cut_to(house, key, max(offset, records))
            house.storage.open()
            house._open()
        else:
            house.crash()
        house.settle()
        if not was_decided:
            assert {house.phase(name) for name in NAMES[:3]} == {Phase.ONGOING}
            assert house.is_unstable()
        # Whoever waited for the answer asks again.
        assert end(house, claims, commit) == (ErrorCode.none, -1)
        assert what_is_seen(house) == (ALL if commit else NOTHING), steps
        assert not house.is_unstable()
        for key in (T0, T1):
            log = house.log(*key)
            assert log.last_stable_offset == log.high_watermark
            assert not log._transactions.writers
        with pytest.raises(Refusal):
            house.write(claims["a"], T0, b"zombie")
        house.close()
        if finished:
            assert steps > 6
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_at_any_disk_operation_leaves_all_or_nothing(tmp_path: Path, commit: bool) -> None:
    for left in range(100):
        house = House(tmp_path / f"{left}")
        claims = write_all(house)
        ask(house, claims, commit)
        operations = iter(range(left))

        def die(what: str, path: str, operations: Iterator[int] = operations) -> None:
            if next(operations, None) is None:
                raise Died

        house.storage.disk.before = die
        try:
            house.settle()
            died = False
        except Died:
            died = True
        house.storage.disk.before = lambda what, path: None
        house.crash()
        house.settle()
        assert decided(house)
        assert what_is_seen(house) == (ALL if commit else NOTHING), left
        house.close()
        if not died:
            assert left > 3
            return
    raise AssertionError("it never ends")


def test_a_crash_while_the_decision_is_written_leaves_it_untaken(house: House) -> None:
    """Each row is one statement: the process dies between any two of them."""
    claims = write_all(house)
    for statement in range(3):
        answer = ask(house, claims)
        house.database.dies_after = statement
        with pytest.raises(Died):
            house.settle()
        house.crash()
        house.settle()
        assert answer.is_owed
        assert not decided(house)
        assert what_is_seen(house) == NOTHING
    assert end(house, claims) == (ErrorCode.none, -1)
    assert what_is_seen(house) == ALL
