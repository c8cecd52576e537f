"""A broker and a raw connection to it, to ask any served version of any API and to see the whole answer."""

import itertools
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from types import TracebackType
from typing import Any
from uuid import uuid4

from broker.client import Broker
from broker.kafka.api import Api
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control

_LENGTH = struct.Struct(">i")
_names = itertools.count()

# From which version on topics are named by their ids, in which field of the request, and how they are named before.
FIRST_BY_ID = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 13,
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.OFFSET_FETCH: 10,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}
TOPICS_BY_ID = {
    ApiKey.PRODUCE: ("topic_data", "name"),
    ApiKey.FETCH: ("topics", "topic"),
    ApiKey.OFFSET_COMMIT: ("topics", "name"),
    ApiKey.OFFSET_FETCH: ("topics", "name"),
    ApiKey.SHARE_FETCH: ("topics", "topic"),
    ApiKey.SHARE_ACKNOWLEDGE: ("topics", "topic"),
}


def versions(api: Api) -> range:
    """All that are served."""
    return range(api.min_version, api.max_version + 1)


class Kafka:
    """``with Kafka() as kafka``: a broker of its own, on disk, over a socket."""

    def __init__(self, **settings: Any) -> None:
        self.broker = Broker(**settings)

    def __enter__(self) -> "Kafka":
        self.broker.start()
        self.inside = self.broker.server.kafka
        host, port = self.broker.bootstrap_servers.rsplit(":", 1)
        self.address = host, int(port)
        self._socket = socket.create_connection(self.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self.broker.close()

    def ask(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """The parsed response. Fields that the version does not know are left out of the request.

        Where the version names topics by id, a topic's name stands for its id."""
        fields = self.by_id(key, version, fields)
        frame = self.exchange(control.encode_request(key, version, 7, "test", fields))
        correlation_id, response = control.parse_response(key, version, frame)
        assert correlation_id == 7
        return response

    def by_id(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request with the ids of its topics. A topic that is not there has an id that nobody knows."""
        where, name = TOPICS_BY_ID.get(key, ("", ""))
        if version < FIRST_BY_ID.get(key, version + 1):
            return dict(fields)
        if key == ApiKey.OFFSET_FETCH and "groups" in fields:
            return {**fields, "groups": [self._in_group(one) for one in fields["groups"]]}
        if where not in fields:
            return dict(fields)
        topics = [topic if "topic_id" in topic else self._with_id(topic, name) for topic in fields[where]]
        return {**fields, where: topics}

    def _in_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        if group.get("topics") is None:
            return dict(group)
        topics = [topic if "topic_id" in topic else self._with_id(topic, "name") for topic in group["topics"]]
        return {**group, "topics": topics}

    def _with_id(self, topic: Mapping[str, Any], name: str) -> dict[str, Any]:
        info = self.inside.logs.topic(topic[name])
        others = {key: value for key, value in topic.items() if key != name}
        return {**others, "topic_id": uuid4() if info is None else info.topic_id}

    @contextmanager
    def another_connection(self) -> Iterator["Kafka"]:
        """The same broker over a connection of its own."""
        other = copy(self)
        with socket.create_connection(self.address) as other._socket:
            yield other

    def name_of(self, topic: Any) -> str | None:
        """The name of a topic in an answer. None: it is given by an id that nobody has."""
        if hasattr(topic, "name"):
            return str(topic.name)
        info = None if topic.topic_id is None else self.inside.logs.topic_by_id(topic.topic_id)
        return None if info is None else info.name

    def exchange(self, request: bytes) -> bytes:
        """The whole response frame."""
        self._socket.sendall(request)
        return self.answer()

    def answer(self) -> bytes:
        """To a request that was sent before: the whole response frame."""
        length = self._receive(_LENGTH.size)
        return length + self._receive(_LENGTH.unpack(length)[0])

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """Make a topic of a name not used before; its name. Settings are written with underscores."""
        name = f"topic-{next(_names)}"
        self.inside.logs.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        )
        return name

    def fill(self, topic: str, *timestamps: int, partition: int = 0) -> None:
        """One batch of one record for each timestamp."""
        log = self.inside.logs.get(topic, partition)
        assert log is not None
        for timestamp in timestamps:
            batch = build_batch([(b"key", b"value", [], timestamp)])
            log.append(memoryview(batch), now_ms=max(timestamps))

    def take_offline(self, topic: str, partition: int = 0) -> None:
        """As if its disk had failed."""
        log = self.inside.logs.get(topic, partition)
        assert log is not None
        log.go_offline("the disk is gone")


def get(message: Any, field: str, default: Any = None) -> Any:
    """A field that only some versions have."""
    return getattr(message, field, default)
