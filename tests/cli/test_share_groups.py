"""`broker groups` with share groups, against a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.client import Broker
from broker.client.kafka import Cluster
from broker.client.kafka.admin.requests import ask
from broker.client.kafka.routing import GROUP
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.cli.conftest import Run
from tests.cli.test_groups import config, group, lines, objects

__all__ = ["group"]  # a fixture

MEMBER = "0" * 36


def heartbeat(cluster: Cluster, group: str, epoch: int, topic: str | None = None) -> None:
    names = None if topic is None else [topic]
    fields = {"group_id": group, "member_id": MEMBER, "member_epoch": epoch, "subscribed_topic_names": names}
    answer = ask(cluster.routing.coordinator(GROUP, group), ApiKey.SHARE_GROUP_HEARTBEAT, (1, 1), fields)
    assert not answer.error_code


@contextmanager
def member(broker: Broker, group: str, topic: str) -> Iterator[None]:
    with Cluster(config(broker)) as cluster:
        heartbeat(cluster, group, 0, topic)
        yield
        heartbeat(cluster, group, -1)


@pytest.fixture
def share_group(session_broker: Broker, run: Run, topic: str, group: str) -> str:
    """Without members; it has begun at offset 2 of partition 0 and at 0 of partition 1, and each has 5 records."""
    run("topics", "create", topic, "-p", "2")
    with Cluster(config(session_broker)) as cluster, cluster.producer() as producer:

        def write(partition: int, records: int) -> None:
            producer.send(topic, partition, build_batch([(None, b"value", [], 1_000)] * records), records)
            producer.flush()

        write(0, 2)
        with member(session_broker, group, topic):
            write(0, 3)
            write(1, 5)
    return group


def starts(run: Run, group: str) -> list[int]:
    return [partition["committed"] for partition in objects(run("groups", "describe", group, "--output", "json"))]


def test_share_group_is_shown_with_start_offsets(run: Run, topic: str, share_group: str) -> None:
    assert f"{share_group}\tshare\tEmpty\tshare" in lines(run("groups", "list"))
    heading, first, second = lines(run("groups", "describe", share_group))
    assert heading.startswith(f"{share_group}: Empty, 0 members, simple, coordinator 127.0.0.1:")
    assert first.startswith(f"{topic}\t0\t2\t5\t3\t")
    assert second.startswith(f"{topic}\t1\t0\t5\t5\t")
    assert share_group in run("groups", "describe").stdout.decode()


def test_its_members_are_shown(session_broker: Broker, run: Run, topic: str, share_group: str) -> None:
    with member(session_broker, share_group, topic):
        (shown,) = objects(run("groups", "describe", share_group, "--members", "--output", "json"))
    assert shown["member_id"] == MEMBER
    assert shown["assignment"] == [{"topic": topic, "partitions": [0, 1]}]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--all-topics", "--to-earliest"], [0, 0]),
        (["--topic", "TOPIC", "--to-latest"], [5, 5]),
        (["--topic", "TOPIC:1", "--to-offset", "3"], [2, 3]),
        (["--topic", "TOPIC", "--to-time", "-1h"], [5, 5]),
        (["--topic", "TOPIC", "--shift-by", "1"], [3, 1]),
        (["--from-file", "FILE"], [4, 0]),
    ],
)
def test_share_group_is_set_to_other_offsets(
    run: Run, topic: str, share_group: str, tmp_path: Path, how: list[str], expected: list[int]
) -> None:
    (tmp_path / "plan.csv").write_text(f"{topic},0,4\n")
    how = [word.replace("TOPIC", topic).replace("FILE", str(tmp_path / "plan.csv")) for word in how]
    result = run("groups", "reset-offsets", share_group, *how)
    assert b"Nothing was changed" in result.stderr
    assert starts(run, share_group) == [2, 0]
    run("groups", "reset-offsets", share_group, *how, "--execute")
    assert starts(run, share_group) == expected


def test_topics_are_forgotten(run: Run, topic: str, share_group: str) -> None:
    result = run("groups", "delete-offsets", share_group, "--topic", f"{topic}:0", fails=1)
    assert b"give --topic without partitions" in result.stderr
    run("groups", "delete-offsets", share_group, "--topic", topic)
    assert starts(run, share_group) == []
    result = run("groups", "delete-offsets", share_group, "--topic", topic, fails=1)
    assert f"has not begun with {topic}" in result.stderr.decode()


def test_a_share_group_with_members_is_left_alone(
    session_broker: Broker, run: Run, topic: str, share_group: str
) -> None:
    with member(session_broker, share_group, topic):
        for command in (
            ["reset-offsets", share_group, "--all-topics", "--to-earliest", "--execute"],
            ["delete", share_group],
        ):
            assert b"stop its consumers first" in run("groups", *command, fails=1).stderr
    assert starts(run, share_group) == [2, 0]


def test_a_share_group_is_deleted(run: Run, share_group: str) -> None:
    run("groups", "delete", share_group)
    assert share_group not in run("groups", "list").stdout.decode()
    assert b"There is no group" in run("groups", "describe", share_group, fails=1).stderr
