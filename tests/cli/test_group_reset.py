"""`broker groups reset-offsets`, `delete` and `delete-offsets` against a broker."""

from pathlib import Path

import pytest

from broker.client import Broker
from broker.client.kafka import Cluster
from tests.cli.conftest import Run
from tests.cli.test_groups import commit, config, group, lines, member, objects, read_some

__all__ = ["group", "read_some"]  # fixtures


@pytest.mark.usefixtures("read_some")
def test_nothing_changes_without_execute(run: Run, topic: str, group: str) -> None:
    result = run("groups", "reset-offsets", group, "--topic", topic, "--to-earliest")
    assert [f"{topic}\t0\t2\t0", f"{topic}\t1\t5\t0"] == lines(result)
    assert b"add --execute" in result.stderr
    assert [2, 5] == committed(run, group)
    run("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    assert [0, 0] == committed(run, group)


def committed(run: Run, group: str) -> list[int]:
    return [partition["committed"] for partition in objects(run("groups", "describe", group, "--output", "json"))]


@pytest.mark.usefixtures("read_some")
@pytest.mark.parametrize(
    ("how", "offsets"),
    [
        (["--topic", "TOPIC", "--shift-by", "-1"], [1, 4]),
        (["--all-topics", "--to-latest"], [5, 5]),
        (["--topic", "TOPIC:0", "--to-offset", "3"], [3, 5]),
        (["--topic", "TOPIC", "--to-current"], [2, 5]),
        (["--topic", "TOPIC:0-1", "--to-offset", "1000"], [5, 5]),
        (["--topic", "TOPIC", "--to-time", "-1h"], [0, 0]),
        (["--topic", "TOPIC", "--to-time", "4102444800000"], [5, 5]),  # the year 2100
        (["--topic", "TOPIC", "--by-duration", "PT1H30M"], [0, 0]),
        (["--from-file", "FILE"], [4, 2]),
    ],
)
def test_every_way_to_say_where(
    session_broker: Broker, run: Run, topic: str, group: str, tmp_path: Path, how: list[str], offsets: list[int]
) -> None:
    (tmp_path / "plan.csv").write_text(f'{topic},0,4\n"{topic}",1,2\n')
    how = [word.replace("TOPIC", topic).replace("FILE", str(tmp_path / "plan.csv")) for word in how]
    run("groups", "reset-offsets", group, *how, "--execute")
    with Cluster(config(session_broker)) as cluster:
        positions = cluster.committed(group)
    assert offsets == [positions[topic, 0].offset, positions[topic, 1].offset]


def test_a_group_with_members_is_refused(session_broker: Broker, run: Run, topic: str, group: str) -> None:
    run("topics", "create", topic)
    run("produce", topic, stdin=b"one\n")
    with member(session_broker, group, topic) as consumer:
        consumer.seek_to_beginning()  # the poll that brought the assignment may have brought the record
        while not consumer.poll(timeout_ms=100):
            pass
        consumer.commit()
        how = ("groups", "reset-offsets", group, "--topic", topic, "--to-latest")
        refused = run(*how, "--execute", fails=1).stderr
        assert (
            f"broker: The group '{group}' has 1 member (state Stable): stop its consumers first.\n".encode() == refused
        )
        assert b"stop its consumers first" in run(*how).stderr
        assert b"has members" in run("groups", "delete", group, fails=1).stderr
        assert b"stop its consumers" in run("groups", "delete-offsets", group, "--topic", topic, fails=1).stderr


def test_new_group_can_be_given_offsets(run: Run, topic: str, group: str) -> None:
    run("topics", "create", topic)
    run("produce", topic, stdin=b"one\ntwo\n")
    run("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    assert [2] == committed(run, group)
    assert (
        b"committed nothing"
        in run("groups", "reset-offsets", f"{group}x", "--all-topics", "--to-latest", fails=1).stderr
    )


@pytest.mark.usefixtures("read_some")
def test_a_group_and_single_offsets_are_deleted(session_broker: Broker, run: Run, topic: str, group: str) -> None:
    assert [f"deleted {topic}-1"] == lines(run("groups", "delete-offsets", group, "--topic", f"{topic}:1"))
    assert [2] == committed(run, group)
    assert [f"deleted {group}"] == lines(run("groups", "delete", group))
    assert b"There is no group" in run("groups", "delete", group, fails=1).stderr
    run("groups", "delete", group, "--if-exists")
    commit(session_broker, group, {(topic, 0): 1})
    assert b"deleted" in run("groups", "delete", group).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to-latest"], b"Say which partitions"),
        (["--topic", "t", "--all-topics", "--to-latest"], b"Say which partitions"),
        (["--topic", "t"], b"Say to what, once"),
        (["--topic", "t", "--to-latest", "--shift-by", "1"], b"Say to what, once"),
        (["--topic", "t:x", "--to-latest"], b"TOPIC:0,2-4"),
        (["--topic", "t", "--by-duration", "1y"], b"PT1H30M"),
        (["--topic", "t", "--to-latest", "--execute", "--dry-run"], b"either --execute or --dry-run"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(run_alone: Run, arguments: list[str], said: bytes) -> None:
    assert said in run_alone("groups", "reset-offsets", "g", *arguments, fails=2).stderr


@pytest.mark.usefixtures("read_some")
def test_a_partition_that_does_not_exist_is_told(run: Run, topic: str, group: str) -> None:
    for wrong, said in ((f"{topic}:7", b"2 partitions, and no partition 7"), (f"{topic}x", b"no such topic")):
        assert said in run("groups", "reset-offsets", group, "--topic", wrong, "--to-latest", fails=1).stderr
