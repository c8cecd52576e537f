"""`broker topics`: what is printed, and how failures are told."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Run, Serving


def test_a_topic_is_created_listed_described_and_deleted(run: Run, topic: str) -> None:
    assert (
        f"created {topic}\n" == run("topics", "create", topic, "-p", "3", "-c", "retention.ms=1000000").stdout.decode()
    )
    assert f"{topic}\t3" in run("topics", "list").stdout.decode().splitlines()
    run("produce", topic, "--partition", "1", stdin=b"one\ntwo\n")
    described = run("topics", "describe", topic).stdout.decode().splitlines()
    assert f"{topic}: 3 partitions; settings: retention.ms=1000000" == described[0]
    assert ["0\t1\t1\t1\t0\t0\t0\t0", "2\t1\t1\t1\t0\t0\t0\t0"] == [described[1], described[3]]
    *cells, size = described[2].split("\t")
    assert ["1", "1", "1", "1", "0", "2", "2"] == cells
    assert int(size) > 0
    assert f"deleted {topic}\n" == run("topics", "delete", topic).stdout.decode()
    assert topic not in run("topics", "list").stdout.decode()


def test_several_topics_succeed_and_fail_separately(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    result = run("topics", "create", topic, f"{topic}-b", fails=1)
    assert f"created {topic}-b\n" == result.stdout.decode()
    assert "already exists" in result.stderr.decode()
    assert 1 == result.stderr.count(b"\n")


def test_existing_or_missing_topics_can_be_declared_harmless(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    run("topics", "create", topic, "--if-not-exists")
    run("topics", "delete", topic)
    run("topics", "delete", topic, "--if-exists")
    assert topic.encode() in run("topics", "delete", topic, fails=1).stderr


def test_wrong_setting_is_reported_in_broker_s_words(run: Run, topic: str) -> None:
    assert b"retention.msec" in run("topics", "create", topic, "-c", "retention.msec=1", fails=1).stderr
    assert b"--config key=value" in run("topics", "create", topic, "-c", "retention.ms", fails=2).stderr


def test_missing_topic_is_not_described_or_created(run: Run, topic: str) -> None:
    assert topic.encode() in run("topics", "describe", topic, fails=1).stderr
    assert topic not in run("topics", "list").stdout.decode()


def test_a_broker_that_is_not_there_is_named(run: Run) -> None:
    assert b"No broker answers at 127.0.0.1:1:" in run("topics", "list", "-b", "127.0.0.1:1", fails=1).stderr
    assert b"host:port" in run("topics", "list", "-b", "localhost:kafka", fails=2).stderr


def test_a_topic_gets_partitions_and_settings(run: Run, topic: str) -> None:
    created = run("topics", "create", topic, "-c", "retention.bytes=5", "--output", "json").stdout
    assert {"topic": topic, "done": "created"} == json.loads(created)
    changed = run("topics", "alter", topic, "-p", "3", "-c", "retention.ms=1000000", "-d", "retention.bytes")
    assert f"altered {topic}\n" == changed.stdout.decode()
    (described,) = run("topics", "describe", topic, "--output", "json").stdout.splitlines()
    description = json.loads(described)
    assert {"retention.ms": "1000000"} == description["settings"]
    assert [0, 1, 2] == [partition["partition"] for partition in description["partitions"]]
    empty = {
        "leader": 1,
        "replicas": [1],
        "in_sync": [1],
        "start_offset": 0,
        "end_offset": 0,
        "bytes": 0,
        "problem": None,
    }
    assert {"partition": 2, **empty} == description["partitions"][2]


def test_impossible_alterations_are_reported(run: Run, topic: str) -> None:
    run("topics", "create", topic, "-p", "2")
    assert b"Say what to change" in run("topics", "alter", topic, fails=2).stderr
    assert topic.encode() in run("topics", "alter", topic, "-p", "1", fails=1).stderr
    assert b"retention.msec" in run("topics", "alter", topic, "-c", "retention.msec=1", fails=1).stderr
    assert b"no such topic" in run("topics", "alter", f"{topic}x", "-p", "2", fails=1).stderr


def test_an_offline_partition_is_shown_with_its_reason(
    run_alone: Run, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = serve()
    address = json.loads(serving.ready_file.read_text())["listeners"]["kafka"]
    run_alone("topics", "create", "orders", "-p", "2", "-b", address)
    for partition in ("0", "0", "1"):
        run_alone("produce", "orders", "--partition", partition, "-b", address, stdin=b"a record\n")
    serving.process.kill()
    serving.process.wait()
    segment = tmp_path / "data" / "orders-0" / f"{0:020}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[65] ^= 1  # in the first of two batches
    segment.write_bytes(damaged)
    address = json.loads(serve().ready_file.read_text())["listeners"]["kafka"]
    described = run_alone("topics", "describe", "orders", "-b", address).stdout.decode().splitlines()
    assert "0\t1\t1\t1\t-\t-\t-\t-" == described[1]
    assert described[2].startswith("1\t1\t1\t1\t0\t1\t1\t")
    assert described[3].startswith("orders-0: offline: ")
    assert "is damaged" in described[3]
    (line,) = run_alone("topics", "describe", "orders", "-b", address, "--output", "json").stdout.splitlines()
    problems = [partition["problem"] for partition in json.loads(line)["partitions"]]
    assert problems[0].startswith("offline: ")
    assert problems[1] is None
