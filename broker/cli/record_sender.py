"""Sends the lines of `produce` with our own client, and keeps track of the lines that the broker has acknowledged.

Batches of records without a key go to the partitions in turn; records with a key go where Kafka's clients send them.

Tests: tests/cli/test_produce_consume.py, tests/cli/test_record_sender.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.cli.record_input import BadLine, Parsed, Parser
from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import BrokerAnswerError, KafkaClientError
from broker.client.kafka.producer import Producer
from broker.client.kafka.record_encoder import Records, by_key, encode
from broker.errors import BrokerError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.compression import CODEC_NAMES


class Ledger:
    """The lines that were sent to each partition and not acknowledged. Acknowledgements come in the order of
    sending."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Sequence[int]]] = {}
        self._settled: dict[int, int] = {}  # the number of records of each partition that have left `_waiting`

    def sent(self, partition: int, lines: Sequence[int]) -> None:
        """``lines``: their numbers, ascending."""
        self._waiting.setdefault(partition, deque()).append(lines)

    def acknowledged(self, partition: int, count: int) -> None:
        """The first ``count`` records of the partition are acknowledged."""
        waiting = self._waiting.get(partition)
        while waiting and self._settled.get(partition, 0) + len(waiting[0]) <= count:
            self._settled[partition] = self._settled.get(partition, 0) + len(waiting.popleft())

    def first_missing(self, partition: int, count: int) -> int | None:
        """The number of the first line of the partition that is not among its first ``count`` records."""
        self.acknowledged(partition, count)
        waiting = self._waiting.get(partition)
        return waiting[0][count - self._settled.get(partition, 0)] if waiting else None


class RecordSender:
    """``lines``: how many lines were sent. ``acknowledged``: how many the broker has confirmed; with acks=0, the same
    as ``lines``."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        parser: Parser,
        *,
        partition: int | None,
        acks: str,
        codec: str,
        rotation: int = 0,
    ) -> None:
        self.lines = 0
        self.bytes = 0
        self._topic = topic
        self._clock = cluster.clock
        self._batch_bytes = cluster.config.batch_size
        self._parser = parser
        self._codec = CODEC_NAMES.index(codec)
        self._confirms = acks != "0"
        self._fixed = partition
        # Kafka numbers the partitions of a topic from 0 on.
        self._partitions = _partitions(cluster, topic)
        if partition is not None and partition >= self._partitions:
            raise BrokerError(f"Topic {topic!r} has no partition {partition}: it has 0 to {self._partitions - 1}.")
        self._by_key: Callable[[bytes], int] = by_key(self._partitions)
        self._next = rotation % self._partitions
        self._producer: Producer = cluster.producer(acks=acks)
        self._ledger = Ledger()

    @property
    def acknowledged(self) -> int:
        return sum(self._producer.acknowledged.values()) if self._confirms else self.lines

    def send(self, lines: list[bytes]) -> None:
        """Raises BrokerError for the first line that is bad or refused; the lines before it are sent."""
        first = self.lines + 1
        try:
            parsed = self._parser(lines, self._clock.time_ms())
            groups = self._groups(parsed)
        except BadLine as bad:
            if bad.index:
                self.send(lines[: bad.index])
            self.flush()
            raise BrokerError(f"Line {first + bad.index} {bad.why}. {self._so_far()}") from bad
        self.lines += len(lines)
        self.bytes += sum(map(len, lines)) + len(lines)
        for partition, rows in groups.items():
            records = parsed.records if isinstance(rows, range) else parsed.records.take(rows)
            self._send_to(partition, records, [first + row for row in rows])

    def flush(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        self._guarded(self._producer.flush)
        self._settle()

    def close(self) -> None:
        self._producer.close()

    def _groups(self, parsed: Parsed) -> dict[int, Sequence[int]]:
        """The rows of each partition; a range stands for all rows. Raises BadLine."""
        records, named = parsed.records, parsed.partitions
        if self._fixed is not None:
            return {self._fixed: range(len(records))}
        if records.keys is None and named is None:
            return {self._turn(): range(len(records))}
        keys = records.keys if records.keys is not None else [None] * len(records)
        names = named if named is not None else [None] * len(records)
        without_key = self._turn()
        count, by_key = self._partitions, self._by_key
        rows: dict[int, list[int]] = {}
        for row, (key, name) in enumerate(zip(keys, names, strict=True)):
            if name is None:
                partition = without_key if key is None else by_key(key)
            elif name < count:
                partition = name
            else:
                raise BadLine(row, f"names partition {name}, but topic {self._topic!r} has 0 to {count - 1}")
            rows.setdefault(partition, []).append(row)
        return dict(rows)

    def _turn(self) -> int:
        self._next, turn = (self._next + 1) % self._partitions, self._next
        return turn

    def _send_to(self, partition: int, records: Records, lines: Sequence[int]) -> None:
        self._ledger.sent(partition, lines)
        most = min(self._batch_bytes, self._producer.largest(self._topic))
        for batch, count in encode(records, most, now_ms=self._clock.time_ms(), codec=self._codec):
            self._guarded(partial(self._producer.send, self._topic, partition, batch, count))
        self._settle()

    def _settle(self) -> None:
        for (_, partition), count in self._producer.acknowledged.items():
            self._ledger.acknowledged(partition, count)

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Run a step; its error names the refused line."""
        try:
            step()
        except KafkaClientError as error:
            reason = str(error).rstrip(".")
            refused = self._producer.refused
            line = None
            if refused is not None:
                line = self._ledger.first_missing(refused[1], self._producer.acknowledged.get(refused, 0))
            message = f"Line {line} was not taken: {reason}" if line is not None else reason
            raise BrokerError(f"{message}. {self._so_far()}") from error

    def _so_far(self) -> str:
        if not self._confirms:
            return f"Lines that were sent before it: {self.lines}; with --acks 0 nobody knows which of them are stored."
        return f"Lines that are stored: {self.acknowledged} of the {self.lines} that were sent."


def _partitions(cluster: Cluster, topic: str) -> int:
    try:
        return len(cluster.make_topics([topic])[topic].partitions)
    except BrokerAnswerError as error:
        if error.code != ErrorCode.invalid_topic_exception:
            raise
        raise BrokerError(
            f"{topic!r} is no legal name of a topic: use at most 249 letters, digits, dots, underscores and hyphens."
        ) from error
