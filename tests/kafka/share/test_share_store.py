"""Share partitions in the catalogue: answered changes are durable, many changes share a row, and failures are tried again."""

import pytest

from broker.errors import RequestError
from broker.kafka.share.share_store import Key, load
from protocol.kafka.errors import ErrorCode
from tests.kafka.share.stage import EARLIEST, Connected, Stage


def rows(stage: Stage) -> int:
    return sum(len(changes) for changes in stage.catalogue.writes)


def test_answer_means_state_is_in_the_catalogue(stage: Stage) -> None:
    stage.write(5)
    member = stage.member()
    member.fetch()
    answers = member.acknowledge(0, 2)
    assert [] == answers
    stage.run()
    assert [None] == answers
    stage.start()
    assert [(3, 4, 1)] == stage.member().fetch()


def test_unwritten_acknowledgements_are_delivered_again(stage: Stage) -> None:
    stage.write(5)
    member = stage.member()
    member.fetch()
    member.acknowledge(0, 2)
    stage.start()
    assert [(0, 4, 1)] == stage.member().fetch()


def test_many_acknowledgements_are_one_row(stage: Stage) -> None:
    stage.write(100)
    member = stage.member()
    member.fetch()
    before = rows(stage)
    answers = [member.acknowledge(number, number) for number in range(100)]
    stage.run()
    assert [[None]] * 100 == answers
    assert 1 == rows(stage) - before


def test_unstored_records_are_not_acknowledged(stage: Stage) -> None:
    stage.write(6)
    member = stage.member()
    member.fetch()
    member.acknowledge(5, 5)
    stage.run()
    stage.catalogue.broken = True
    answers = [member.acknowledge(0, 2), member.acknowledge(4, 4, 3)]
    stage.run()
    assert [["the disk is full"]] * 2 == [[str(error) for error in answer] for answer in answers]
    assert 1 == stage.share.acknowledged()[1]
    stage.catalogue.broken = False
    again = member.acknowledge(0, 1)
    stage.run()
    assert [None] == again
    stage.wait(11_000)
    assert [(2, 4, 2)] == stage.member("n").fetch()
    stage.start()
    assert [(2, 4, 2)] == stage.member("n").fetch()


def test_unstored_acknowledgement_is_released_when_lock_ends(stage: Stage) -> None:
    stage.write(3)
    member = stage.member()
    member.fetch()
    stage.wait(9_000)
    stage.catalogue.broken = True
    member.acknowledge(0, 2)
    stage.run()
    stage.share.drop(member.session, (stage.topic_id.bytes, 0))
    stage.catalogue.broken = False
    stage.wait(9_000)
    assert [] == stage.member("n").fetch(), "the lock begins anew"
    stage.wait(2_000)
    assert [(0, 2, 2)] == stage.member("n").fetch()


def test_disk_may_fail_after_all_locks_ended(stage: Stage) -> None:
    stage.write(3)
    member = stage.member()
    member.fetch()
    stage.catalogue.broken = True
    member.acknowledge(0, 2)
    stage.clock.sleep_ms(11_000)
    stage.timer.step(0)
    stage.run()
    stage.catalogue.broken = False
    partition = member.entry().partition
    assert partition is not None and 3 == partition.in_flight_count
    stage.wait(11_000)
    assert 0 == partition.in_flight_count
    assert [(0, 2, 2)] == stage.member("n").fetch()


def test_records_reset_by_administrator_are_not_given_back(stage: Stage) -> None:
    stage.write(3)
    member = stage.member()
    member.fetch()
    stage.catalogue.broken = True
    member.acknowledge(0, 1)
    stage.share.reset("group", stage.topic_id, 0, 3, lambda _: None)
    stage.run()
    stage.catalogue.broken = False
    assert (3, 0) == stage.share.offsets("group")["topic", 0]
    assert [] == member.fetch()


def test_counts_of_deliveries_are_written_within_two_seconds(stage: Stage) -> None:
    stage.write(5)
    member = stage.member()
    member.fetch()
    stage.wait(12_000)
    stage.start()
    assert [(0, 4, 2)] == stage.member().fetch()


def test_failed_deletion_is_repeated_unless_group_returned(stage: Stage) -> None:
    member = stage.member("m", 0, 1)
    member.session.connection = None
    stage.share.close_session(member.session)
    stage.run()
    stage.catalogue.broken = True
    stage.share.forget("group", None, lambda _: None)
    stage.run()
    stage.catalogue.broken = False
    stage.write(2)
    assert [(0, 1, 1)] == stage.member().fetch()
    stage.wait(1_000)
    assert {0} == {key.partition for key in load(stage.catalogue)}  # type: ignore[arg-type]


def test_partition_does_not_begin_during_its_deletion(stage: Stage) -> None:
    """It would delete the new row, too."""
    stage.write(2)
    stage.share.close_session(stage.member().session)
    stage.share.forget("group", None, lambda _: None)
    session = stage.share.open_session("group", "n", Connected())  # type: ignore[arg-type]
    stage.share.add(session, (stage.topic_id.bytes, 0))
    (error,) = stage.share.begin(session.unbegun, EARLIEST).values()
    assert isinstance(error, RequestError) and ErrorCode.replica_not_available == error.code
    stage.run()
    assert {} == stage.share.begin(session.unbegun, EARLIEST)
    stage.run()
    assert 1 == len(load(stage.catalogue))  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["g", "", "a\0b", "ä" * 50])
def test_keys_are_read_as_they_were_written(group: str) -> None:
    key = Key(group, bytes(range(16)), 12)
    assert key == Key.parse(key.text)
