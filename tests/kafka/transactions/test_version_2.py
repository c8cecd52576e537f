"""Transactions version 2 on a real coordinator: order of durability, failures of the disk, and a crash at any moment."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.errors import Refusal
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.transactions.transaction import GROUPS_MAX, LAST_EPOCH, Claim, Partition, Phase
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.transaction_harness import NOBODY, Answer, TransactionHarness, X

T0, T1 = ("t", 0), ("t", 1)


def add(harness: TransactionHarness, claim: Claim, *partitions: Partition) -> Answer:
    """Add these partitions as their first batches do, without settling."""
    return harness.ask(harness.transactions.version_2.add_partitions, X, claim, partitions)


def commit_offset(harness: TransactionHarness, claim: Claim, offset: int, group: str = "g") -> Answer:
    offsets = {("in", 0): CommittedOffset(offset, -1, "", harness.clock.time_ms())}
    return harness.ask(harness.transactions.version_2.commit_offsets, X, claim, group, NOBODY, offsets)


def end(harness: TransactionHarness, claim: Claim, commit: bool = True) -> Answer:
    return harness.ask(harness.transactions.version_2.end, X, claim, commit)


def transact(harness: TransactionHarness, claim: Claim) -> None:
    """A transaction over two partitions and a group, not ended."""
    added = add(harness, claim, T0, T1), commit_offset(harness, claim, 5)
    harness.settle()
    assert [ErrorCode.none] * 2 == [each.error for each in added]
    harness.write(claim, T0, b"v")
    harness.write(claim, T1, b"v")


def saves(harness: TransactionHarness, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records every change of a transaction from now on."""
    made: list[Any] = []
    save = harness.catalogue.save_transactions
    monkeypatch.setattr(harness.catalogue, "save_transactions", lambda rows: (made.append(rows), save(rows)))
    grow = harness.catalogue.add_to_transaction
    monkeypatch.setattr(
        harness.catalogue, "add_to_transaction", lambda *arguments: (made.append(arguments), grow(*arguments))
    )
    return made


# Additions ------------------------------------------------------------------------------------------------------------


def test_partition_opens_when_its_addition_is_durable(harness: TransactionHarness) -> None:
    me = harness.init()
    answer = add(harness, me, T0)
    assert answer.is_awaited
    assert not harness.log(*T0).transactions.allows(*attrs.astuple(me))
    harness.settle()
    assert ErrorCode.none == answer.error
    assert harness.catalogue_phase() == "Ongoing"
    assert harness.log(*T0).transactions.allows(*attrs.astuple(me))
    assert not harness.log(*T1).transactions.allows(*attrs.astuple(me))


def test_simultaneous_additions_are_made_together(harness: TransactionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    me = harness.init()
    made = saves(harness, monkeypatch)
    answers = [add(harness, me, T0), *(add(harness, me, T1) for _ in range(50)), commit_offset(harness, me, 5)]
    assert all(answer.is_awaited for answer in answers)
    harness.settle()
    assert {ErrorCode.none} == {answer.error for answer in answers}
    assert (harness.state().partitions, harness.state().groups) == ({T0, T1}, {"g"})
    assert len(made) == 2


def test_addition_between_change_and_waiters_goes_first(
    harness: TransactionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = harness.init()
    executor = harness.transactions._executor
    go_on, between = executor.go_on, []

    def late(entry: Any) -> None:
        if not between:
            between.append(commit_offset(harness, me, 5))
        go_on(entry)

    monkeypatch.setattr(executor, "go_on", late)
    answers = [add(harness, me, T0), add(harness, me, T1)]
    harness.settle()
    assert [ErrorCode.none] * 3 == [answer.error for answer in answers + between]
    assert (harness.state().partitions, harness.state().groups) == ({T0, T1}, {"g"})


def test_existing_participants_are_answered_at_once(harness: TransactionHarness) -> None:
    me = harness.init()
    add(harness, me, T0)
    harness.settle()
    assert ErrorCode.none == add(harness, me, T0).error


def test_another_epoch_does_not_wait_with_the_others(harness: TransactionHarness) -> None:
    me = harness.init()
    add(harness, me, T0)
    assert ErrorCode.producer_fenced == add(harness, attrs.evolve(me, epoch=me.epoch + 1), T1).error
    assert ErrorCode.invalid_producer_id_mapping == add(harness, attrs.evolve(me, producer_id=99), T1).error
    harness.settle()
    assert harness.state().partitions == {T0}


def test_nothing_is_added_while_the_end_is_decided(harness: TransactionHarness) -> None:
    me = harness.init()
    transact(harness, me)
    ended = end(harness, me)
    assert ErrorCode.concurrent_transactions == add(harness, me, T0).error
    harness.settle()
    assert ErrorCode.producer_fenced == add(harness, me, T0).error
    assert Claim(me.producer_id, me.epoch + 1) == ended.claim


def test_end_during_addition_is_asked_again(harness: TransactionHarness) -> None:
    me = harness.init()
    add(harness, me, T0)
    assert ErrorCode.concurrent_transactions == end(harness, me).error
    harness.settle()
    ended = end(harness, me)
    harness.settle()
    assert ErrorCode.none == ended.error


def test_additions_that_cannot_be_saved_are_all_refused(harness: TransactionHarness) -> None:
    me = harness.init()
    answers = [add(harness, me, T0), add(harness, me, T1), commit_offset(harness, me, 5)]
    harness.database.fails = True
    harness.settle()
    assert {ErrorCode.coordinator_not_available} == {answer.error for answer in answers}
    assert not harness.log(*T1).transactions.allows(*attrs.astuple(me))
    harness.database.fails = False
    transact(harness, me)
    end(harness, me)
    harness.settle()
    assert (harness.seen(), harness.committed_offset()) == ([b"v"], 5)


def test_groups_of_a_transaction_are_bounded(harness: TransactionHarness) -> None:
    me = harness.init()
    for first in range(0, GROUPS_MAX, 100):
        answers = [commit_offset(harness, me, 5, group=f"g-{first + number}") for number in range(100)]
        harness.settle()
        assert {ErrorCode.none} == {answer.error for answer in answers}
    assert ErrorCode.invalid_request == commit_offset(harness, me, 5, group="one-more").error
    assert len(harness.state().groups) == GROUPS_MAX


def test_memory_of_a_transaction_is_bounded(tmp_path: Path) -> None:
    harness = TransactionHarness(tmp_path / "data", coordinator_max_bytes=1024 * 1024)
    me = harness.init()
    refused = add(harness, me, *((f"topic-{number}", 0) for number in range(20_000)))
    assert ErrorCode.coordinator_not_available == refused.error
    assert ErrorCode.invalid_txn_state == harness.end(me, True)
    harness.close()


def test_recreated_topic_takes_batches_of_same_transaction(harness: TransactionHarness) -> None:
    me = harness.init()
    transact(harness, me)
    harness.storage.manager.delete_topic("t")
    harness.storage.create("t", 2)
    assert not harness.log(*T0).transactions.allows(*attrs.astuple(me))
    assert ErrorCode.none == add(harness, me, T0).error
    harness.write(me, T0, b"again")
    end(harness, me)
    harness.settle()
    assert harness.seen() == [b"again"]


def test_stopped_coordinator_is_asked_nothing(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.transactions.shut_down()
    assert ErrorCode.coordinator_not_available == add(harness, me, T0).error
    assert ErrorCode.coordinator_not_available == commit_offset(harness, me, 5).error
    assert ErrorCode.coordinator_not_available == end(harness, me).error


# The end --------------------------------------------------------------------------------------------------------------


def test_slow_producer_may_abort_and_continue(harness: TransactionHarness) -> None:
    me = harness.init(timeout_ms=1_000)
    transact(harness, me)
    harness.wait(2.0)
    assert harness.phase() is Phase.COMPLETE_ABORT
    assert ErrorCode.producer_fenced == end(harness, me, True).error
    next_one = end(harness, me, False).claim
    assert Claim(me.producer_id, me.epoch + 1) == next_one
    transact(harness, next_one)
    end(harness, next_one)
    harness.settle()
    assert harness.seen() == [b"v"]


def test_epoch_above_the_last_is_never_used(harness: TransactionHarness) -> None:
    me = attrs.evolve(harness.init(timeout_ms=1_000), epoch=LAST_EPOCH)
    transaction = harness.transactions._registry.entries()[0].transaction
    assert transaction.state is not None
    transaction.state = attrs.evolve(transaction.state, epoch=LAST_EPOCH)
    transact(harness, me)
    harness.wait(2.0)
    guessed = Claim(me.producer_id, LAST_EPOCH + 1)
    assert (harness.state().epoch, harness.phase()) == (guessed.epoch, Phase.COMPLETE_ABORT)
    assert ErrorCode.producer_fenced == add(harness, guessed, T0).error
    assert ErrorCode.producer_fenced == commit_offset(harness, guessed, 5).error
    assert ErrorCode.producer_fenced == end(harness, guessed, False).error
    assert ErrorCode.producer_fenced == harness.end(guessed, True)


def test_slow_producer_may_not_continue_after_another_came(harness: TransactionHarness) -> None:
    me = harness.init(timeout_ms=1_000)
    transact(harness, me)
    harness.wait(2.0)
    harness.init()
    assert ErrorCode.producer_fenced == end(harness, me, False).error


def test_end_with_unwritten_markers_is_answered(harness: TransactionHarness) -> None:
    me = harness.init()
    transact(harness, me)
    harness.log(*T1).state.go_offline("its disk is gone")
    ended = end(harness, me)
    harness.settle()
    next_one = ended.claim
    assert next_one == Claim(me.producer_id, me.epoch + 1)
    assert harness.phase() is Phase.PREPARE_COMMIT
    assert ErrorCode.concurrent_transactions == add(harness, next_one, T0).error
    assert ErrorCode.concurrent_transactions == end(harness, me).error


def at_the_last_epoch(harness: TransactionHarness) -> Claim:
    """A producer with one epoch left."""
    me = harness.init()
    entry = harness.transactions._registry.get(X)
    assert entry is not None
    entry.transaction.state = attrs.evolve(harness.state(), epoch=LAST_EPOCH)
    return attrs.evolve(me, epoch=LAST_EPOCH)


def test_early_user_of_new_producer_id_must_wait(harness: TransactionHarness) -> None:
    me = at_the_last_epoch(harness)
    transact(harness, me)
    harness.log(*T1).state.go_offline("its disk is gone")
    ended = end(harness, me)
    harness.settle()
    assert (ended.claim.producer_id != me.producer_id, ended.claim.epoch) == (True, 0)
    assert ErrorCode.concurrent_transactions == add(harness, ended.claim, T0).error
    assert ErrorCode.concurrent_transactions == end(harness, ended.claim, False).error


def test_no_producer_id_to_be_had_ends_nothing(harness: TransactionHarness) -> None:
    me = at_the_last_epoch(harness)
    transact(harness, me)
    harness.database.fails = True
    assert ErrorCode.coordinator_not_available == end(harness, me).error
    harness.database.fails = False
    assert harness.phase() is Phase.ONGOING


def test_slow_producer_at_last_epoch_aborts_and_continues(harness: TransactionHarness) -> None:
    me = at_the_last_epoch(harness)
    transact(harness, me)
    harness.wait(61.0)
    assert harness.state().epoch == LAST_EPOCH + 1
    ended = end(harness, me, False)
    harness.settle()
    assert (ended.claim.producer_id != me.producer_id, ended.claim.epoch) == (True, 0)
    transact(harness, ended.claim)


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_last", [False, True])
def test_crash_between_steps_leaves_all_or_nothing(tmp_path: Path, commit: bool, is_last: bool) -> None:
    """The broker dies after the n-th step of the end, for every n, and the producer asks once more."""
    for steps in range(100):
        harness = TransactionHarness(tmp_path / f"{steps}")
        me = at_the_last_epoch(harness) if is_last else harness.init()
        transact(harness, me)
        answer = end(harness, me, commit)
        finished = not all(harness.turn() for _ in range(steps))
        decided = harness.catalogue_phase() != "Ongoing"
        assert decided or answer.is_awaited
        harness.crash()
        harness.settle()
        if not decided:
            assert harness.phase() is Phase.ONGOING
        again = end(harness, me, commit)
        harness.settle()
        next_one = again.claim
        assert answer.is_awaited or answer.claim == next_one
        assert (next_one.producer_id == me.producer_id) == (not is_last)
        wanted = ([b"v"], [b"v"], 5) if commit else ([], [], None)
        assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == wanted, steps
        assert not harness.is_unstable()
        for key in (T0, T1):
            assert harness.log(*key).last_stable_offset == harness.log(*key).high_watermark
            with pytest.raises(Refusal):
                harness.write(me, key, b"late")
        transact(harness, next_one)
        harness.crash()
        assert harness.phase() is Phase.ONGOING
        assert harness.log(*T0).transactions.allows(*attrs.astuple(next_one))
        end(harness, next_one)
        harness.settle()
        assert harness.seen() == [*wanted[0], b"v"]
        harness.close()
        if finished:
            assert steps > 3
            return
    raise AssertionError("it never ends")


def test_crash_during_addition_leaves_no_batch(tmp_path: Path) -> None:
    for steps in range(100):
        harness = TransactionHarness(tmp_path / f"{steps}")
        me = harness.init()
        answer = add(harness, me, T0)
        finished = not all(harness.turn() for _ in range(steps))
        if not answer.is_awaited:
            harness.write(me, T0, b"v")
        harness.crash()
        harness.settle()
        assert answer.is_awaited or harness.phase() is Phase.ONGOING
        assert ErrorCode.none == add_again(harness, me)
        if not harness.everything():
            harness.write(me, T0, b"v")
        end(harness, me)
        harness.settle()
        assert harness.seen() == [b"v"]
        harness.close()
        if finished:
            assert steps > 0
            return
    raise AssertionError("it never ends")


def add_again(harness: TransactionHarness, claim: Claim) -> ErrorCode:
    answer = add(harness, claim, T0)
    harness.settle()
    return answer.error
