"""The coordinator on real logs and a real catalogue: a transaction is visible completely or not at all, in spite of faults."""

import errno
from pathlib import Path

import attrs
import pytest

from broker.errors import Refusal
from broker.kafka.transactions.transaction import LAST_EPOCH, Claim, Phase
from broker.storage.refusals import OldProducerEpoch
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.transaction_harness import Answer, TransactionHarness, X

T0, T1, IN = ("t", 0), ("t", 1), ("in", 0)


def transact(harness: TransactionHarness, value: bytes = b"v", offset: int = 5) -> Claim:
    """A transaction over two partitions and a group, about to be ended."""
    me = harness.init()
    assert harness.add(me, T0, T1) == ErrorCode.none
    harness.write(me, T0, value)
    harness.write(me, T1, value)
    assert harness.commit_offset(me, IN, offset) == ErrorCode.none
    return me


def test_commit_is_visible_everywhere_when_answered(harness: TransactionHarness) -> None:
    me = transact(harness)
    assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == ([], [], None)
    assert harness.end(me, True) == ErrorCode.none
    assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == ([b"v"], [b"v"], 5)
    assert harness.phase() is Phase.COMPLETE_COMMIT


def test_aborted_transaction_is_not_seen_anywhere(harness: TransactionHarness) -> None:
    me = transact(harness)
    assert harness.end(me, False) == ErrorCode.none
    assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == ([], [], None)
    assert harness.everything() == [b"v"]
    assert harness.log().last_stable_offset == harness.log().high_watermark
    assert harness.phase() is Phase.COMPLETE_ABORT


def test_end_is_answered_after_it_is_durable(harness: TransactionHarness) -> None:
    me = transact(harness)
    answer = harness.ask(harness.transactions.end, X, me, True)
    while harness.turn():
        durable = all(harness.log("t", number).durable_offset == 2 for number in (0, 1))
        assert answer.is_awaited or (durable and harness.catalogue_phase() == "CompleteCommit")
    assert answer.error == ErrorCode.none


def test_repeated_end_succeeds_and_opposite_is_refused(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.end(me, True)
    assert harness.end(me, True) == ErrorCode.none
    assert harness.end(me, False) == ErrorCode.invalid_txn_state


def test_second_transaction_of_the_same_producer(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.end(me, False)
    harness.add(me, T0)
    harness.write(me, T0, b"w")
    harness.commit_offset(me, IN, 7)
    assert harness.end(me, True) == ErrorCode.none
    assert (harness.seen(), harness.committed_offset()) == ([b"w"], 7)


def test_offsets_are_committed_while_partitions_are_being_added(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.commit_offset(me, IN, 3)
    added = harness.ask(harness.transactions.add_partitions, X, me, [T0])
    staged = harness.stage_offset(me, IN, 5)
    harness.settle()
    assert (added.error, staged.error) == (ErrorCode.none, ErrorCode.none)
    assert harness.end(me, True) == ErrorCode.none
    assert harness.committed_offset() == 5


def test_partition_is_open_only_from_add_to_end(harness: TransactionHarness) -> None:
    me = harness.init()
    with pytest.raises(Refusal):
        harness.write(me, T0, b"before")
    harness.add(me, T0)
    harness.write(me, T0, b"in")
    harness.end(me, True)
    with pytest.raises(Refusal):
        harness.write(me, T0, b"after")
    assert harness.everything() == [b"in"]


def test_unknown_transactional_id_is_refused(harness: TransactionHarness) -> None:
    assert harness.add(Claim(0, 0), T0, name="who") == ErrorCode.invalid_producer_id_mapping
    assert harness.end(Claim(0, 0), True, name="who") == ErrorCode.invalid_producer_id_mapping
    assert harness.transactions.describe("who") == (ErrorCode.transactional_id_not_found, None)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_out_of_bounds_is_refused(harness: TransactionHarness, timeout_ms: int) -> None:
    answer = harness.ask(harness.transactions.init, X, timeout_ms, None)
    assert answer.error == ErrorCode.invalid_transaction_timeout


# Fencing -------------------------------------------------------------------------------------------------------------


def test_new_producer_aborts_old_transaction_and_fences_predecessor(harness: TransactionHarness) -> None:
    old = transact(harness)
    answer = harness.ask(harness.transactions.init, X, 60_000, None)
    harness.settle()
    assert answer.error == ErrorCode.concurrent_transactions
    new = harness.init()
    assert (new.producer_id, new.epoch) == (old.producer_id, 2)
    assert (harness.seen(), harness.committed_offset(), harness.is_unstable()) == ([], None, False)
    assert harness.add(old, T0) == ErrorCode.producer_fenced
    assert harness.end(old, True) == ErrorCode.producer_fenced
    with pytest.raises(Refusal) as error:
        harness.write(old, T0, b"zombie")
    assert type(error.value) is OldProducerEpoch


def test_producer_continues_after_last_epoch_despite_lost_answer(harness: TransactionHarness) -> None:
    me = harness.init()
    entry = harness.transactions._registry.get(X)
    assert entry is not None
    assert entry.transaction.state is not None
    entry.transaction.state = attrs.evolve(entry.transaction.state, epoch=LAST_EPOCH)
    last = Claim(me.producer_id, LAST_EPOCH)
    new = harness.init(last)
    assert (new.producer_id != me.producer_id, new.epoch) == (True, 0)
    holder = harness.transactions._registry.holder
    assert (holder(me.producer_id), holder(new.producer_id)) == (None, entry)
    harness.crash()
    assert harness.init(last) == new


def test_zombie_cannot_write_to_untouched_partitions(harness: TransactionHarness) -> None:
    old = harness.init()
    harness.add(old, T0)
    harness.end(old, True)
    new = harness.init()
    for claim in (old, new):
        with pytest.raises(Refusal):
            harness.write(claim, T0, b"zombie")
    assert harness.transactions.why_refused(X, old) == ErrorCode.invalid_producer_epoch
    assert harness.transactions.why_refused(X, new) == ErrorCode.invalid_txn_state
    assert harness.transactions.why_refused("who", new) == ErrorCode.invalid_producer_id_mapping


# Time ----------------------------------------------------------------------------------------------------------------


def test_timed_out_transaction_aborts_and_fences_producer(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.wait(59)
    assert harness.phase() is Phase.ONGOING
    harness.wait(2)
    assert harness.phase() is Phase.COMPLETE_ABORT
    assert (harness.seen(), harness.committed_offset(), harness.is_unstable()) == ([], None, False)
    assert harness.end(me, True) == ErrorCode.producer_fenced
    assert harness.init(me) == Claim(me.producer_id, me.epoch + 1)


def test_time_goes_on_over_a_restart(harness: TransactionHarness) -> None:
    transact(harness)
    harness.wait(30)
    harness.crash()
    harness.wait(29)
    assert harness.phase() is Phase.ONGOING
    harness.wait(2)
    assert harness.phase() is Phase.COMPLETE_ABORT


def test_transaction_timed_out_during_downtime_aborts_at_once(
    harness: TransactionHarness,
) -> None:
    transact(harness)
    harness.storage.clock.sleep_ms(61_000)
    harness.crash()
    harness.wait(0.1)
    assert harness.phase() is Phase.COMPLETE_ABORT


def test_failed_end_leaves_transaction_to_its_timeout(harness: TransactionHarness) -> None:
    transact(harness)
    harness.database.fails = True
    harness.wait(65)
    assert harness.phase() is Phase.ONGOING
    harness.database.fails = False
    harness.wait(2)
    assert harness.phase() is Phase.COMPLETE_ABORT


def test_failed_sweep_of_ids_is_not_the_last(harness: TransactionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    expiration = harness.transactions._expiration
    before = expiration._next_sweep
    monkeypatch.setattr(expiration, "_forget_unused", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        expiration._begin_sweep()
    assert expiration._next_sweep is not before


def test_memory_of_transactional_ids_is_bounded_and_freed(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 10_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 1_000,
        "coordinator_max_bytes": 1024 * 1024,
    }
    harness = TransactionHarness(tmp_path / "data", **settings)
    me = transact(harness)
    memory = harness.groups.memory
    answers = [harness.ask(harness.transactions.init, f"x-{n}", 60_000, None) for n in range(1_000)]
    harness.settle()
    errors = [answer.error for answer in answers]
    made = errors.count(ErrorCode.none)
    assert 400 < made < 512
    assert set(errors[made:]) == {ErrorCode.coordinator_not_available}
    assert memory.used_bytes <= 1024 * 1024
    assert harness.commit_offset(me, IN, 6) == ErrorCode.none, "existing transactions go on"
    assert harness.end(me, True) == ErrorCode.none
    harness.wait(12)
    assert harness.transactions.list() == (ErrorCode.none, [])
    harness.groups.on_topic_deleted("in")
    harness.settle()
    assert memory.used_bytes == 0
    harness.close()


def test_participants_and_offsets_take_memory_until_the_end(harness: TransactionHarness) -> None:
    me = harness.init()
    memory, at_rest = harness.groups.memory, harness.groups.memory.used_bytes
    harness.add(me, T0)
    used = memory.used_bytes
    assert used > at_rest
    harness.commit_offset(me, IN, 5)
    assert memory.used_bytes > used
    with_offset = memory.used_bytes
    harness.commit_offset(me, IN, 6)
    assert memory.used_bytes == with_offset
    harness.crash()
    assert harness.groups.memory.used_bytes == with_offset
    harness.end(me, False)
    assert harness.groups.memory.used_bytes == at_rest


def test_unsaved_transactional_id_is_not_kept(harness: TransactionHarness) -> None:
    harness.database.fails = True
    answer = harness.ask(harness.transactions.init, "new", 60_000, None)
    harness.settle()
    assert answer.error == ErrorCode.coordinator_not_available
    assert harness.transactions._registry.get("new") is None
    assert harness.groups.memory.used_bytes == 0
    harness.database.fails = False
    assert harness.init(name="new").epoch == 0


def test_unused_ids_are_forgotten(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 10_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 1_000,
    }
    harness = TransactionHarness(tmp_path / "data", **settings)
    me = transact(harness)
    harness.wait(15)
    assert harness.phase() is Phase.ONGOING, "it is in use"
    harness.end(me, True)
    harness.wait(12)
    assert harness.transactions.list() == (ErrorCode.none, [])
    harness.crash()
    assert harness.transactions.list() == (ErrorCode.none, [])
    assert harness.committed_offset() == 5
    assert harness.init() != me
    harness.close()


# An operator ---------------------------------------------------------------------------------------------------------


def abort(harness: TransactionHarness, claim: Claim, *partitions: tuple[str, int]) -> Answer:
    return harness.ask(harness.transactions.abort, claim, frozenset(partitions))


def test_operator_aborts_whole_transaction_and_fences_producer(harness: TransactionHarness) -> None:
    me = transact(harness)
    answer = abort(harness, me, T0)
    while harness.turn():
        assert answer.is_awaited or harness.catalogue_phase() == "CompleteAbort"
    assert answer.given == [({T0: ErrorCode.none},)]
    assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == ([], [], None)
    assert harness.end(me, True) == ErrorCode.producer_fenced
    assert harness.init(me) == Claim(me.producer_id, me.epoch + 1)


def test_operator_aborts_nothing_else(harness: TransactionHarness) -> None:
    me = transact(harness)
    for claim, partition, error in (
        (Claim(me.producer_id, me.epoch - 1), T0, ErrorCode.producer_fenced),
        (me, IN, ErrorCode.none),
        (Claim(77, 0), T0, ErrorCode.none),
        (Claim(77, 0), ("u", 0), ErrorCode.unknown_topic_or_partition),
    ):
        answer = abort(harness, claim, partition)
        harness.settle()
        assert answer.given == [({partition: error},)]
    assert harness.end(me, True) == ErrorCode.none
    again = abort(harness, me, T0, T1)
    assert again.given == [({T0: ErrorCode.none, T1: ErrorCode.none},)]
    assert harness.seen() == [b"v"]


def test_operator_aborts_a_hanging_transaction(harness: TransactionHarness) -> None:
    harness.log().transactions.allow(77, 3)
    harness.write(Claim(77, 3), T0, b"stray")
    before = abort(harness, Claim(77, 2), T0)
    harness.settle()
    assert before.given == [({T0: ErrorCode.invalid_producer_epoch},)]
    assert harness.log().last_stable_offset == 0
    answer = abort(harness, Claim(77, 3), T0, ("u", 0))
    while harness.turn():
        assert answer.is_awaited or harness.log().durable_offset == 2
    assert answer.given == [({T0: ErrorCode.none, ("u", 0): ErrorCode.unknown_topic_or_partition},)]
    assert harness.log().last_stable_offset == harness.log().high_watermark == 2
    assert harness.seen() == []


def test_operator_is_told_of_failed_abort(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.database.fails = True
    answer = abort(harness, me, T0)
    harness.settle()
    assert answer.given == [({T0: ErrorCode.coordinator_not_available},)]
    harness.database.fails = False
    assert harness.end(me, True) == ErrorCode.none
    harness.transactions.shut_down()
    assert abort(harness, me, T0).given == [({T0: ErrorCode.coordinator_not_available},)]


# Offsets -------------------------------------------------------------------------------------------------------------


def test_offsets_are_unstable_until_the_transaction_ends(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.commit_offset(me, IN, 3)
    assert (harness.is_unstable(), harness.committed_offset()) == (True, None)
    harness.crash()
    assert (harness.is_unstable(), harness.committed_offset()) == (True, None)
    harness.end(me, True)
    assert (harness.is_unstable(), harness.committed_offset()) == (False, 3)


def test_offsets_without_added_group_are_refused(harness: TransactionHarness) -> None:
    me = harness.init()
    assert harness.stage_offset(me, IN, 3).error == ErrorCode.invalid_txn_state
    harness.add(me, T0)
    assert harness.stage_offset(me, IN, 3).error == ErrorCode.invalid_txn_state


def test_offsets_being_written_at_end_are_included(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.commit_offset(me, IN, 3)
    staged = harness.stage_offset(me, IN, 4)
    ended = harness.ask(harness.transactions.end, X, me, True)
    harness.settle()
    assert (staged.error, ended.error) == (ErrorCode.none, ErrorCode.none)
    assert harness.committed_offset() == 4


def test_failed_offsets_are_not_committed(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.commit_offset(me, IN, 3)
    harness.database.fails = True
    staged = harness.stage_offset(me, IN, 4)
    harness.settle()
    assert staged.error == ErrorCode.coordinator_not_available
    harness.database.fails = False
    harness.end(me, True)
    assert (harness.is_unstable(), harness.committed_offset()) == (False, 3)


def test_offsets_of_a_deleted_topic_are_not_committed(harness: TransactionHarness) -> None:
    me = harness.init()
    harness.commit_offset(me, IN, 3)
    harness.commit_offset(me, T0, 4)
    harness.storage.manager.delete_topic("in")
    harness.settle()
    harness.end(me, True)
    assert harness.committed_offset(IN) is None
    assert harness.committed_offset(T0) == 4


# What breaks ---------------------------------------------------------------------------------------------------------


def test_deleted_topic_does_not_hold_up_transaction(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.storage.manager.delete_topic("t")
    assert harness.end(me, True) == ErrorCode.none
    assert (harness.phase(), harness.committed_offset()) == (Phase.COMPLETE_COMMIT, 5)


def test_failed_marker_is_written_later(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.storage.disk.fail["write", "/t-1/"] = errno.ENOSPC
    assert harness.end(me, True) == ErrorCode.none  # the decision is durable
    assert (harness.seen(), harness.seen("t", 1)) == ([b"v"], [])
    assert (harness.phase(), harness.committed_offset(), harness.is_unstable()) == (Phase.PREPARE_COMMIT, None, True)
    assert harness.add(me, T0) == ErrorCode.concurrent_transactions
    harness.storage.disk.fail.clear()
    harness.wait(2)
    assert (harness.phase(), harness.committed_offset(), harness.is_unstable()) == (Phase.COMPLETE_COMMIT, 5, False)
    assert harness.seen("t", 1) == [b"v"]
    assert harness.log().log_end_offset == 2, "a second marker"


def test_failed_completion_is_written_later(harness: TransactionHarness) -> None:
    me = transact(harness)
    answer = harness.ask(harness.transactions.end, X, me, True)
    harness.groups.writer.step(0)
    harness.database.fails = True
    harness.settle()
    assert answer.is_awaited
    assert harness.phase() is Phase.PREPARE_COMMIT
    harness.database.fails = False
    harness.wait(2)
    assert answer.error == ErrorCode.none
    assert harness.committed_offset() == 5


def test_offline_partition_holds_up_transaction_until_restart(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.log("t", 1).state.go_offline("its disk has failed")
    assert harness.end(me, True) == ErrorCode.none
    harness.wait(10)
    assert harness.phase() is Phase.PREPARE_COMMIT
    harness.crash()
    harness.settle()
    assert harness.phase() is Phase.COMPLETE_COMMIT
    assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == ([b"v"], [b"v"], 5)


def test_hanging_transaction_is_aborted_at_the_start(harness: TransactionHarness) -> None:
    stranger = Claim(77, 3)
    harness.log().transactions.allow(77, 3)
    harness.write(stranger, T0, b"moved here")
    harness.crash()
    harness.settle()
    assert harness.log().last_stable_offset == harness.log().high_watermark == 2
    assert harness.seen() == []


def test_nothing_is_answered_after_shut_down(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.transactions.shut_down()
    assert harness.end(me, True) == ErrorCode.coordinator_not_available
    assert harness.ask(harness.transactions.init, X, 1_000, None).error == ErrorCode.coordinator_not_available


def test_open_transaction_goes_on_after_a_restart(harness: TransactionHarness) -> None:
    me = transact(harness)
    harness.restart()
    harness.write(me, T0, b"w")
    assert harness.end(me, True) == ErrorCode.none
    assert (harness.seen(), harness.committed_offset()) == ([b"v", b"w"], 5)


# Crashes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["commit", "abort", "fence", "time"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "markers-lost"])
def test_crash_between_steps_leaves_all_or_nothing(tmp_path: Path, how: str, power: bool) -> None:
    """The broker dies after the n-th step, for every n. With ``power``, markers that are not fsynced yet are lost."""
    for steps in range(100):
        harness = TransactionHarness(tmp_path / f"{steps}")
        me = transact(harness)
        if how == "fence":
            harness.ask(harness.transactions.init, X, 60_000, None)
        elif how == "time":
            harness.clock.sleep_ms(61_000)
            harness.timer.step(0)
        else:
            answer = harness.ask(harness.transactions.end, X, me, how == "commit")
        finished = not all(harness.turn() for _ in range(steps))
        decided = harness.catalogue_phase() != "Ongoing"
        answered = how in ("commit", "abort") and not answer.is_awaited
        durable = {key: harness.log(*key).durable_offset for key in (T0, T1)}
        if power:
            harness.catalogue.close()
            harness.storage.kill()
            for key, offset in durable.items():
                cut_to(harness, key, max(offset, 1))
            harness.storage.open()
            harness._open()
        else:
            harness.crash()
        harness.settle()
        wanted = ([b"v"], [b"v"], 5) if how == "commit" and decided else ([], [], None)
        if not decided:
            assert harness.phase() is Phase.ONGOING
            assert harness.is_unstable()
            assert not answered
            harness.end(me, False)
        assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == wanted, steps
        assert harness.phase() is (Phase.COMPLETE_COMMIT if wanted[0] else Phase.COMPLETE_ABORT)
        assert not harness.is_unstable()
        for key in (T0, T1):
            log = harness.log(*key)
            assert log.last_stable_offset == log.high_watermark
            assert not log.transactions.writers
        with pytest.raises(Refusal):
            harness.write(me, T0, b"zombie")
        new = harness.init()
        harness.add(new, T0)
        harness.write(new, T0, b"next")
        harness.end(new, True)
        assert harness.seen() == [*wanted[0], b"next"]
        harness.close()
        if finished:
            assert steps > 3
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("commit", [True, False])
def test_crash_at_any_disk_operation_is_atomic(tmp_path: Path, commit: bool) -> None:
    for left in range(100):
        harness = TransactionHarness(tmp_path / f"{left}")
        me = transact(harness)
        harness.ask(harness.transactions.end, X, me, commit)
        died = harness.settle_until_death(left)
        assert (harness.seen(), harness.seen("t", 1), harness.committed_offset()) == (
            ([b"v"], [b"v"], 5) if commit else ([], [], None)
        ), left
        assert harness.phase() is (Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT)
        harness.close()
        if not died:
            assert left > 3
            return
    raise AssertionError("it never ends")


def cut_to(harness: TransactionHarness, partition: tuple[str, int], offset: int) -> None:
    """Cut the log off as if only this much of it had reached the disk."""
    from protocol.kafka.records.batch import batches

    (path,) = harness.storage.path(*partition).glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data[: sum(header.size for _, header in batches(data) if header.base_offset < offset)])


def test_markers_of_many_partitions_let_others_pass(tmp_path: Path) -> None:
    harness = TransactionHarness(tmp_path / "data", {"t": 200, "in": 1})
    many, few = harness.init(name="many"), harness.init(name="few")
    harness.add(many, *(("t", number) for number in range(200)), name="many")
    harness.add(few, ("t", 0), name="few")
    order: list[str] = []
    for name, who in (("many", many), ("few", few)):
        harness.transactions.end(name, who, True, lambda error, name=name: order.append(f"{name} {error.name}"))  # type: ignore[misc]
    harness.settle()
    assert order == ["few none", "many none"]
    assert all(harness.log("t", number).log_end_offset == 1 + (number == 0) for number in range(200))
    harness.close()
