"""The coordinator on real logs and a real catalogue: together or not at all, whatever happens in between."""

import errno
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from broker.errors import Refusal
from broker.kafka.transactions.phases import Phase
from broker.kafka.transactions.transaction import LAST_EPOCH, Claim
from broker.storage.refusals import OldProducerEpoch
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.house import Answer, Died, House, X

T0, T1, IN = ("t", 0), ("t", 1), ("in", 0)


def transact(house: House, value: bytes = b"v", offset: int = 5) -> Claim:
    """A transaction over two partitions and a group, about to be ended."""
    me = house.init()
    assert house.add(me, T0, T1) == ErrorCode.none
    house.write(me, T0, value)
    house.write(me, T1, value)
    assert house.commit_offset(me, IN, offset) == ErrorCode.none
    return me


def test_a_commit_is_seen_everywhere_when_it_is_answered(house: House) -> None:
    me = transact(house)
    assert (house.seen(), house.seen("t", 1), house.committed_offset()) == ([], [], None)
    assert house.end(me, True) == ErrorCode.none
    assert (house.seen(), house.seen("t", 1), house.committed_offset()) == ([b"v"], [b"v"], 5)
    assert house.phase() is Phase.COMPLETE_COMMIT


def test_an_abort_is_seen_nowhere(house: House) -> None:
    me = transact(house)
    assert house.end(me, False) == ErrorCode.none
    assert (house.seen(), house.seen("t", 1), house.committed_offset()) == ([], [], None)
    assert house.everything() == [b"v"]
    assert house.log().last_stable_offset == house.log().high_watermark
    assert house.phase() is Phase.COMPLETE_ABORT


def test_the_end_is_answered_after_it_is_durable(house: House) -> None:
    me = transact(house)
    answer = house.ask(house.transactions.end, X, me, True)
    while house.turn():
        durable = all(house.log("t", number).durable_offset == 2 for number in (0, 1))
        assert answer.is_owed or (durable and house.catalogue_phase() == "CompleteCommit")
    assert answer.error == ErrorCode.none


def test_the_same_end_again_is_fine_and_the_other_is_not(house: House) -> None:
    me = transact(house)
    house.end(me, True)
    assert house.end(me, True) == ErrorCode.none
    assert house.end(me, False) == ErrorCode.invalid_txn_state


def test_a_second_transaction_of_the_same_producer(house: House) -> None:
    me = transact(house)
    house.end(me, False)
    house.add(me, T0)
    house.write(me, T0, b"w")
    house.commit_offset(me, IN, 7)
    assert house.end(me, True) == ErrorCode.none
    assert (house.seen(), house.committed_offset()) == ([b"w"], 7)


def test_offsets_are_committed_while_partitions_are_being_added(house: House) -> None:
    me = house.init()
    house.commit_offset(me, IN, 3)
    added = house.ask(house.transactions.add_partitions, X, me, [T0])
    staged = house.stage_offset(me, IN, 5)
    house.settle()
    assert (added.error, staged.error) == (ErrorCode.none, ErrorCode.none)
    assert house.end(me, True) == ErrorCode.none
    assert house.committed_offset() == 5


def test_a_partition_is_open_to_the_producer_only_from_add_to_end(house: House) -> None:
    me = house.init()
    with pytest.raises(Refusal):
        house.write(me, T0, b"before")
    house.add(me, T0)
    house.write(me, T0, b"in")
    house.end(me, True)
    with pytest.raises(Refusal):
        house.write(me, T0, b"after")
    assert house.everything() == [b"in"]


def test_an_unknown_transactional_id_is_refused(house: House) -> None:
    assert house.add(Claim(0, 0), T0, name="who") == ErrorCode.invalid_producer_id_mapping
    assert house.end(Claim(0, 0), True, name="who") == ErrorCode.invalid_producer_id_mapping
    assert house.transactions.describe("who") == (ErrorCode.transactional_id_not_found, None)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(house: House, timeout_ms: int) -> None:
    answer = house.ask(house.transactions.init, X, timeout_ms, None)
    assert answer.error == ErrorCode.invalid_transaction_timeout


# Fencing -------------------------------------------------------------------------------------------------------------


def test_a_new_producer_aborts_what_the_old_one_left_and_fences_it(house: House) -> None:
    old = transact(house)
    answer = house.ask(house.transactions.init, X, 60_000, None)
    house.settle()
    assert answer.error == ErrorCode.concurrent_transactions
    new = house.init()
    assert (new.producer_id, new.epoch) == (old.producer_id, 2)
    assert (house.seen(), house.committed_offset(), house.is_unstable()) == ([], None, False)
    assert house.add(old, T0) == ErrorCode.producer_fenced
    assert house.end(old, True) == ErrorCode.producer_fenced
    with pytest.raises(Refusal) as error:
        house.write(old, T0, b"zombie")
    assert type(error.value) is OldProducerEpoch


def test_a_producer_goes_on_after_the_last_epoch_also_when_its_answer_was_lost(house: House) -> None:
    me = house.init()
    entry = house.transactions._registry.get(X)
    assert entry is not None
    assert entry.transaction.state is not None
    entry.transaction.state = attrs.evolve(entry.transaction.state, epoch=LAST_EPOCH)
    last = Claim(me.producer_id, LAST_EPOCH)
    new = house.init(last)
    assert (new.producer_id != me.producer_id, new.epoch) == (True, 0)
    holder = house.transactions._registry.holder
    assert (holder(me.producer_id), holder(new.producer_id)) == (None, entry)
    house.crash()
    assert house.init(last) == new


def test_a_zombie_cannot_write_where_its_successor_has_written_nothing_yet(house: House) -> None:
    old = house.init()
    house.add(old, T0)
    house.end(old, True)
    new = house.init()
    for claim in (old, new):
        with pytest.raises(Refusal):
            house.write(claim, T0, b"zombie")
    assert house.transactions.why_refused(X, old) == ErrorCode.invalid_producer_epoch
    assert house.transactions.why_refused(X, new) == ErrorCode.invalid_txn_state
    assert house.transactions.why_refused("who", new) == ErrorCode.invalid_producer_id_mapping


# Time ----------------------------------------------------------------------------------------------------------------


def test_a_transaction_whose_time_is_over_is_aborted_and_its_producer_fenced(house: House) -> None:
    me = transact(house)
    house.wait(59)
    assert house.phase() is Phase.ONGOING
    house.wait(2)
    assert house.phase() is Phase.COMPLETE_ABORT
    assert (house.seen(), house.committed_offset(), house.is_unstable()) == ([], None, False)
    assert house.end(me, True) == ErrorCode.producer_fenced
    assert house.init(me) == Claim(me.producer_id, me.epoch + 1)


def test_the_time_goes_on_over_a_restart(house: House) -> None:
    transact(house)
    house.wait(30)
    house.crash()
    house.wait(29)
    assert house.phase() is Phase.ONGOING
    house.wait(2)
    assert house.phase() is Phase.COMPLETE_ABORT


def test_a_transaction_whose_time_was_over_while_the_broker_was_down_is_aborted_at_once(house: House) -> None:
    transact(house)
    house.storage.clock.sleep_ms(61_000)
    house.crash()
    house.wait(0.1)
    assert house.phase() is Phase.COMPLETE_ABORT


def test_an_end_that_cannot_be_made_durable_leaves_the_transaction_to_time(house: House) -> None:
    transact(house)
    house.database.fails = True
    house.wait(65)
    assert house.phase() is Phase.ONGOING
    house.database.fails = False
    house.wait(2)
    assert house.phase() is Phase.COMPLETE_ABORT


def test_ids_are_not_made_without_end_and_leave_their_room(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 10_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 1_000,
        "coordinator_max_bytes": 1024 * 1024,
    }
    house = House(tmp_path / "data", **settings)
    me = transact(house)
    memory = house.groups.memory
    answers = [house.ask(house.transactions.init, f"x-{n}", 60_000, None) for n in range(1_000)]
    house.settle()
    errors = [answer.error for answer in answers]
    made = errors.count(ErrorCode.none)
    assert 400 < made < 512
    assert set(errors[made:]) == {ErrorCode.coordinator_not_available}
    assert memory.used_bytes <= 1024 * 1024
    assert house.commit_offset(me, IN, 6) == ErrorCode.none, "what is there goes on"
    assert house.end(me, True) == ErrorCode.none
    house.wait(12)
    assert house.transactions.list() == (ErrorCode.none, [])
    house.groups.on_topic_deleted("in")
    house.settle()
    assert memory.used_bytes == 0
    house.close()


def test_partitions_groups_and_offsets_of_a_transaction_take_room_until_its_end(house: House) -> None:
    me = house.init()
    memory, at_rest = house.groups.memory, house.groups.memory.used_bytes
    house.add(me, T0)
    one = memory.used_bytes
    assert one > at_rest
    house.commit_offset(me, IN, 5)
    assert memory.used_bytes > one
    with_offset = memory.used_bytes
    house.commit_offset(me, IN, 6)
    assert memory.used_bytes == with_offset
    house.crash()
    assert house.groups.memory.used_bytes == with_offset
    house.end(me, False)
    assert house.groups.memory.used_bytes == at_rest


def test_an_id_that_could_not_be_made_durable_is_not_kept(house: House) -> None:
    house.database.fails = True
    answer = house.ask(house.transactions.init, "new", 60_000, None)
    house.settle()
    assert answer.error == ErrorCode.coordinator_not_available
    assert house.transactions._registry.get("new") is None
    assert house.groups.memory.used_bytes == 0
    house.database.fails = False
    assert house.init(name="new").epoch == 0


def test_unused_ids_are_forgotten(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 10_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 1_000,
    }
    house = House(tmp_path / "data", **settings)
    me = transact(house)
    house.wait(15)
    assert house.phase() is Phase.ONGOING, "it is in use"
    house.end(me, True)
    house.wait(12)
    assert house.transactions.list() == (ErrorCode.none, [])
    house.crash()
    assert house.transactions.list() == (ErrorCode.none, [])
    assert house.committed_offset() == 5
    assert house.init() != me
    house.close()


# An operator ---------------------------------------------------------------------------------------------------------


def abort(house: House, claim: Claim, *partitions: tuple[str, int]) -> Answer:
    return house.ask(house.transactions.abort, claim, frozenset(partitions))


def test_an_operator_aborts_all_of_a_transaction_and_fences_its_producer(house: House) -> None:
    me = transact(house)
    answer = abort(house, me, T0)
    while house.turn():
        assert answer.is_owed or house.catalogue_phase() == "CompleteAbort"
    assert answer.given == [({T0: ErrorCode.none},)]
    assert (house.seen(), house.seen("t", 1), house.committed_offset()) == ([], [], None)
    assert house.end(me, True) == ErrorCode.producer_fenced
    assert house.init(me) == Claim(me.producer_id, me.epoch + 1)


def test_an_operator_aborts_nothing_else(house: House) -> None:
    me = transact(house)
    for claim, partition, error in (
        (Claim(me.producer_id, me.epoch - 1), T0, ErrorCode.producer_fenced),
        (me, IN, ErrorCode.none),
        (Claim(77, 0), T0, ErrorCode.none),
        (Claim(77, 0), ("u", 0), ErrorCode.unknown_topic_or_partition),
    ):
        answer = abort(house, claim, partition)
        house.settle()
        assert answer.given == [({partition: error},)]
    assert house.end(me, True) == ErrorCode.none
    again = abort(house, me, T0, T1)
    assert again.given == [({T0: ErrorCode.none, T1: ErrorCode.none},)]
    assert house.seen() == [b"v"]


def test_an_operator_aborts_what_nobody_coordinates(house: House) -> None:
    house.log().allow_transaction(77, 3)
    house.write(Claim(77, 3), T0, b"stray")
    before = abort(house, Claim(77, 2), T0)
    house.settle()
    assert before.given == [({T0: ErrorCode.invalid_producer_epoch},)]
    assert house.log().last_stable_offset == 0
    answer = abort(house, Claim(77, 3), T0, ("u", 0))
    while house.turn():
        assert answer.is_owed or house.log().durable_offset == 2
    assert answer.given == [({T0: ErrorCode.none, ("u", 0): ErrorCode.unknown_topic_or_partition},)]
    assert house.log().last_stable_offset == house.log().high_watermark == 2
    assert house.seen() == []


def test_an_operator_is_told_when_it_cannot_be_done(house: House) -> None:
    me = transact(house)
    house.database.fails = True
    answer = abort(house, me, T0)
    house.settle()
    assert answer.given == [({T0: ErrorCode.coordinator_not_available},)]
    house.database.fails = False
    assert house.end(me, True) == ErrorCode.none
    house.transactions.shut_down()
    assert abort(house, me, T0).given == [({T0: ErrorCode.coordinator_not_available},)]


# Offsets -------------------------------------------------------------------------------------------------------------


def test_offsets_are_unstable_until_the_transaction_ends(house: House) -> None:
    me = house.init()
    house.commit_offset(me, IN, 3)
    assert (house.is_unstable(), house.committed_offset()) == (True, None)
    house.crash()
    assert (house.is_unstable(), house.committed_offset()) == (True, None)
    house.end(me, True)
    assert (house.is_unstable(), house.committed_offset()) == (False, 3)


def test_offsets_without_their_group_in_the_transaction_are_refused(house: House) -> None:
    me = house.init()
    assert house.stage_offset(me, IN, 3).error == ErrorCode.invalid_txn_state
    house.add(me, T0)
    assert house.stage_offset(me, IN, 3).error == ErrorCode.invalid_txn_state


def test_offsets_that_are_being_written_when_the_end_comes_are_part_of_it(house: House) -> None:
    me = house.init()
    house.commit_offset(me, IN, 3)
    staged = house.stage_offset(me, IN, 4)
    ended = house.ask(house.transactions.end, X, me, True)
    house.settle()
    assert (staged.error, ended.error) == (ErrorCode.none, ErrorCode.none)
    assert house.committed_offset() == 4


def test_offsets_that_could_not_be_written_are_not(house: House) -> None:
    me = house.init()
    house.commit_offset(me, IN, 3)
    house.database.fails = True
    staged = house.stage_offset(me, IN, 4)
    house.settle()
    assert staged.error == ErrorCode.coordinator_not_available
    house.database.fails = False
    house.end(me, True)
    assert (house.is_unstable(), house.committed_offset()) == (False, 3)


def test_offsets_of_a_deleted_topic_are_not_committed(house: House) -> None:
    me = house.init()
    house.commit_offset(me, IN, 3)
    house.commit_offset(me, T0, 4)
    house.storage.manager.delete_topic("in")
    house.settle()
    house.end(me, True)
    assert house.committed_offset(IN) is None
    assert house.committed_offset(T0) == 4


# What breaks ---------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_does_not_hold_the_transaction_up(house: House) -> None:
    me = transact(house)
    house.storage.manager.delete_topic("t")
    assert house.end(me, True) == ErrorCode.none
    assert (house.phase(), house.committed_offset()) == (Phase.COMPLETE_COMMIT, 5)


def test_a_marker_that_cannot_be_written_is_written_later(house: House) -> None:
    me = transact(house)
    house.storage.disk.fail["write", "/t-1/"] = errno.ENOSPC
    assert house.end(me, True) == ErrorCode.none  # decided it is
    assert (house.seen(), house.seen("t", 1)) == ([b"v"], [])
    assert (house.phase(), house.committed_offset(), house.is_unstable()) == (Phase.PREPARE_COMMIT, None, True)
    assert house.add(me, T0) == ErrorCode.concurrent_transactions
    house.storage.disk.fail.clear()
    house.wait(2)
    assert (house.phase(), house.committed_offset(), house.is_unstable()) == (Phase.COMPLETE_COMMIT, 5, False)
    assert house.seen("t", 1) == [b"v"]
    assert house.log().log_end_offset == 2, "a second marker"


def test_a_completion_that_cannot_be_written_is_written_later(house: House) -> None:
    me = transact(house)
    answer = house.ask(house.transactions.end, X, me, True)
    house.groups.writer.step(0)
    house.database.fails = True
    house.settle()
    assert answer.is_owed
    assert house.phase() is Phase.PREPARE_COMMIT
    house.database.fails = False
    house.wait(2)
    assert answer.error == ErrorCode.none
    assert house.committed_offset() == 5


def test_a_partition_that_is_offline_holds_it_up_until_the_broker_is_started_again(house: House) -> None:
    me = transact(house)
    house.log("t", 1).go_offline("its disk is gone")
    assert house.end(me, True) == ErrorCode.none
    house.wait(10)
    assert house.phase() is Phase.PREPARE_COMMIT
    house.crash()
    house.settle()
    assert house.phase() is Phase.COMPLETE_COMMIT
    assert (house.seen(), house.seen("t", 1), house.committed_offset()) == ([b"v"], [b"v"], 5)


def test_a_transaction_that_nobody_knows_is_aborted_at_the_start(house: House) -> None:
    stranger = Claim(77, 3)
    house.log().allow_transaction(77, 3)
    house.write(stranger, T0, b"moved here")
    house.crash()
    house.settle()
    assert house.log().last_stable_offset == house.log().high_watermark == 2
    assert house.seen() == []


def test_nothing_is_answered_after_shut_down(house: House) -> None:
    me = transact(house)
    house.transactions.shut_down()
    assert house.end(me, True) == ErrorCode.coordinator_not_available
    assert house.ask(house.transactions.init, X, 1_000, None).error == ErrorCode.coordinator_not_available


def test_an_open_transaction_goes_on_after_a_restart(house: House) -> None:
    me = transact(house)
    house.restart()
    house.write(me, T0, b"w")
    assert house.end(me, True) == ErrorCode.none
    assert (house.seen(), house.committed_offset()) == ([b"v", b"w"], 5)


# Crashes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["commit", "abort", "fence", "time"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "markers-lost"])
def test_a_crash_between_any_two_steps_leaves_all_or_nothing(tmp_path: Path, how: str, power: bool) -> None:
    """The broker dies after the n-th piece of work, for every n; with ``power`` markers not yet fsynced are lost."""
    for steps in range(100):
        house = House(tmp_path / f"{steps}")
        me = transact(house)
        if how == "fence":
            house.ask(house.transactions.init, X, 60_000, None)
        elif how == "time":
            house.clock.sleep_ms(61_000)
            house.timer.step(0)
        else:
            answer = house.ask(house.transactions.end, X, me, how == "commit")
        finished = not all(house.turn() for _ in range(steps))
        decided = house.catalogue_phase() != "Ongoing"
        answered = how in ("commit", "abort") and not answer.is_owed
        durable = {key: house.log(*key).durable_offset for key in (T0, T1)}
        if power:
            house.catalogue.close()
            house.storage.kill()
            for key, offset in durable.items():
                cut_to(house, key, max(offset, 1))
            house.storage.open()
            house._open()
        else:
            house.crash()
        house.settle()
        wanted = ([b"v"], [b"v"], 5) if how == "commit" and decided else ([], [], None)
        if not decided:
            assert house.phase() is Phase.ONGOING
            assert house.is_unstable()
            assert not answered
            house.end(me, False)
        assert (house.seen(), house.seen("t", 1), house.committed_offset()) == wanted, steps
        assert house.phase() is (Phase.COMPLETE_COMMIT if wanted[0] else Phase.COMPLETE_ABORT)
        assert not house.is_unstable()
        for key in (T0, T1):
            log = house.log(*key)
            assert log.last_stable_offset == log.high_watermark
            assert not log._transactions.writers
        with pytest.raises(Refusal):
            house.write(me, T0, b"zombie")
        new = house.init()
        house.add(new, T0)
        house.write(new, T0, b"next")
        house.end(new, True)
        assert house.seen() == [*wanted[0], b"next"]
        house.close()
        if finished:
            assert steps > 3
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_at_any_disk_operation_leaves_all_or_nothing(tmp_path: Path, commit: bool) -> None:
    for left in range(100):
        house = House(tmp_path / f"{left}")
        me = transact(house)
        house.ask(house.transactions.end, X, me, commit)
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
        assert (house.seen(), house.seen("t", 1), house.committed_offset()) == (
            ([b"v"], [b"v"], 5) if commit else ([], [], None)
        ), left
        assert house.phase() is (Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT)
        house.close()
        if not died:
            assert left > 3
            return
    raise AssertionError("it never ends")


def cut_to(house: House, partition: tuple[str, int], offset: int) -> None:
    """The log as it would be if only so much of it had reached the disk."""
    from protocol.kafka.records.batch import batches

    (path,) = house.storage.path(*partition).glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data[: sum(header.size for _, header in batches(data) if header.base_offset < offset)])
