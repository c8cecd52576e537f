"""ShareAcknowledge: durability when answered, refusals, and the state after a restart."""

from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest

from broker.errors import StorageError
from broker.kafka.handlers import share_acknowledge
from broker.kafka.handlers.share_fetch import has_many_acknowledgements
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch, ShareAcknowledgeRequest, SharePartitionRequest
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.kafka.handlers.share_client import ACCEPT, EARLIEST, GAP, REJECT, RELEASE, RENEW, Member, write
from tests.loops import loop_over

all_versions = loop_over("version", versions(share_acknowledge.API))


@pytest.fixture
def kafka(kafka: Kafka) -> Kafka:
    kafka.inside.share.settings = lambda _: EARLIEST
    return kafka


@all_versions
def test_each_type_does_what_it_says(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    write(kafka, topic, 5)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        answer = member.acknowledge({0: [(0, 3, [ACCEPT, RELEASE, REJECT, GAP])]}, version)
        assert (ErrorCode.none, 30.0 if version >= 2 else None) == (
            answer.error_code,
            answer.acquisition_lock_timeout.total_seconds() if version >= 2 else None,
        )
        assert [(1, 1, 2)] == member.fetch().ranges()
        assert {0: 0} == member.acknowledged({0: [(1, 1, [ACCEPT]), (4, 4, [ACCEPT])]}, version)
        assert (5, 0) == kafka.inside.share.offsets(topic)[topic, 0]


def test_partitions_are_answered_each_for_itself(kafka: Kafka) -> None:
    topic = kafka.topic(3)
    write(kafka, topic, 2, 0)
    write(kafka, topic, 2, 1)
    with Member(kafka, topic, (0, 1, 2), group=topic) as member:
        member.fetch()
        acks = {0: [(0, 1, [ACCEPT])], 1: [(0, 2, [ACCEPT])], 2: [(0, 0, [ACCEPT])], 7: [(0, 0, [ACCEPT])]}
        assert {
            0: 0,
            1: ErrorCode.invalid_request,
            2: ErrorCode.invalid_record_state,
            7: ErrorCode.unknown_topic_or_partition,
        } == member.acknowledged(acks)
        member.topic_id = UUID(int=99)
        assert {0: ErrorCode.unknown_topic_id} == member.acknowledged({0: [(0, 0, [ACCEPT])]})


def test_the_session_must_be_there(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic)
    with Member(kafka, topic, group=topic) as member:
        assert ErrorCode.invalid_share_session_epoch == member.acknowledge({}).error_code
        assert ErrorCode.share_session_not_found == member.acknowledge({}).error_code
        member.epoch = 0
        member.fetch()
        member.epoch = 9
        assert ErrorCode.invalid_share_session_epoch == member.acknowledge({0: [(0, 0, [ACCEPT])]}).error_code


def test_the_last_request_of_a_session_may_acknowledge(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 2)
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic, member_id="b") as other:
        member.fetch()
        member.epoch = -1
        assert {0: 0} == member.acknowledged({0: [(0, 0, [ACCEPT])]})
        assert [(1, 1, 1)] == other.fetch().ranges()


def test_renewals_need_the_flag_and_the_setting(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 2)
    renew = {0: [(0, 1, [RENEW])]}
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        assert {0: ErrorCode.invalid_request} == member.acknowledged(renew)
        assert {0: 0} == member.acknowledged(renew, is_renew_ack=True)
        assert (0, 0) == member.fetch(renew, is_renew_ack=True, max_wait=60_000).errors(), "and it does not wait"
        kafka.inside.share.settings = lambda _: attrs.evolve(EARLIEST, renew_acknowledge_enable=False)
        assert {0: ErrorCode.invalid_request} == member.acknowledged(renew, is_renew_ack=True)
        assert {0: 0} == member.acknowledged({0: [(0, 1, [ACCEPT])]})


def test_thousands_of_ranges_of_one_record_are_handled(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 2_000)
    with Member(kafka, topic, group=topic) as member:
        assert [(0, 1999, 1)] == member.fetch(max_records=2_000).ranges()
        assert {0: 0} == member.acknowledged({0: [(number, number, [ACCEPT]) for number in range(1, 2_000, 2)]})
        assert (0, 1_000) == kafka.inside.share.offsets(topic)[topic, 0]
        types = [ACCEPT, ACCEPT, RELEASE] * 700
        member.acknowledged({0: [(number, number, [types[number]]) for number in range(0, 2_000, 2)]})
        again = member.fetch(max_records=2_000)
        assert all(number % 2 == 0 and types[number] == RELEASE for _, number in again.all())


def test_many_types_are_handled(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 1_500)
    types = [ACCEPT, RELEASE, ACCEPT] * 500
    with Member(kafka, topic, group=topic) as member:
        member.fetch(max_records=1_500)
        assert {0: 0} == member.acknowledged({0: [(0, 1_499, types)]})
        answer = member.fetch({0: []}, max_records=1_500)
        released = [number for number, kind in enumerate(types) if kind == RELEASE]
        assert released == [offset for _, offset in answer.all()]
        again = [ACCEPT if number % 3 == 1 else GAP for number in range(1, 1_499)]
        assert {0: ErrorCode.invalid_record_state} == member.acknowledged({0: [(1, 1_498, again)]})
        assert (0, 0) == member.fetch({0: [(number, number, [ACCEPT]) for number in released]}).errors()
        assert (1_500, 0) == kafka.inside.share.offsets(topic)[topic, 0]


@pytest.mark.parametrize(
    ("batches", "is_many"),
    [
        ([(0, 4_999, b"\1")], False),
        ([(0, 499, bytes(500))], False),
        ([(0, 2_499, b"\1"), (2_500, 5_000, b"\1")], True),
        ([(0, 500, bytes(501))], True),
        ([(0, 2**63 - 1, b"\4")], True),
        ([(2**63 - 1, 0, b"\4")], False),
    ],
)
def test_many_ranges_are_left_to_a_handler(batches: list[tuple[int, int, bytes]], is_many: bool) -> None:
    acknowledgements = [AcknowledgementBatch(*batch) for batch in batches]
    partitions = [SharePartitionRequest((bytes(16), number), [one]) for number, one in enumerate(acknowledgements)]
    request = ShareAcknowledgeRequest("group", "member", 1, is_renew=True, partitions=partitions)
    assert has_many_acknowledgements(request) is is_many


@pytest.mark.parametrize("types", [[], [ACCEPT, ACCEPT], [9], [ACCEPT] * 4])
def test_types_of_wrong_length_or_kind_are_refused(kafka: Kafka, types: list[int]) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        assert {0: ErrorCode.invalid_request} == member.acknowledged({0: [(0, 2, types)]})
        assert {0: ErrorCode.invalid_record_state} == member.acknowledged({0: [(2**62, 2**62 + 1, [ACCEPT])]})
        assert {0: ErrorCode.invalid_request} == member.acknowledged({0: [(0, 2**62, [ACCEPT])]})
        assert {0: 0} == member.acknowledged({0: [(0, 2, [ACCEPT])]})


def test_unstored_acknowledgement_is_reported_and_may_be_repeated(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        catalogue = kafka.inside.catalogue

        def fail(_: Any) -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(type(catalogue), "alter_documents", lambda self, changes: fail(changes))
            assert {0: ErrorCode.kafka_storage_error} == member.acknowledged({0: [(0, 0, [ACCEPT])]})
        assert {0: 0} == member.acknowledged({0: [(2, 2, [ACCEPT])]})
        assert {(topic, 0): (0, 2)} == kafka.inside.share.offsets(topic)
        assert {0: 0} == member.acknowledged({0: [(0, 0, [ACCEPT])]})
        assert {(topic, 0): (1, 1)} == kafka.inside.share.offsets(topic)
        assert [] == member.fetch().ranges()
        rows = dict(catalogue.load_documents("share-partition"))
        assert any(key.startswith(topic + "\0") for key in rows)


def test_a_restart_finds_what_was_acknowledged(tmp_path: Path) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        kafka.inside.share.settings = lambda _: EARLIEST
        topic = kafka.topic()
        write(kafka, topic, 10)
        with Member(kafka, topic, group="group") as member:
            member.fetch()
            acks = [(0, 1, [ACCEPT]), (3, 4, [RELEASE]), (6, 6, [REJECT])]
            assert {0: 0} == member.acknowledged({0: acks})
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert {(topic, 0): (2, 7)} == kafka.inside.share.offsets("group")
        with Member(kafka, topic, group="group") as member:
            assert [(2, 2, 1), (3, 4, 2), (5, 5, 1), (7, 9, 1)] == member.fetch().ranges()
        kafka.inside.logs.delete_topic(topic)
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert {} == kafka.inside.share.offsets("group")
        assert [] == list(kafka.inside.catalogue.load_documents("share-partition"))


def test_group_start_survives_a_restart(tmp_path: Path) -> None:
    """What came after it had begun at the end of the log is not lost, although nothing was acknowledged."""
    with Kafka(data_dir=str(tmp_path)) as kafka:
        topic = kafka.topic()
        write(kafka, topic, 10)
        with Member(kafka, topic, group="group") as member:
            assert {} == member.fetch().partitions
        write(kafka, topic, 5)
    with Kafka(data_dir=str(tmp_path)) as kafka, Member(kafka, topic, group="group") as member:
        assert [(10, 14, 1)] == member.fetch().ranges()
