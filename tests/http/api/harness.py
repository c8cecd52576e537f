"""A whole broker with its HTTP API over real sockets, and real traffic."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from confluent_kafka import Consumer, Producer, TopicPartition

from broker.client.embedded import Broker
from broker.http.assembly import HttpPart
from broker.kafka.context import KafkaContext

LISTENERS = ("kafka://127.0.0.1:0", "http://127.0.0.1:0")
DOCUMENT = Path(__file__).parents[3] / "docs" / "HTTP.md"


class Api:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def kafka(self) -> KafkaContext:
        return self.broker.server.kafka

    @property
    def http(self) -> HttpPart:
        part = self.broker.server.part("http")
        assert isinstance(part, HttpPart)
        return part

    def connection(self) -> HTTPConnection:
        return HTTPConnection(self.broker.address("http"), timeout=60)

    def raw(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = self.connection()
        try:
            connection.request("GET", path, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def ask(self, path: str, **headers: str) -> tuple[int, Any]:
        status, body = self.raw(path, headers)
        return status, json.loads(body)

    def get(self, path: str, **headers: str) -> Any:
        status, value = self.ask(f"/api/v1{path}", **headers)
        assert 200 == status, value
        return value

    def pages(self, path: str, name: str, limit: int = 2) -> list[Any]:
        """The items of all pages."""
        found, after = [], ""
        while True:
            page = self.get(f"{path}?limit={limit}&after={quote(after, safe='')}")
            assert len(page[name]) <= limit
            found += page[name]
            if page["next"] is None:
                return found
            after = page["next"]

    def produce(self, topic: str, *values: bytes, partition: int = 0, key: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for value in values:
            producer.produce(topic, value, key, partition=partition)
        assert 0 == producer.flush(60)

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        """``offsets``: of partition 0 and the following."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap_servers, "group.id": group})
        consumer.commit(
            offsets=[TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)],
            asynchronous=False,
        )
        consumer.close()

    @contextmanager
    def member(self, group: str, topic: str) -> Iterator[None]:
        """The group has one, by the protocol of KIP-848, which reads the whole topic and has committed what it has read."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe([topic])
            deadline = time.monotonic() + 60
            while consumer.poll(0.1) is None:
                assert time.monotonic() < deadline, "the member has got nothing"
            consumer.commit(asynchronous=False)
            yield
        finally:
            consumer.close()


@contextmanager
def api_broker(**settings: Any) -> Iterator[Api]:
    with Broker(**{"listeners": LISTENERS, **settings}) as broker:
        yield Api(broker)


def documented(path: str) -> Any:
    """The example of a call in docs/HTTP.md: the JSON block that follows ``GET path``."""
    text = DOCUMENT.read_text("utf-8")
    match = re.search(rf"^```\nGET {re.escape(path)}\n```\n+```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/HTTP.md has no example of GET {path}"
    return json.loads(match[1])


# Objects whose fields are names of things.
_OPTIONAL = {"json", "truncated"}
_MAPPINGS = (".muted", ".series", ".fields", ".values", ".endpoints")


def differences(example: Any, answer: Any, where: str = "") -> list[str]:
    """Where an answer has not the form of the example: the same fields everywhere, of the same types. null may stand for
    anything, and an empty list for any list."""
    if example is None or answer is None:
        return []
    if isinstance(example, dict) and isinstance(answer, dict):
        if not where.endswith(_MAPPINGS):
            wrong = [f"{where}.{name} is missing" for name in example.keys() - answer.keys() - _OPTIONAL]
        else:
            return []
        wrong += [f"{where}.{name} is not documented" for name in answer.keys() - example.keys()]
        for name in example.keys() & answer.keys():
            wrong += differences(example[name], answer[name], f"{where}.{name}")
        return wrong
    if isinstance(example, list) and isinstance(answer, list):
        return [each for item in answer[:20] if example for each in differences(example[0], item, f"{where}[]")]
    numbers = (int, float)
    same = type(example) is type(answer) or (
        isinstance(example, numbers) and isinstance(answer, numbers) and bool not in (type(example), type(answer))
    )
    return [] if same else [f"{where} is {answer!r}, not as {example!r}"]
