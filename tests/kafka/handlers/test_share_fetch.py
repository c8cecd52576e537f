"""ShareFetch: a member's records, its session, refusals, and the effects of compaction, retention and deletion."""

from collections.abc import Iterator
from uuid import UUID

import attrs
import pytest

from broker.kafka.features import SHARE_VERSION
from broker.kafka.handlers import share_fetch
from broker.kafka.share.share_partition import ShareSettings
from broker.security.acl import Operation, ResourceType
from broker.security.client_quotas import DEFAULT, Entity, Kind
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.kafka.handlers.share_client import ACCEPT, EARLIEST, RELEASE, Member, write
from tests.loops import loop_over
from tests.security.grants import Grants
from tests.waiting import wait_for

all_versions = loop_over("version", versions(share_fetch.API))


@pytest.fixture
def kafka(kafka: Kafka) -> Iterator[Kafka]:
    share = kafka.inside.share
    share.settings = lambda _: EARLIEST
    yield kafka
    kafka.inside.authorizer = None


@all_versions
def test_records_come_once_and_with_a_lock(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    write(kafka, topic, 2)
    with Member(kafka, topic, group=topic) as member:
        first = member.fetch(version=version)
        assert [(0, 4, 1)] == first.ranges()
        assert [0, 2, 3, 4] == first.offsets()
        assert 30.0 == first.lock_s
        assert {} == member.fetch(version=version).partitions


def test_two_members_never_get_the_same_records(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        for _ in range(20):
            write(kafka, topic, 5, partition)
    got: list[tuple[int, int]] = []
    with (
        Member(kafka, topic, (0, 1), topic, "a") as one,
        Member(kafka, topic, (0, 1), topic, "b") as other,
    ):
        for _ in range(12):
            got += one.fetch(max_records=10).all()
            got += other.fetch(max_records=10).all()
    assert sorted(got) == [(partition, offset) for partition in (0, 1) for offset in range(100)]


def test_groups_have_the_records_each_for_itself(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    for group in ("one-" + topic, "another-" + topic):
        with Member(kafka, topic, group=group) as member:
            assert [(0, 2, 1)] == member.fetch().ranges()


def test_acknowledgements_come_with_the_next_fetch(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        answer = member.fetch({0: [(0, 1, [ACCEPT]), (2, 3, [RELEASE, ACCEPT])]})
        assert (0, 0) == answer.errors()
        assert [(2, 2, 2)] == answer.ranges()
        assert kafka.inside.share.offsets(topic)[topic, 0] == (2, 1)


def test_acknowledgements_that_fail_do_not_keep_records_back(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member:
        member.fetch(max_records=2, share_acquire_mode=1)
        answer = member.fetch({0: [(0, 3, [ACCEPT])]}, max_wait=10_000)
        assert (0, ErrorCode.invalid_request) == answer.errors()
        assert [(2, 3, 1)] == answer.ranges()
        answer = member.fetch({0: [(7, 7, [ACCEPT])]}, max_wait=10_000)
        assert (0, ErrorCode.invalid_record_state) == answer.errors()


def test_the_record_limit_divides_a_batch(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 10)
    with Member(kafka, topic, group=topic) as member:
        assert [(0, 3, 1)] == member.fetch(max_records=4, share_acquire_mode=1).ranges()
        assert [(4, 7, 1)] == member.fetch(max_records=4, share_acquire_mode=1).ranges()
        rest = member.fetch(max_records=4)
        assert [(8, 9, 1)] == rest.ranges()
        assert [0, 9] == rest.offsets()


def test_partitions_take_turns(kafka: Kafka) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        for _ in range(4):
            write(kafka, topic, 5, partition)
    with Member(kafka, topic, (0, 1, 2), topic) as member:
        got = [set(dict(member.fetch(max_records=5).all())) for _ in range(6)]
        assert [{0}, {1}, {2}] * 2 == got


def test_locked_records_are_limited_and_others_wait(kafka: Kafka) -> None:
    kafka.inside.share.settings = lambda _: attrs.evolve(EARLIEST, max_record_locks=10)
    topic = kafka.topic()
    write(kafka, topic, 8)
    write(kafka, topic, 8)
    with Member(kafka, topic, group=topic) as greedy, Member(kafka, topic, group=topic, member_id="b") as other:
        assert [(0, 9, 1)] == greedy.fetch().ranges()
        assert [] == other.fetch().ranges()
        greedy.acknowledged({0: [(0, 4, [ACCEPT])]})
        assert [(10, 14, 1)] == other.fetch().ranges()


def test_closed_session_releases_its_records(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        member.fetch()
        assert [] == other.fetch().ranges()
        member.epoch = -1
        assert {0: (0, 0)} == {
            number: (one.error_code, one.acknowledge_error_code)
            for number, one in member.fetch({0: [(0, 0, [ACCEPT])]}).partitions.items()
        }
        assert [(1, 3, 1)] == other.fetch().ranges()
        assert ErrorCode.share_session_not_found == member.close_session().error


def test_a_session_ends_with_its_connection(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
    with Member(kafka, topic, group=topic, member_id="b") as other:
        assert [(0, 3, 1)] == other.fetch(max_wait=30_000).ranges()


def test_departed_member_can_acknowledge_and_close_its_session(kafka: Kafka) -> None:
    """librdkafka sends both at once, on two connections."""
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        for epoch in (0, -1):
            beat = kafka.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=topic,
                member_id="member",
                member_epoch=epoch,
                subscribed_topic_names=[topic],
            )
            assert beat.error_code == ErrorCode.none
            if epoch == 0:
                member.fetch()
        assert {0: 0} == member.acknowledged({0: [(0, 1, [ACCEPT])]})
        member.close_session()
        assert [(2, 3, 1)] == other.fetch().ranges()


def test_timed_out_member_releases_its_records(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        member.fetch()
        kafka.inside.share.member_fenced(topic, "member")
        assert [(0, 3, 1)] == other.fetch().ranges()
        assert ErrorCode.share_session_not_found == member.fetch().error


def test_a_new_session_keeps_what_the_member_holds(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 4)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        member.epoch = 0
        assert [] == member.fetch().ranges()
        assert {0: 0} == member.acknowledged({0: [(0, 0, [ACCEPT])]})
        member.close_session()
        member.epoch = 0
        assert [(1, 3, 1)] == member.fetch().ranges()


def test_forgotten_partitions_may_be_acknowledged_but_not_fetched(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    with Member(kafka, topic, (0, 1), topic) as member:
        write(kafka, topic, 2, 0)
        assert [(0, 1, 1)] == member.fetch().ranges(0)
        forgotten = [{"topic_id": member.topic_id, "partitions": (0,)}]
        write(kafka, topic, 2, 0)
        write(kafka, topic, 2, 1)
        answer = member.fetch(forgotten_topics_data=forgotten)
        assert ([], [(0, 1, 1)]) == (answer.ranges(0), answer.ranges(1))
        assert {0: 0} == member.acknowledged({0: [(0, 1, [ACCEPT])]})
        member.partitions = [0]
        assert [(2, 3, 1)] == member.fetch({0: []}).ranges(0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"group_id": None}, ErrorCode.invalid_request),
        ({"group_id": "g" * 256}, ErrorCode.invalid_request),
        ({"member_id": "m" * 256}, ErrorCode.invalid_request),
        ({"share_acquire_mode": 2}, ErrorCode.invalid_request),
        ({"share_session_epoch": 3}, ErrorCode.share_session_not_found),
        ({"share_session_epoch": -1}, ErrorCode.share_session_not_found),
        ({"share_session_epoch": -2}, ErrorCode.share_session_not_found),
    ],
)
def test_what_no_session_allows_is_refused(kafka: Kafka, fields: dict[str, object], code: int) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        assert code == member.fetch(**fields).error  # type: ignore[arg-type]


def test_share_groups_may_be_switched_off(kafka: Kafka) -> None:
    topic = kafka.topic()
    features = kafka.inside.features
    with Member(kafka, topic, group=topic) as member:
        features.finalize({SHARE_VERSION: 0})
        try:
            assert ErrorCode.unsupported_version == member.fetch().error
            assert ErrorCode.unsupported_version == member.acknowledge({}).error_code
        finally:
            features.finalize({SHARE_VERSION: 1})
        member.epoch = 0
        assert 0 == member.fetch().error


def test_the_epoch_has_to_be_the_next(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        member.epoch = 5
        assert ErrorCode.invalid_share_session_epoch == member.fetch().error
        member.epoch = 1
        assert 0 == member.fetch().error


def test_the_first_request_of_a_session_acknowledges_nothing(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        assert ErrorCode.invalid_request == member.fetch({0: [(0, 0, [ACCEPT])]}).error


def test_there_are_only_so_many_sessions(kafka: Kafka) -> None:
    topic = kafka.topic()
    sessions = kafka.inside.share.sessions
    sessions.max_sessions = len(sessions) + 1
    try:
        with Member(kafka, topic, group=topic) as one, Member(kafka, topic, group=topic, member_id="b") as other:
            assert 0 == one.fetch().error
            assert ErrorCode.share_session_limit_reached == other.fetch().error
    finally:
        sessions.max_sessions = 2000


def test_missing_partitions_are_reported_each_time(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    with Member(kafka, UUID(int=77), group=topic) as member:
        assert (ErrorCode.unknown_topic_id, 0) == member.fetch(max_wait=30_000).errors()
        assert (ErrorCode.unknown_topic_id, 0) == member.fetch(max_wait=30_000).errors()
    with Member(kafka, topic, (0, 5), group=topic) as member:
        write(kafka, topic)
        answer = member.fetch(max_wait=30_000)
        assert (ErrorCode.unknown_topic_or_partition, 0) == answer.errors(5)
        assert [(0, 0, 1)] == answer.ranges(0)


def test_a_partition_that_comes_later_is_fetched(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    with Member(kafka, topic, (1,), group=topic) as member:
        assert (ErrorCode.unknown_topic_or_partition, 0) == member.fetch().errors(1)
        kafka.inside.logs.add_partitions(topic, 2)
        write(kafka, topic, 2, 1)
        assert [(0, 1, 1)] == member.fetch().ranges(1)


def test_a_topic_without_its_disk_is_told_of(kafka: Kafka) -> None:
    topic = kafka.topic(1)
    with Member(kafka, topic, group=topic) as member:
        write(kafka, topic)
        member.fetch()
        kafka.take_offline(topic)
        assert (ErrorCode.kafka_storage_error, 0) == member.fetch(max_wait=30_000).errors()


def test_a_broker_without_memory_answers_what_clients_know(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's share consumer fails with an exception for most errors of a partition."""
    topic = kafka.topic(1)
    write(kafka, topic)
    with Member(kafka, topic, group=topic) as member:
        with monkeypatch.context() as patched:
            patched.setattr(kafka.inside.share, "_has_memory_for", lambda _: False)
            assert (ErrorCode.replica_not_available, 0) == member.fetch(max_wait=30_000).errors()
        assert [(0, 0, 1)] == member.fetch().ranges()


def test_read_right_is_needed_for_each_topic(kafka: Kafka) -> None:
    topic, secret = kafka.topic(), kafka.topic()
    write(kafka, topic)
    write(kafka, secret)
    grants = kafka.inside.authorizer = Grants()
    with Member(kafka, topic, group=topic) as member, Member(kafka, secret, group=topic, member_id="b") as other:
        with grants.only((Operation.READ, ResourceType.GROUP, topic), (Operation.READ, ResourceType.TOPIC, topic)):
            assert [(0, 0, 1)] == member.fetch().ranges()
            assert (ErrorCode.topic_authorization_failed, 0) == other.fetch(max_wait=30_000).errors()
        with grants.only((Operation.READ, ResourceType.GROUP, topic)):
            answer = member.fetch({0: [(0, 0, [ACCEPT])]}, max_wait=100)
            assert ErrorCode.topic_authorization_failed == answer.errors()[1]
            write(kafka, topic)
            assert (ErrorCode.topic_authorization_failed, 0) == member.fetch(max_wait=30_000).errors()
        assert [(1, 1, 1)] == member.fetch().ranges()
        assert [(0, 0, 1)] == other.fetch().ranges()


@pytest.mark.parametrize(
    ("reset", "start"), [("earliest", 0), ("latest", 5), ("by_duration:PT1H", 3), ("by_duration:PT0S", 5)]
)
def test_a_group_begins_where_its_settings_say(kafka: Kafka, reset: str, start: int) -> None:
    topic = kafka.topic()
    now = kafka.inside.clock.time_ms()
    for age_ms in (7_200_000, 7_200_000, 7_200_000, 1_800_000, 1_800_000):
        kafka.fill(topic, now - age_ms)
    duration = 3_600_000 if reset.endswith("1H") else 0
    kafka.inside.share.settings = lambda _: ShareSettings(auto_offset_reset=reset, reset_duration_ms=duration)
    with Member(kafka, topic, group=topic) as member:
        found = member.fetch().ranges()
        assert ([(start, 4, 1)] if start < 5 else []) == found
        assert start == kafka.inside.share.offsets(topic)[topic, 0].start
        write(kafka, topic)
        assert [(5, 5, 1)] == member.fetch().ranges()


def test_records_deleted_by_an_administrator_are_passed_over(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 5)
    write(kafka, topic, 5)
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        assert [(0, 4, 1)] == member.fetch(max_records=1).ranges()
        log.trimming.delete_records(7)
        assert [(7, 9, 1)] == other.fetch().ranges()
        assert {0: 0} == member.acknowledged({0: [(0, 4, [ACCEPT])]}), "they are gone: nobody gets them again"
        assert kafka.inside.share.offsets(topic)[topic, 0] == (7, 3)


def test_a_topic_that_is_made_again_begins_anew(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 5)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        kafka.inside.logs.delete_topic(topic)
        assert (ErrorCode.unknown_topic_id, 0) == member.fetch(max_wait=30_000).errors()
        assert (0, ErrorCode.unknown_topic_id) == (
            0,
            member.acknowledged({0: [(0, 4, [ACCEPT])]})[0],
        )
        kafka.inside.logs.create_topic(topic, 1, {})
        write(kafka, topic, 2)
        with Member(kafka, topic, group=topic, member_id="b") as other:
            assert [(0, 1, 1)] == other.fetch().ranges()


def test_first_batch_comes_despite_any_limit_but_zero(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 2)
    with Member(kafka, topic, group=topic) as member:
        assert [(0, 1, 1)] == member.fetch(max_bytes=1).ranges(), "the first batch, whatever the limit"
        write(kafka, topic, 2)
        assert [] == member.fetch(max_bytes=0).ranges()
        assert [(2, 3, 1)] == member.fetch().ranges()


def test_unused_share_partition_is_only_a_row(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 5)
    share = kafka.inside.share
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        member.acknowledged({0: [(0, 1, [ACCEPT]), (3, 3, [ACCEPT])]})
        member.close_session()
    key = (member.topic_id.bytes, 0)
    assert share.entry(topic, key) is None
    assert share.offsets(topic)[topic, 0] == (2, 2)
    with Member(kafka, topic, group=topic) as member:
        assert [(2, 2, 1), (4, 4, 1)] == member.fetch().ranges()


def test_throttled_client_gets_records_later_without_a_delivery(kafka: Kafka) -> None:
    topic = kafka.topic()
    everybody = Entity(client_id=DEFAULT)
    for _ in range(4):
        write(kafka, topic, 1, value=bytes(3_000))
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        kafka.inside.quotas.alter([(everybody, Kind.FETCH, 100.0)])
        try:
            assert [(0, 0, 1)] == member.fetch(max_records=1).ranges()
            assert [] == other.fetch().ranges()
            assert 1 == member_holds(kafka, member)
        finally:
            kafka.inside.quotas.alter([(everybody, Kind.FETCH, None)])
        assert [(1, 3, 1)] == other.fetch().ranges()


def member_holds(kafka: Kafka, member: Member) -> int:
    """How many records all members of its group hold."""
    entry = kafka.inside.share.entry(member.group, (member.topic_id.bytes, 0))
    assert entry is not None and entry.partition is not None
    return entry.partition.in_flight_count


def test_a_group_that_does_not_exist_leaves_nothing() -> None:
    """A client may invent as many as it likes. The broker is the test's own: nothing else changes what its groups take."""
    with Kafka() as kafka:
        topic = kafka.topic()
        write(kafka, topic, 3)
        share, groups = kafka.inside.share, kafka.inside.groups
        with Member(kafka, topic, group=topic) as member:
            before = groups.memory.used_bytes, len(share.entries())
            for number in range(3):
                member.group, member.epoch = f"{topic}-invented-{number}", 0
                for _ in range(2):
                    answer = member.fetch()
                    assert not answer.error
                    assert (ErrorCode.unknown_topic_or_partition, 0) == answer.errors()
                member.close_session()
                assert {} == share.offsets(member.group)
                assert member.group not in groups.names()
            assert before == (groups.memory.used_bytes, len(share.entries()))


def test_records_in_object_store_are_shared() -> None:
    settings = {
        "log_segment_bytes": 300,
        "log_local_retention_bytes": 0,
        "log_flush_offset_checkpoint_interval_ms": 20,
        "remote_log_manager_task_interval_ms": 20,
    }
    with Kafka(objects="memory://", **settings) as kafka:
        kafka.inside.share.settings = lambda _: EARLIEST
        topic = kafka.topic()
        for number in range(20):
            write(kafka, topic, 1, value=b"%d" % number * 20)
        log = kafka.inside.logs.get(topic, 0)
        assert log is not None
        end = log.view.bases[-1]
        wait_for(lambda: log.around.tier is not None and log.around.tier.earliest_local(log) == end > 10)
        got: list[tuple[int, int]] = []
        with Member(kafka, topic, group=topic) as member:
            while len(got) < 20:
                fetched = member.fetch(max_records=3)
                got += fetched.all()
                assert fetched.offsets()
        assert [(0, offset) for offset in range(20)] == got
