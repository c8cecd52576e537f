"""`broker produce` and `broker consume`: lines in, the same lines out, and a good end to everything that can go wrong."""

import json
import os
import pty
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from broker.cli.record_format import parse_record, record_line
from broker.client import Broker
from tests.cli.conftest import Run, Serving, command_line


def lines(output: bytes) -> list[str]:
    return output.decode().splitlines()


def test_lines_go_in_and_come_out(run: Run, topic: str) -> None:
    told = run("produce", topic, stdin="one\n\nthree, with ünïcode\nno newline at the end".encode()).stderr
    assert f"4 records sent to {topic}\n" == told.decode()
    assert "one\n\nthree, with ünïcode\nno newline at the end\n" == run("consume", topic).stdout.decode()


def test_bytes_that_are_no_text_are_preserved(run: Run, topic: str) -> None:
    every = bytes(value for value in range(256) if value != 10)
    run("produce", topic, stdin=every + b"\n")
    assert every + b"\n" == run("consume", topic).stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(run: Run, topic: str, codec: str) -> None:
    text = b"".join(b"line %d of many that look alike\n" % number for number in range(500))
    run("produce", topic, "-z", codec, stdin=text)
    assert text == run("consume", topic).stdout


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(run: Run, topic: str, acks: str) -> None:
    run("topics", "create", topic)
    run("produce", topic, "--acks", acks, stdin=b"one\ntwo\n")
    assert b"one\ntwo\n" == run("consume", topic).stdout


def test_keys_headers_and_partitions(run: Run, topic: str) -> None:
    run("topics", "create", topic, "-p", "2")
    run("produce", topic, "-p", "1", "-K", r"\t", "-H", "source=shop", "-H", "empty=", stdin=b"a\t1\nb\t2\t3\n")
    assert b"a=1\nb=2\t3\n" == run("consume", topic, "-p", "1", "-K", "=").stdout
    assert b"source=shop,empty=\t1\nsource=shop,empty=\t2\t3\n" == run("consume", topic, "--headers").stdout
    assert b"" == run("consume", topic, "-p", "0").stdout
    first = json.loads(lines(run("consume", topic, "--json").stdout)[0])
    assert {"topic", "partition", "offset", "timestamp", "time", "key", "value", "headers"} == set(first)
    assert (1, 0, "a", "1", [["source", "shop"], ["empty", ""]]) == tuple(
        first[name] for name in ("partition", "offset", "key", "value", "headers")
    )


def test_an_empty_value_can_be_a_tombstone(run: Run, topic: str) -> None:
    run("produce", topic, "-K", ":", "-Z", stdin=b"a:1\na:\n")
    assert ["1", None] == [json.loads(line)["value"] for line in lines(run("consume", topic, "--json").stdout)]


def test_where_to_begin_and_when_to_stop(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert ["7", "8", "9"] == lines(run("consume", topic, "--offset", "7").stdout)
    assert ["8", "9"] == lines(run("consume", topic, "-o", "-2").stdout)
    assert [] == lines(run("consume", topic, "-o", "end").stdout)
    assert ["0", "1", "2"] == lines(run("consume", topic, "-n", "3").stdout)
    assert ["4"] == lines(run("consume", topic, "-o", "4", "-n", "1").stdout)
    # Before the first and past the last offset are the first and the last.
    assert 10 == len(lines(run("consume", topic, "-o", "-100").stdout))
    assert [] == lines(run("consume", topic, "-o", "100").stdout)


def test_from_a_time_on(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"one\n")
    time = json.loads(lines(run("consume", topic, "--json").stdout)[0])["time"]
    assert ["one"] == lines(run("consume", topic, "--from-time", time).stdout)
    assert ["one"] == lines(run("consume", topic, "--from-time", "-1h").stdout)
    assert [] == lines(run("consume", topic, "--from-time", "2100-01-01T00:00").stdout)
    assert b"-10m" in run("consume", topic, "--from-time", "noon", fails=2).stderr


def test_a_group_goes_on_where_it_has_stopped(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"".join(b"%d\n" % number for number in range(5)))
    assert ["0", "1"] == lines(run("consume", topic, "-g", topic, "-n", "2").stdout)
    assert ["2", "3", "4"] == lines(run("consume", topic, "-g", topic).stdout)
    assert [] == lines(run("consume", topic, "-g", topic).stdout)
    assert b"--group" in run("consume", topic, "-g", topic, "-o", "1", fails=2).stderr


def test_following_goes_on_until_it_is_interrupted(run: Run, topic: str, environment: dict[str, str]) -> None:
    run("produce", topic, stdin=b"one\n")
    follower = subprocess.Popen(
        command_line("consume", topic, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert follower.stdout is not None
    assert b"one\n" == follower.stdout.readline()
    run("produce", topic, stdin=b"two\n")
    assert b"two\n" == follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    out, errors = follower.communicate(timeout=30)
    assert (130, b"", b"") == (follower.returncode, out, errors)


def test_a_reader_that_has_enough_ends_it_quietly(run: Run, topic: str, environment: dict[str, str]) -> None:
    run("produce", topic, stdin=b"".join(b"%0999d\n" % number for number in range(5000)))
    consumer = subprocess.Popen(
        command_line("consume", topic), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    assert 1000 == len(consumer.stdout.readline())
    consumer.stdout.close()
    errors = consumer.stderr.read()
    consumer.stderr.close()
    assert (0, b"") == (consumer.wait(timeout=30), errors)


def test_an_interrupted_producer_says_what_it_has_sent(run: Run, topic: str, environment: dict[str, str]) -> None:
    producer = subprocess.Popen(
        command_line("produce", topic), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert producer.stdin is not None
    producer.stdin.write(b"one\ntwo\nhalf a l")
    producer.stdin.flush()
    # It is at work when its lines have arrived: lines leave at once, not at the end of input.
    arrived = run("consume", topic, "--follow", "-n", "2", stdin=b"") if _wait_for_topic(run, topic) else None
    assert arrived is not None
    assert b"one\ntwo\n" == arrived.stdout
    producer.send_signal(signal.SIGINT)
    _, errors = producer.communicate(timeout=30)
    assert (130, f"interrupted: 2 records sent to {topic}\n") == (producer.returncode, errors.decode())
    assert b"one\ntwo\n" == run("consume", topic).stdout


def _wait_for_topic(run: Run, topic: str) -> bool:
    while topic not in run("topics", "list").stdout.decode():
        pass
    return True


def test_a_line_that_is_not_taken_is_named(run: Run, topic: str) -> None:
    run("topics", "create", topic, "-c", "max.message.bytes=1000")
    told = run("produce", topic, stdin=b"small\n" + b"x" * 2000 + b"\n", fails=1).stderr.decode()
    assert "Line 2 was not taken" in told
    assert "max.message.bytes" in told
    assert "Lines that are stored: 1 of the 2 that were sent" in told
    assert 1 == told.count("\n")
    assert b"small\n" == run("consume", topic).stdout


def test_refused_line_in_a_file_is_named(run: Run, topic: str, tmp_path: Path) -> None:
    run("topics", "create", topic, "-c", "max.message.bytes=1000")
    lines = [b"%d" % number for number in range(5000)]
    lines[3210] = b"x" * 2000
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    told = run("produce", topic, str(tmp_path / "lines"), fails=1).stderr.decode()
    assert "Line 3211 was not taken" in told
    stored = int(told.partition("Lines that are stored: ")[2].split()[0])
    assert stored <= 3210
    assert stored == len(run("consume", topic).stdout.splitlines())


def test_a_line_without_a_key_is_named(run: Run, topic: str) -> None:
    assert b"Line 2 has no key" in run("produce", topic, "-K", ":", stdin=b"a:1\nb\n", fails=1).stderr
    assert b"Line 1 is empty" in run("produce", topic, "-Z", stdin=b"\n", fails=1).stderr


def test_kafka_s_internal_topics_are_explained(run: Run) -> None:
    assert b"`broker groups`" in run("consume", "__consumer_offsets", fails=1).stderr


def test_missing_topics_and_partitions_are_named(run: Run, topic: str) -> None:
    assert f"There is no topic '{topic}'" in run("consume", topic, fails=1).stderr.decode()
    run("topics", "create", topic, "-p", "2")
    assert b"no partition 2: it has 0 to 1" in run("consume", topic, "-p", "2", fails=1).stderr
    assert b"no legal name" in run("produce", "no spaces please", stdin=b"x\n", fails=1).stderr.lower()


def test_many_lines_arrive_in_order(run: Run, topic: str, tmp_path: Path) -> None:
    text = b"".join(b"%d\n" % number for number in range(100_000))
    assert b"100000 records" in run("produce", topic, "--acks", "1", stdin=text).stderr
    assert text == run("consume", topic).stdout


def test_file_input_on_terminal_gets_progress_bar(topic: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    control, terminal = pty.openpty()
    with (tmp_path / "lines").open("rb") as source:
        producer = subprocess.Popen(
            command_line("produce", topic), stdin=source, stderr=terminal, env={**environment, "TERM": "xterm-256color"}
        )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(control, 65536)
        except OSError:  # Linux's way of saying that the other side has closed
            break
        if not piece:
            break
        shown += piece
    os.close(control)
    assert 0 == producer.wait(timeout=30), shown
    assert "━".encode() in shown
    assert f"50000 records sent to {topic}" in shown.decode()


def test_any_bytes_go_from_json_to_json(run: Run, topic: str) -> None:
    """Keys, values, headers, partitions and times of every kind, through two topics, are the same at the end."""
    data = random.Random(1)
    run("topics", "create", topic, "-p", "3")
    run("topics", "create", f"{topic}-copy", "-p", "3")
    lines = []
    for number in range(300):
        values = [None, data.randbytes(number % 40), b"text", "gr\u00fcn\n\u2028".encode(), b'{"a": 1}', b""]
        key, value, header = data.choices(values, k=3)
        headers = [(b"h", header), (b"h", b"again")] if number % 2 else []
        lines.append(record_line("x", data.randrange(3), 0, 1_000_000 + number, "-", key, value, headers))
    assert b"300 records" in run("produce", topic, "--json", stdin=b"".join(lines)).stderr
    first = run("consume", topic, "--json").stdout
    run("produce", f"{topic}-copy", "--json", "-z", "lz4", stdin=first)
    second = run("consume", f"{topic}-copy", "--output", "json").stdout

    def content(printed: bytes) -> list[tuple[object, ...]]:
        records = [json.loads(line) for line in printed.splitlines()]
        names = ("partition", "timestamp", "key", "value", "headers")
        return sorted((tuple(record[name] for name in names) for record in records), key=lambda record: record[1])

    assert 300 == len(content(first))
    assert content(first) == content(second)
    sent = sorted((parse_record(line) for line in lines), key=lambda record: record.timestamp_ms or 0)
    assert sent == sorted(
        (parse_record(line) for line in second.splitlines()), key=lambda record: record.timestamp_ms or 0
    )


def test_a_format_goes_out_and_in(run: Run, topic: str) -> None:
    run("produce", topic, "-F", "%k=%v", "-k", "unused", stdin=b"a=1\nb=2=3\n")
    assert b"a 1\nb 2=3\n" == run("consume", topic, "--format", "%k %v").stdout
    assert b"0/0:a;0/1:b;" == run("consume", topic, "--format", r"%p/%o:%k;\c").stdout
    assert b"%x" in run("consume", topic, "--format", "%x", fails=2).stderr
    assert b"only one of" in run("consume", topic, "--format", "%v", "--json", fails=2).stderr
    assert b"only one of" in run("produce", topic, "--format", "%v", "--json", fails=2).stderr


def test_keys_go_where_other_clients_send_them(run: Run, topic: str, session_broker: Broker) -> None:
    """The same partition from us and from kafka-python, whose hash is Java's."""
    run("topics", "create", topic, "-p", "7")
    keys = [b"key-%d" % number for number in range(50)]
    run("produce", topic, "-K", ":", stdin=b"".join(key + b":ours\n" for key in keys))
    with closing(KafkaProducer(bootstrap_servers=session_broker.bootstrap_servers)) as producer:
        for key in keys:
            producer.send(topic, key=key, value=b"theirs")
        producer.flush()
    places = run("consume", topic, "--format", "%k %p").stdout.splitlines()
    assert 100 == len(places)
    assert 50 == len(set(places))


def test_records_without_keys_go_to_all_partitions(run: Run, topic: str) -> None:
    run("topics", "create", topic, "-p", "3")
    run("produce", topic, stdin=b"x" * 100 + b"\n" + (b"y" * 1000 + b"\n") * 3000)
    places = run("consume", topic, "--format", "%p").stdout.split()
    assert 3001 == len(places)
    assert {b"0", b"1", b"2"} == set(places)


def test_beginning_has_kafka_s_option_name(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"one\n")
    assert b"one\n" == run("consume", topic, "--from-beginning").stdout
    assert b"one\n" == run("consume", topic, "--from-beginning", "--group", topic).stdout
    assert b"only one" in run("consume", topic, "--from-beginning", "-o", "end", fails=2).stderr


def test_file_argument_with_count_as_json(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo")
    result = run("produce", topic, str(tmp_path / "lines"), "--output", "json")
    assert ({"topic": topic, "records": 2, "bytes": 8}, b"") == (json.loads(result.stdout), result.stderr)
    assert b"one\ntwo\n" == run("consume", topic).stdout
    assert b"No such file" in run("produce", topic, str(tmp_path / "none"), fails=2).stderr


def test_bad_json_line_is_named_and_earlier_stored(run: Run, topic: str) -> None:
    told = run("produce", topic, "--json", stdin=b'{"value": "1"}\n{"value": "2"}\n{"key": "3"}\n', fails=1).stderr
    assert b'Line 3 cannot be read: it has no "value"' in told
    assert b"Lines that are stored: 2 of the 2" in told
    assert b"1\n2\n" == run("consume", topic).stdout
    told = run("produce", topic, "--json", stdin=b'{"value": "1", "partition": 5}\n', fails=1).stderr
    assert b"Line 1 names partition 5" in told


def test_broker_dying_meanwhile_leaves_a_count(
    run_alone: Run, topic: str, serve: Callable[..., Serving], environment: dict[str, str]
) -> None:
    serving = serve()
    address = json.loads(serving.ready_file.read_text())["listeners"]["kafka"]
    producer = subprocess.Popen(
        command_line("produce", topic, "-b", address), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert producer.stdin is not None
    producer.stdin.write(b"one\n")
    producer.stdin.flush()
    while not run_alone("consume", topic, "-b", address, fails=None).stdout:
        pass
    serving.process.kill()
    serving.process.wait()
    _, errors = producer.communicate(b"two\n", timeout=100)
    assert 1 == producer.returncode
    assert b"Lines that are stored: 1 of the 2 that were sent" in errors


def test_another_kafka_broker_takes_and_gives_the_same(run_alone: Run) -> None:
    """librdkafka's mock of a cluster: three brokers, other versions of the APIs, and nothing of ours."""
    mock = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 3, "log_level": 0})
    brokers = ",".join(f"{broker.host}:{broker.port}" for broker in mock.list_topics(timeout=30).brokers.values())
    lines = b"".join(b"key-%d:value %d\n" % (number, number) for number in range(1000))
    for codec in ("none", "lz4", "zstd"):
        run_alone("produce", f"orders-{codec}", "-b", brokers, "-K", ":", "-z", codec, stdin=lines)
        printed = run_alone("consume", f"orders-{codec}", "-b", brokers, "-K", ":").stdout
        assert sorted(lines.splitlines()) == sorted(printed.splitlines())


def test_transactions_leave_no_markers_in_what_is_printed(run: Run, topic: str, session_broker: Broker) -> None:
    producer = Producer(
        {"bootstrap.servers": session_broker.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(30)
    for value in (b"one", b"two"):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.commit_transaction(30)
    assert b"one\ntwo\n" == run("consume", topic).stdout
    assert b"two\n" == run("consume", topic, "-o", "2").stdout
    assert b"two\n" == run("consume", topic, "-n", "1", "-o", "1").stdout
