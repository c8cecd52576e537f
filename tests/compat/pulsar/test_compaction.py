"""Compacted topics."""

from collections.abc import Callable

import pulsar
import pytest
from pulsar import InitialPosition, MessageId

from tests.compat.pulsar.helpers import Admin, is_silent, receive, send_batch, texts
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]


def compact(rest: Admin, name: str) -> None:
    path = f"/admin/v2/persistent/public/default/{name}/compaction"
    rest.put(path)
    wait_for(lambda: rest.get(path)["status"] == "SUCCESS")


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_compacted_topic_has_last_value_of_each_key(connect: Connect, rest: Admin, name: str, batching: bool) -> None:
    client = connect()
    client.subscribe(name, "compacted", is_read_compacted=True).close()
    whole = client.subscribe(name, "whole")
    producer = client.create_producer(name, batching_enabled=batching)
    for number in range(6):
        send_batch(producer, [f"{number}"], partition_key=f"key {number % 2}")
    compact(rest, name)
    expected = ["4", "5"]
    assert expected == texts(receive(client.subscribe(name, "compacted", is_read_compacted=True), 2))
    reader = client.create_reader(name, MessageId.earliest, is_read_compacted=True)
    assert expected == texts(receive(reader, 2))
    assert [str(number) for number in range(6)] == texts(receive(whole, 6))
    send_batch(producer, ["6"], partition_key="key 0")
    assert ["6"] == texts(receive(reader, 1)), "what came after compaction is read as it is"
    assert is_silent(reader)
    assert [str(number) for number in range(7)] == texts(receive(client.create_reader(name, MessageId.earliest), 7))


def test_an_empty_value_removes_its_key(connect: Connect, rest: Admin, name: str) -> None:
    client = connect()
    producer = client.create_producer(name)
    producer.send(b"1", partition_key="a")
    producer.send(b"2", partition_key="b")
    producer.send(b"", partition_key="a")
    producer.send(b"no key")
    compact(rest, name)
    values = texts(receive(client.create_reader(name, MessageId.earliest, is_read_compacted=True), 1))
    assert values == ["2"]


def test_a_table_view_of_a_compacted_topic(connect: Connect, rest: Admin, name: str) -> None:
    client = connect()
    producer = client.create_producer(name)
    for number in range(50):
        producer.send(b"%d" % number, partition_key=f"key {number % 5}")
    compact(rest, name)
    view = client.create_table_view(name)
    assert {f"key {number}": b"%d" % (45 + number) for number in range(5)} == {
        f"key {number}": view.get(f"key {number}") for number in range(5)
    }
    view.close()


def test_topics_are_compacted_again(connect: Connect, rest: Admin, name: str) -> None:
    client = connect()
    producer = client.create_producer(name)
    for turn in range(3):
        for number in range(10):
            producer.send(b"%d.%d" % (turn, number), partition_key=f"key {number % 3}")
        compact(rest, name)
        reader = client.create_reader(name, MessageId.earliest, is_read_compacted=True)
        assert [f"{turn}.{number}" for number in (7, 8, 9)] == sorted(texts(receive(reader, 3)))
        assert is_silent(reader, 100)
        reader.close()
    late = client.subscribe(name, "late", is_read_compacted=True, initial_position=InitialPosition.Earliest)
    assert ["2.7", "2.8", "2.9"] == sorted(texts(receive(late, 3)))
