"""Joint ends of the transactions of several producers, on real logs and a real catalogue: decided for all or for none, wherever
the broker dies."""

import errno
from pathlib import Path

import pytest

from broker.errors import Refusal
from broker.kafka.transactions.transaction import Claim, Phase
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.test_coordinator import cut_to
from tests.kafka.transactions.transaction_harness import Answer, Died, TransactionHarness

T0, T1, IN = ("t", 0), ("t", 1), ("in", 0)
# The first also commits an offset, the last has written nothing.
NAMES = ["lead", "a", "b", "idle"]
Claims = dict[str, Claim]


def write_all(harness: TransactionHarness) -> Claims:
    claims = {name: harness.init(name=name) for name in NAMES}
    for name, partition in (("a", T0), ("a", T1), ("b", T1)):
        assert harness.add(claims[name], partition, name=name) == ErrorCode.none
        harness.write(claims[name], partition, name.encode())
    assert harness.commit_offset(claims["lead"], IN, 5, name="lead") == ErrorCode.none
    return claims


def ask(harness: TransactionHarness, claims: Claims, commit: bool = True) -> Answer:
    return harness.ask(harness.transactions.end_together, list(claims.items()), commit)


def end(harness: TransactionHarness, claims: Claims, commit: bool = True) -> tuple[object, ...]:
    answer = ask(harness, claims, commit)
    harness.settle()
    (given,) = answer.given
    return given


def what_is_seen(harness: TransactionHarness) -> tuple[list[bytes | None], list[bytes | None], int | None]:
    return harness.seen(), harness.seen("t", 1), harness.committed_offset()


NOTHING: tuple[list[bytes | None], list[bytes | None], int | None] = ([], [], None)
ALL: tuple[list[bytes | None], list[bytes | None], int | None] = ([b"a"], [b"a", b"b"], 5)


@pytest.mark.parametrize("commit", [True, False])
def test_joint_end_is_seen_completely_or_not(harness: TransactionHarness, commit: bool) -> None:
    claims = write_all(harness)
    assert what_is_seen(harness) == NOTHING
    assert end(harness, claims, commit) == (ErrorCode.none, -1)
    assert what_is_seen(harness) == (ALL if commit else NOTHING)
    ended = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT
    assert [harness.phase(name) for name in NAMES] == [ended, ended, ended, Phase.EMPTY]
    for key in (T0, T1):
        assert harness.log(*key).last_stable_offset == harness.log(*key).high_watermark


def test_joint_end_is_answered_once_when_all_durable(harness: TransactionHarness) -> None:
    answer = ask(harness, write_all(harness))
    while harness.turn():
        complete = all(harness.catalogue_phase(name) == "CompleteCommit" for name in NAMES[:3])
        assert answer.is_awaited or (complete and harness.log("t", 1).durable_offset == 4)
    assert answer.given == [(ErrorCode.none, -1)]


@pytest.mark.parametrize("commit", [True, False])
def test_same_request_again_changes_nothing(harness: TransactionHarness, commit: bool) -> None:
    claims = write_all(harness)
    end(harness, claims, commit)
    before = [harness.log(*key).log_end_offset for key in (T0, T1)]
    assert end(harness, claims, commit) == (ErrorCode.none, -1)
    assert end(harness, claims, not commit) == (ErrorCode.invalid_txn_state, 0)
    assert [harness.log(*key).log_end_offset for key in (T0, T1)] == before


def test_late_copy_does_not_decide_leaders_next_transaction(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    end(harness, claims)
    harness.commit_offset(claims["lead"], IN, 6, name="lead")
    assert end(harness, claims) == (ErrorCode.invalid_txn_state, 1)
    assert harness.phase("lead") is Phase.ONGOING
    assert harness.is_unstable()


@pytest.mark.parametrize("commit", [True, False])
def test_fenced_member_leaves_the_others_unchanged(harness: TransactionHarness, commit: bool) -> None:
    claims = write_all(harness)
    harness.init(name="b")
    assert end(harness, claims, commit) == (ErrorCode.producer_fenced, 2)
    assert what_is_seen(harness) == NOTHING
    assert [harness.phase(name) for name in ("lead", "a")] == [Phase.ONGOING] * 2
    harness.write(claims["a"], T0, b"more")
    del claims["b"]
    assert end(harness, claims, commit) == (ErrorCode.none, -1)
    assert harness.seen() == ([b"a", b"more"] if commit else [])


def test_unknown_member_leaves_the_others_unchanged(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    assert end(harness, {**claims, "who": Claim(7, 0)}) == (ErrorCode.invalid_producer_id_mapping, 4)
    assert harness.phase("a") is Phase.ONGOING


def test_one_that_timed_out_refuses_for_all(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    slow = harness.init(name="slow", timeout_ms=1_000)
    harness.add(slow, T0, name="slow")
    harness.write(slow, T0, b"slow")
    harness.wait(2)
    assert end(harness, {**claims, "slow": slow}) == (ErrorCode.producer_fenced, 4)
    assert what_is_seen(harness) == NOTHING


def test_decision_that_cannot_be_saved_is_not_taken(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    harness.database.fails = True
    assert end(harness, claims) == (ErrorCode.coordinator_not_available, -1)
    assert [harness.phase(name) for name in NAMES[:3]] == [Phase.ONGOING] * 3
    harness.database.fails = False
    assert end(harness, claims) == (ErrorCode.none, -1)
    assert what_is_seen(harness) == ALL


def test_decision_stands_while_markers_cannot_be_written(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    harness.storage.disk.fail["write", "t-1/"] = errno.ENOSPC
    assert end(harness, claims) == (ErrorCode.none, -1)
    assert end(harness, claims) == (ErrorCode.concurrent_transactions, 1)
    harness.storage.disk.fail.clear()
    harness.wait(2)
    assert end(harness, claims) == (ErrorCode.none, -1)
    assert what_is_seen(harness) == ALL


def test_joint_ends_with_shared_member_are_decided_serially(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    some = {name: claims[name] for name in ("b", "a")}
    first, second = ask(harness, some), ask(harness, claims)
    harness.settle()
    assert first.given == [(ErrorCode.none, -1)]
    assert second.given == [(ErrorCode.concurrent_transactions, 1)]
    assert harness.phase("lead") is Phase.ONGOING


def test_nothing_is_decided_after_shut_down(harness: TransactionHarness) -> None:
    claims = write_all(harness)
    harness.transactions.shut_down()
    assert end(harness, claims) == (ErrorCode.coordinator_not_available, -1)


# Crashes -------------------------------------------------------------------------------------------------------------


def decided(harness: TransactionHarness) -> bool:
    """The decision was made for all of them, or for none."""
    phases = {harness.catalogue_phase(name) for name in NAMES[:3]}
    assert "Ongoing" not in phases or len(phases) == 1, phases
    return "Ongoing" not in phases


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "markers-lost"])
def test_crash_between_steps_leaves_all_or_nothing(tmp_path: Path, commit: bool, power: bool) -> None:
    """The broker dies after the n-th step, for every n. With ``power``, markers that are not fsynced yet are lost."""
    for steps in range(100):
        harness = TransactionHarness(tmp_path / f"{steps}")
        claims = write_all(harness)
        answer = ask(harness, claims, commit)
        finished = not all(harness.turn() for _ in range(steps))
        was_decided = decided(harness)
        assert was_decided or answer.is_awaited
        durable = {key: harness.log(*key).durable_offset for key in (T0, T1)}
        if power:
            harness.catalogue.close()
            harness.storage.kill()
            for (key, offset), records in zip(durable.items(), (1, 2), strict=True):
                cut_to(harness, key, max(offset, records))
            harness.storage.open()
            harness._open()
        else:
            harness.crash()
        harness.settle()
        if not was_decided:
            assert {harness.phase(name) for name in NAMES[:3]} == {Phase.ONGOING}
            assert harness.is_unstable()
        # The client that waited for the answer asks again.
        assert end(harness, claims, commit) == (ErrorCode.none, -1)
        assert what_is_seen(harness) == (ALL if commit else NOTHING), steps
        assert not harness.is_unstable()
        for key in (T0, T1):
            log = harness.log(*key)
            assert log.last_stable_offset == log.high_watermark
            assert not log.transactions.writers
        with pytest.raises(Refusal):
            harness.write(claims["a"], T0, b"zombie")
        harness.close()
        if finished:
            assert steps > 6
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("commit", [True, False])
def test_crash_at_any_disk_operation_is_atomic(tmp_path: Path, commit: bool) -> None:
    for left in range(100):
        harness = TransactionHarness(tmp_path / f"{left}")
        claims = write_all(harness)
        ask(harness, claims, commit)
        died = harness.settle_until_death(left)
        assert decided(harness)
        assert what_is_seen(harness) == (ALL if commit else NOTHING), left
        harness.close()
        if not died:
            assert left > 3
            return
    raise AssertionError("it never ends")


def test_crash_during_decision_write_leaves_it_untaken(harness: TransactionHarness) -> None:
    """Each row is a statement: the process dies between any two of them."""
    claims = write_all(harness)
    for statement in range(3):
        answer = ask(harness, claims)
        harness.database.dies_after = statement
        with pytest.raises(Died):
            harness.settle()
        harness.crash()
        harness.settle()
        assert answer.is_awaited
        assert not decided(harness)
        assert what_is_seen(harness) == NOTHING
    assert end(harness, claims) == (ErrorCode.none, -1)
    assert what_is_seen(harness) == ALL
