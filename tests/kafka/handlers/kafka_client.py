"""A broker and a raw connection to it, to ask any served version of any API and to see the whole answer."""

import itertools
from collections.abc import Mapping
from typing import Any, Self
from uuid import uuid4

from broker.client import Broker
from broker.kafka.api import Api
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import KafkaConnection, parts

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


class Kafka(KafkaConnection):
    """``with Kafka() as kafka``: a broker of its own, on disk, over a socket."""

    def __init__(self, **settings: Any) -> None:
        self.broker = Broker(**settings)

    def __enter__(self) -> Self:
        self.broker.start()
        self.inside = self.broker.server.kafka
        self.address = parts(self.broker.bootstrap_servers)
        super().__init__(self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.broker.close()

    def tell(self, key: ApiKey, version: int, /, **fields: Any) -> None:
        """Where the version names topics by id, a topic's name stands for its id."""
        super().tell(key, version, **self.by_id(key, version, fields))

    def by_id(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request with the ids of its topics. A missing topic gets an unknown id."""
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

    def name_of(self, topic: Any) -> str | None:
        """The name of a topic in an answer. None: it is named by an unknown id."""
        if hasattr(topic, "name"):
            return str(topic.name)
        info = None if topic.topic_id is None else self.inside.logs.topic_by_id(topic.topic_id)
        return None if info is None else info.name

    def exchange(self, request: bytes) -> bytes:
        """The whole response frame."""
        self.send(request)
        return self.frame()

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
        log.state.go_offline("the disk is gone")


class Beside(Kafka):
    """Another connection to the same broker."""

    def __init__(self, kafka: Kafka) -> None:
        self.broker, self.inside, self.address = kafka.broker, kafka.inside, kafka.address
        KafkaConnection.__init__(self, self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def get(message: Any, field: str, default: Any = None) -> Any:
    """A field that only some versions have."""
    return getattr(message, field, default)
