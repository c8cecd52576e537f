"""A member of a share group, on a connection of its own, that sends a test's requests."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from broker.kafka.share.share_partition import ShareSettings
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka_connection import KafkaConnection

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
EARLIEST = ShareSettings(auto_offset_reset="earliest")

Range = tuple[int, int, int]  # first offset, last, delivery count
Acks = dict[int, list[tuple[int, int, Sequence[int]]]]  # by partition: first offset, last, types


def write(
    kafka: Kafka, topic: str, records: int = 1, partition: int = 0, value: bytes = b"value", **fields: Any
) -> None:
    """One batch of so many records."""
    log = kafka.inside.logs.get(topic, partition)
    assert log is not None
    log.append(memoryview(build_batch([(None, value, [], 1_000_000)] * records, **fields)), now_ms=1_000_000)


class Fetched:
    """The answer to a ShareFetch."""

    def __init__(self, response: Any) -> None:
        self.error = int(response.error_code)
        self.lock_s = response.acquisition_lock_timeout.total_seconds()
        self.partitions = {
            partition.partition_index: partition for topic in response.responses for partition in topic.partitions
        }

    def ranges(self, partition: int = 0) -> list[Range]:
        one = self.partitions.get(partition)
        return [] if one is None else [(r.first_offset, r.last_offset, r.delivery_count) for r in one.acquired_records]

    def offsets(self, partition: int = 0) -> list[int]:
        """First and last offsets of the sent batches."""
        one = self.partitions.get(partition)
        headers = [] if one is None or not one.records else [header for _, header in batches(one.records)]
        return [offset for header in headers for offset in (header.base_offset, header.last_offset)]

    def errors(self, partition: int = 0) -> tuple[int, int]:
        """The errors of the fetch, and of the acknowledgements."""
        one = self.partitions[partition]
        return int(one.error_code), one.acknowledge_error_code

    def all(self) -> Iterator[tuple[int, int]]:
        """Partition and offset of each record."""
        for partition in self.partitions:
            for first, last, _ in self.ranges(partition):
                for offset in range(first, last + 1):
                    yield partition, offset


class Member(KafkaConnection):
    """``with Member(kafka, topic) as member``. It keeps the epoch of its session. Its group is made, and it does not join it."""

    def __init__(
        self,
        kafka: Kafka | tuple[str, int],
        topic: str | UUID,
        partitions: Sequence[int] = (0,),
        group: str = "group",
        member_id: str = "member",
    ) -> None:
        if isinstance(kafka, Kafka):
            info = kafka.inside.logs.topic(topic) if isinstance(topic, str) else None
            self.topic_id = topic if isinstance(topic, UUID) else UUID(int=5) if info is None else info.topic_id
            address = kafka.address
        else:
            assert isinstance(topic, UUID)
            self.topic_id = topic
            address = kafka
        self.partitions = list(partitions)
        self.group, self.member_id = group, member_id
        self.epoch = 0
        super().__init__(address)
        try:
            if isinstance(kafka, Kafka):
                kafka.inside.groups.share.begin_alter(group)
            else:
                self._make_group()
        except BaseException:
            super().close()
            raise

    def _make_group(self) -> None:
        """Somebody joins it and leaves it."""
        for epoch, names in ((0, ["topic"]), (-1, None)):
            who = {"group_id": self.group, "member_id": f"maker-{self.member_id}", "member_epoch": epoch}
            assert not self.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **who, subscribed_topic_names=names).error_code

    def _topics(self, partitions: Sequence[int], acks: Acks) -> list[Any]:
        return [
            {
                "topic_id": self.topic_id,
                "partitions": [
                    {
                        "partition_index": partition,
                        "acknowledgement_batches": [
                            {"first_offset": first, "last_offset": last, "acknowledge_types": tuple(types)}
                            for first, last, types in acks.get(partition, ())
                        ],
                    }
                    for partition in partitions
                ],
            }
        ]

    def send_fetch(self, acks: Acks | None = None, version: int = 2, **fields: Any) -> None:
        acks = acks or {}
        new = self.partitions if self.epoch == 0 else ()
        request = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": self._topics(sorted({*new, *acks}), acks),
        } | fields
        if self.epoch >= 0:
            self.epoch += 1
        self.tell(ApiKey.SHARE_FETCH, version, **request)

    def receive_fetch(self, version: int = 2) -> Fetched:
        return Fetched(self.answer(ApiKey.SHARE_FETCH, version))

    def fetch(self, acks: Acks | None = None, version: int = 2, **fields: Any) -> Fetched:
        self.send_fetch(acks, version, **fields)
        return self.receive_fetch(version)

    def acknowledge(self, acks: Acks, version: int = 2, **fields: Any) -> Any:
        """The response."""
        request = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "topics": self._topics(sorted(acks), acks),
        } | fields
        if self.epoch >= 0:
            self.epoch += 1
        return self.ask(ApiKey.SHARE_ACKNOWLEDGE, version, **request)

    def acknowledged(self, acks: Acks, version: int = 2, **fields: Any) -> dict[int, int]:
        """The error of each partition."""
        response = self.acknowledge(acks, version, **fields)
        assert not response.error_code
        return {
            partition.partition_index: int(partition.error_code)
            for topic in response.responses
            for partition in topic.partitions
        }

    def close_session(self) -> Fetched:
        """The session."""
        self.epoch = -1
        return self.fetch(topics=[])
