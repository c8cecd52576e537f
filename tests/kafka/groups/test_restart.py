"""A whole broker stops and starts again: members and offsets are as before."""

from pathlib import Path

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import ask_join, ask_sync, commit, heartbeat, join, join_fields, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka


def test_members_continue_and_commit_in_their_generation(tmp_path: Path) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        topic = kafka.topic(partitions=2)
        member_id = stable(kafka, "g", topics=[topic])
        assert commit(kafka, "g", topic, 7, member_id=member_id, generation_id_or_member_epoch=1) == [ErrorCode.none]
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert heartbeat(kafka, "g", member_id, 1) == ErrorCode.none
        assert ask_sync(kafka, "g", member_id, 1).assignment == b"all"
        groups = [{"group_id": "g", "topics": [{"name": topic, "partition_indexes": [0, 1]}]}]
        (group,) = kafka.ask(ApiKey.OFFSET_FETCH, 8, groups=groups).groups
        assert [partition.committed_offset for partition in group.topics[0].partitions] == [7, -1]
        assert commit(kafka, "g", topic, 8, member_id=member_id, generation_id_or_member_epoch=1) == [ErrorCode.none]


def test_static_member_restarting_with_broker_keeps_its_assignment(tmp_path: Path) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        old = stable(kafka, "g", group_instance_id="pod-0")
    with Kafka(data_dir=str(tmp_path)) as kafka:
        again = ask_join(kafka, "g", group_instance_id="pod-0")
        assert (again.error_code, again.generation_id) == (ErrorCode.none, 1)
        synced = ask_sync(kafka, "g", again.member_id, 1, group_instance_id="pod-0")
        assert synced.assignment == b"all"
        assert heartbeat(kafka, "g", old, 1, group_instance_id="pod-0") == ErrorCode.fenced_instance_id
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert heartbeat(kafka, "g", again.member_id, 1, group_instance_id="pod-0") == ErrorCode.none


def test_broker_can_stop_while_members_are_parked(tmp_path: Path) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka, Beside(kafka) as newcomer:
        member_id = join(kafka, "g").member_id
        newcomer.tell(ApiKey.JOIN_GROUP, 3, **join_fields("g"))
        while heartbeat(kafka, "g", member_id, 1) == ErrorCode.none:
            pass
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert heartbeat(kafka, "g", member_id, 1) == ErrorCode.unknown_member_id  # its generation never became stable
        assert join(kafka, "g").generation_id == 1
