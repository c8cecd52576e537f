"""`broker topics`: what is printed, and how failures are told."""

from tests.cli.conftest import Run


def test_a_topic_is_created_listed_described_and_deleted(run: Run, topic: str) -> None:
    assert (
        f"created {topic}\n" == run("topics", "create", topic, "-p", "3", "-c", "retention.ms=1000000").stdout.decode()
    )
    assert f"{topic}\t3" in run("topics", "list").stdout.decode().splitlines()
    run("produce", topic, "--partition", "1", stdin=b"one\ntwo\n")
    described = run("topics", "describe", topic).stdout.decode().splitlines()
    assert f"{topic}: 3 partitions; settings: retention.ms=1000000" == described[0]
    assert ["0\t1\t0\t0\t0", "1\t1\t0\t2\t2", "2\t1\t0\t0\t0"] == described[1:]
    assert f"deleted {topic}\n" == run("topics", "delete", topic).stdout.decode()
    assert topic not in run("topics", "list").stdout.decode()


def test_several_topics_at_once_succeed_and_fail_one_by_one(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    result = run("topics", "create", topic, f"{topic}-b", fails=1)
    assert f"created {topic}-b\n" == result.stdout.decode()
    assert "already exists" in result.stderr.decode()
    assert 1 == result.stderr.count(b"\n")


def test_what_is_there_already_or_not_there_can_be_declared_harmless(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    run("topics", "create", topic, "--if-not-exists")
    run("topics", "delete", topic)
    run("topics", "delete", topic, "--if-exists")
    assert topic.encode() in run("topics", "delete", topic, fails=1).stderr


def test_a_wrong_setting_is_told_in_the_brokers_words(run: Run, topic: str) -> None:
    assert b"retention.msec" in run("topics", "create", topic, "-c", "retention.msec=1", fails=1).stderr
    assert b"--config key=value" in run("topics", "create", topic, "-c", "retention.ms", fails=2).stderr


def test_a_topic_that_is_not_there_cannot_be_described_and_is_not_made(run: Run, topic: str) -> None:
    assert topic.encode() in run("topics", "describe", topic, fails=1).stderr
    assert topic not in run("topics", "list").stdout.decode()


def test_a_broker_that_is_not_there_is_named(run: Run) -> None:
    assert b"No broker answers at 127.0.0.1:1:" in run("topics", "list", "-b", "127.0.0.1:1", fails=1).stderr
    assert b"host:port" in run("topics", "list", "-b", "localhost:kafka", fails=2).stderr
