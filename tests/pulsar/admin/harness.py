"""A whole broker with its admin API, over real sockets."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from broker.client.embedded import Broker
from broker.pulsar.assembly import PulsarPart
from broker.pulsar.context import PulsarContext
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import Topic

LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")
PERSISTENT = "/admin/v2/persistent/public/default"


class Admin:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def context(self) -> PulsarContext:
        part = self.broker.server.part("pulsar")
        assert isinstance(part, PulsarPart)
        return part.context

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.broker.address('pulsar')}"

    @property
    def http_url(self) -> str:
        return f"http://{self.broker.address('http')}"

    def topic(self, name: str) -> Topic:
        """In use, made if there is none."""
        return self.context.topics.get_or_create(parse_topic(name))

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.broker.address("http"), timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def ask(self, method: str, path: str, value: Any = None, **headers: str) -> tuple[int, Any]:
        """The status, and the answer if it is JSON."""
        body = None if value is None else json.dumps(value).encode()
        status, _, content = self.raw(method, path, body, headers)
        try:
            return status, json.loads(content) if content else None
        except ValueError:
            return status, content

    def get(self, path: str) -> Any:
        status, value = self.ask("GET", path)
        assert status == 200, (status, value)
        return value

    def do(self, method: str, path: str, value: Any = None) -> None:
        """Something that succeeds without an answer."""
        status, answer = self.ask(method, path, value)
        assert status == 204, (status, answer)


@contextmanager
def admin_broker(**settings: Any) -> Iterator[Admin]:
    with Broker(**{"listeners": LISTENERS, **settings}) as broker:
        yield Admin(broker)
