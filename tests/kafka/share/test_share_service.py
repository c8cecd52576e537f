"""The share groups of a broker: beginning, restarting, administration, and entries in memory."""

from uuid import UUID

import attrs
import pytest

from broker.errors import RequestError, StorageError
from broker.kafka.groups.share.values import NewPartitions
from broker.kafka.share import share_sessions
from broker.kafka.share.partition_entry import ignore
from broker.kafka.share.share_store import KIND, Key, ShareState, decode
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from tests.kafka.share.stage import EARLIEST, Connected, Stage


def initialise(stage: Stage, first: int = 0, end: int = 2, topic_id: UUID | None = None) -> list[StorageError | None]:
    answers: list[StorageError | None] = []
    partitions = [NewPartitions("topic", topic_id or stage.topic_id, first, end)]
    stage.share.initialise("group", partitions, answers.append)
    stage.run()
    return answers


def test_group_begins_at_latest_offset_when_initialised(stage: Stage) -> None:
    stage.settings = attrs.evolve(EARLIEST, auto_offset_reset="latest")
    stage.write(3)
    assert [None] == initialise(stage)
    assert {("topic", 0): (3, 0), ("topic", 1): (0, 0)} == stage.share.offsets("group")
    stage.write(2)
    stage.start()
    assert [(3, 4, 1)] == stage.member().fetch()
    stage.write(2)
    assert [None] == initialise(stage), "it has begun"
    assert (3, 4) == stage.share.offsets("group")["topic", 0]


@pytest.mark.parametrize(
    "stored",
    [
        ShareState(0, 5, [], []),
        ShareState(0, 3, [(4, 6)], [(3, 4, 1)]),
        ShareState(0, 3, [(6, 8)], []),
    ],
)
def test_records_lost_by_the_log_are_not_acknowledged(stage: Stage, stored: ShareState) -> None:
    stage.write(3)
    stage.tables.documents[KIND, Key("group", stage.topic_id.bytes, 0).text] = stored.encode()
    stage.start()
    stage.write(5)  # before anybody fetches
    assert (3, 5) == stage.share.offsets("group")["topic", 0]
    stage.start()
    assert [(3, 7, 1)] == stage.member().fetch()


def test_unreadable_row_stays_unchanged(stage: Stage) -> None:
    key = Key("group", stage.topic_id.bytes, 0)
    stage.tables.documents[KIND, key.text] = b"?"
    stage.start()
    assert {("topic", 0): (-1, -1)} == stage.share.offsets("group")
    assert b"?" == stage.tables.documents[KIND, key.text]


def test_deleted_topic_is_not_begun_with(stage: Stage) -> None:
    assert [None] == initialise(stage, topic_id=UUID(int=4))
    assert {} == stage.share.offsets("group")
    stage.catalogue.broken = True
    assert "the disk is full" == str(initialise(stage)[0])
    assert {} == stage.share.offsets("group")


def test_group_that_cannot_begin_says_why(stage: Stage) -> None:
    stage.catalogue.broken = True
    session = stage.share.open_session("group", "m", Connected())  # type: ignore[arg-type]
    assert stage.share.add(session, (stage.topic_id.bytes, 0))
    (failure,) = stage.share.begin(session.unbegun, EARLIEST).values()
    assert "the disk is full" == str(failure)


def test_administrator_sets_offsets(stage: Stage) -> None:
    stage.write(10)
    answers: list[StorageError | None] = []
    for offset, start in ((4, 4), (99, 10), (0, 0)):
        assert stage.share.reset("group", stage.topic_id, 0, offset, answers.append)
        stage.run()
        assert (start, 10 - start) == stage.share.offsets("group")["topic", 0]
    assert [None] * 3 == answers
    assert not stage.share.reset("group", UUID(int=4), 0, 0, answers.append)
    stage.share.reset("group", stage.topic_id, 0, 6, answers.append)
    stage.run()
    stage.start()
    assert [(6, 9, 1)] == stage.member().fetch()


def test_reset_wakes_and_takes_away(stage: Stage) -> None:
    stage.write(4)
    holder, other = stage.member("a"), stage.member("b")
    holder.fetch()
    other.fetch()
    other.wait()
    stage.share.reset("group", stage.topic_id, 0, 1, lambda _: None)
    assert other.woken() or holder.session.ready
    assert [(1, 3, 1)] == other.fetch()
    with pytest.raises(RequestError):
        holder.acknowledge(2, 2)


def test_forgotten_partition_begins_anew(stage: Stage) -> None:
    stage.write(4)
    member = stage.member()
    member.fetch()
    member.acknowledge(0, 3)
    stage.run()
    member.wait()
    answers: list[StorageError | None] = []
    stage.share.forget("other", None, answers.append)
    stage.share.forget("group", [UUID(int=4)], answers.append)
    assert (4, 0) == stage.share.offsets("group")["topic", 0]
    stage.share.forget("group", [stage.topic_id], answers.append)
    stage.run()
    assert [None] * 3 == answers
    assert member.woken() and member.entry is not None
    stage.start()
    assert {} == stage.share.offsets("group")
    assert [(0, 3, 1)] == stage.member().fetch()


def test_state_forgotten_before_its_write_leaves_nothing(stage: Stage) -> None:
    """The last member leaves, and the group is deleted, while its first offsets wait for the disk."""
    answers: list[StorageError | None] = []
    partitions = [NewPartitions("topic", stage.topic_id, 0, 2)]
    stage.share.initialise("group", partitions, answers.append)
    stage.share.forget("group", None, answers.append)
    stage.run()
    assert [None, None] == answers
    assert {} == stage.share.offsets("group")
    assert [] == list(stage.catalogue.load_documents("share-partition"))
    assert 0 == stage.memory.used_bytes
    stage.share.initialise("group", partitions, answers.append)
    stage.share.forget("group", [UUID(int=4)], answers.append)
    stage.share.forget("group", [stage.topic_id], answers.append)
    stage.share.initialise("group", partitions, answers.append)
    stage.run()
    assert 2 == len(stage.share.offsets("group")), "it has begun again"
    assert 2 == len(list(stage.catalogue.load_documents("share-partition")))
    stage.share.forget("group", None, answers.append)
    stage.run()
    assert 0 == stage.memory.used_bytes


def test_deleted_topic_takes_everything_with_it(stage: Stage) -> None:
    stage.write(4)
    member = stage.member("m", 0, 1)
    member.fetch()
    member.fetch()
    member.wait()
    stage.logs.delete_topic("topic")
    stage.run()
    assert member.woken()
    assert {} == stage.share.offsets("group")
    assert [] == list(stage.catalogue.load_documents("share-partition"))


def test_unused_partition_is_only_a_row(stage: Stage) -> None:
    stage.write(4)
    member = stage.member("m", 0, 1)
    member.fetch()
    member.acknowledge(0, 1)
    stage.run()
    stage.share.connection_closed(member.connection)
    assert [] == stage.share.entries()
    assert (2, 2) == stage.share.offsets("group")["topic", 0]
    assert 2 == stage.share.acknowledged()[1]


def test_held_records_stay_in_memory_until_lock_ends(stage: Stage) -> None:
    stage.write(4)
    member = stage.member("m", 0)
    member.fetch()
    stage.share.drop(member.session, (stage.topic_id.bytes, 0))
    assert 1 == len(stage.share.entries())
    stage.wait(12_000)
    assert 0 == len(stage.share.entries())
    assert [(0, 3, 2)] == stage.member("n").fetch()


def test_sessions_give_back_their_room(stage: Stage) -> None:
    sessions = stage.share.sessions
    member = stage.member("m", 0)
    sessions.make_room(member.session, 1)  # as the request does it
    stage.share.drop(member.session, (stage.topic_id.bytes, 0))
    assert 0 == sessions.partitions.taken
    stage.share.drop(member.session, (stage.topic_id.bytes, 0))
    assert 0 == sessions.partitions.taken


def test_connection_end_with_many_sessions_delays_nobody(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "CONNECTION_MAX", 1001)
    stage.write(1)
    member = stage.member("first")
    for number in range(1000):
        stage.share.add(
            stage.share.open_session("group", f"m{number}", member.connection), (stage.topic_id.bytes, number % 2)
        )
    stage.share.connection_closed(member.connection)
    assert 800 < len(stage.share.sessions) < 1000, "the processor does a part of it"
    stage.run()
    assert not stage.share.sessions.all() and not stage.share.entries()


def test_partition_added_to_closed_session_is_not_kept(stage: Stage) -> None:
    session = stage.share.open_session("group", "m", Connected())  # type: ignore[arg-type]
    stage.share.close_session(session)
    assert stage.share.add(session, (stage.topic_id.bytes, 0))
    assert [] == stage.share.entries()
    assert [] == session.unbegun and {} == session.links


def test_partition_that_comes_twice_is_fetched_once(stage: Stage) -> None:
    member = stage.member("m", 0)
    link = member.link()
    assert stage.share.add(member.session, (stage.topic_id.bytes, 0))
    assert link is member.link()
    stage.share.close_session(member.session)
    assert [] == stage.share.entries()


def test_rows_of_deleted_topics_are_deleted_at_start(stage: Stage) -> None:
    stage.member()
    stage.logs.on_topic_gone.clear()
    stage.logs.delete_topic("topic")
    assert 1 == len(list(stage.catalogue.load_documents("share-partition")))
    stage.start()
    assert 0 == len(list(stage.catalogue.load_documents("share-partition")))


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (ShareState(3, 5, [(6, 8)], [(9, 10, 2)]), [(2, 4, 1)]),
        (ShareState(0, 0, [(1, 4)], []), [(0, 0, 1), (2, 4, 1)]),
        (ShareState(0, 1, [], [(1, 4, 2)]), [(1, 1, 3)]),
    ],
)
def test_records_lost_by_log_are_forgotten_at_start(
    stage: Stage, stored: ShareState, left: list[tuple[int, int, int]]
) -> None:
    """The log is shorter after the machine has failed. New records get the offsets before anybody fetches."""
    stage.write(2)
    key = stage.member().entry().key
    stage.catalogue.alter_documents([("share-partition", key.text, stored.encode())])
    stage.start()
    stage.write(3)
    stage.start()
    assert left == stage.member().fetch()[: len(left)]
    assert stored.state_epoch == decode(dict(stage.catalogue.load_documents("share-partition"))[key.text]).state_epoch


def test_unreadable_row_has_its_own_error(stage: Stage) -> None:
    member = stage.member("m", 0)
    key = member.entry().key
    stage.catalogue.alter_documents([("share-partition", key.text, b"nonsense"), ("share-partition", "x", b"")])
    stage.start()
    session = stage.share.open_session("group", "m", Connected())  # type: ignore[arg-type]
    stage.share.add(session, (stage.topic_id.bytes, 0))
    stage.share.add(session, (stage.topic_id.bytes, 1))
    failures = stage.share.begin(session.unbegun, EARLIEST)
    assert [0] == [entry.key.partition for entry in failures]
    assert (-1, -1) == stage.share.offsets("group")["topic", 0]


def test_nothing_is_kept_of_missing_groups(stage: Stage) -> None:
    """Nobody could list or delete it."""
    stage.unknown_groups.add("group")
    session = stage.share.open_session("group", "m", Connected())  # type: ignore[arg-type]
    stage.share.add(session, (stage.topic_id.bytes, 0))
    (failure,) = stage.share.begin(session.unbegun, EARLIEST).values()
    assert isinstance(failure, RequestError) and ErrorCode.unknown_topic_or_partition == failure.code
    stage.run()
    assert ([], 0) == (stage.catalogue.writes, stage.memory.used_bytes)
    stage.unknown_groups.clear()
    assert not stage.share.begin(session.unbegun, EARLIEST)
    stage.unknown_groups.add("group")  # it is asked only where the group begins
    assert [] != stage.catalogue.writes
    stage.share.close_session(session)
    assert [] == stage.share.entries()


def test_partition_set_aside_is_not_kept_in_memory(stage: Stage) -> None:
    member = stage.member("m", 0)
    link = member.session.links.pop((stage.topic_id.bytes, 0))
    stage.share.set_aside(member.session, link)
    assert [] == stage.share.entries()


def test_memory_of_groups_is_bounded(stage: Stage) -> None:
    """A client may make groups, and each of them leaves rows."""
    begun = []
    for number in range(100):
        session = stage.share.open_session(f"invented-{number}", "m", Connected())  # type: ignore[arg-type]
        stage.share.add(session, (stage.topic_id.bytes, 0))
        begun.append(not stage.share.begin(session.unbegun, EARLIEST))
        stage.share.close_session(session)
    assert 0 < sum(begun) < 30
    assert "coordinator_max_bytes" in str(initialise(stage)[0])
    used = stage.memory.used_bytes
    stage.start()
    assert used == stage.memory.used_bytes
    for number in range(100):
        stage.share.forget(f"invented-{number}", None, lambda _: None)
    stage.run()
    assert 0 == stage.memory.used_bytes
    assert [None] == initialise(stage)
    assert [None] == initialise(stage), "it counts once"
    used = stage.memory.used_bytes
    stage.catalogue.broken = True
    stage.share.initialise("other", [NewPartitions("topic", stage.topic_id, 0, 2)], lambda _: None)
    stage.run()
    assert used == stage.memory.used_bytes
    stage.catalogue.broken = False
    stage.logs.delete_topic("topic")
    stage.run()
    assert 0 == stage.memory.used_bytes


def test_nothing_is_acknowledged_before_the_group_has_begun(stage: Stage) -> None:
    """A client that is told of success would not ask again."""
    stage.write(3)
    session = stage.share.open_session("group", "m", Connected())  # type: ignore[arg-type]
    stage.share.add(session, (stage.topic_id.bytes, 0))
    with pytest.raises(RequestError) as caught:
        session.unbegun[0].acknowledge("m", [AcknowledgementBatch(0, 2, b"\x01")], ignore, may_renew=False)
    assert ErrorCode.invalid_record_state == caught.value.code
