"""Kafka's side of a topic that Pulsar's clients use: a producer for them, and a reader of their messages."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records import records
from protocol.kafka.records.batch import batches, check_crc
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import produce_fields
from tests.sim.clients.client import Call, Client
from tests.sim.pulsar_ledger import LogLedger, Sent
from tests.sim.world import Violation

_PASSING = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.kafka_storage_error})


class CrossProducer(Client):
    """Sends a batch until it is acknowledged, and then the next one."""

    def __init__(self, *args: Any, log: LogLedger, topic: str, batches: int) -> None:
        super().__init__(*args)
        self._log = log
        self._topic = topic
        self._batches = [
            [
                Sent(f"{self.name}/{number}.{at}/".encode() + self.rng.randbytes(1) * self.rng.randrange(1, 100))
                for at in range(self.rng.randrange(1, 5))
            ]
            for number in range(batches)
        ]
        log.writers.append(lambda: self.done)

    @property
    def done(self) -> bool:
        return not self._batches

    def next_call(self) -> Call | None:
        if self.done or not self._log.promised or self.rng.random() < 0.5:
            self.idle(0.02 + self.rng.random() * 0.2)
            return None
        now_ms = int((self.world.now + 1_700_000_000) * 1000)
        messages = self._batches[0]
        for message in messages:
            self._log.sending(message)
        encoded = build_batch([(None, message.value, [], now_ms) for message in messages])
        return Call(ApiKey.PRODUCE, produce_fields(self._topic, encoded), messages)

    def answered(self, call: Call, body: Any) -> None:
        [topic] = body.responses
        [result] = topic.partition_responses
        if result.error_code:
            if result.error_code not in _PASSING or self.strict:
                raise Violation(f"{self.name}: {ErrorCode(result.error_code).name}")
            self.idle(0.1)
            return
        for at, message in enumerate(call.context):
            self._log.promise(result.base_offset + at, message.value, self.name)
        self._batches.pop(0)


class CrossReader(Client):
    """Reads the log from its start, again and again, and in the end once more to the last record that was promised."""

    def __init__(self, *args: Any, log: LogLedger, topic: str) -> None:
        super().__init__(*args)
        self._log = log
        self._topic = topic
        self._offset = 0
        self._found: dict[int, bytes] = {}
        self._last_turn = False

    @property
    def done(self) -> bool:
        return self._log.finished and self._log.promised.items() <= self._found.items()

    def next_call(self) -> Call | None:
        if self.done or not self._log.promised or self.rng.random() < 0.3:
            self.idle(0.02 + self.rng.random() * 0.2)
            return None
        if self._log.finished and not self._last_turn:
            self._last_turn = True
            self._offset = 0
            self._found.clear()
        partition = {
            "partition": 0,
            "fetch_offset": self._offset,
            "partition_max_bytes": self.rng.choice((0, 300, 100_000)),
        }
        fields = {
            "max_wait": self.rng.choice((0, 100, 300)),
            "min_bytes": 1,
            "max_bytes": self.rng.choice((0, 1000, 100_000)),
            "isolation_level": self.rng.choice((0, 1)),
            "topics": [{"topic": self._topic, "partitions": [partition]}],
        }
        return Call(ApiKey.FETCH, fields, self._offset)

    def answered(self, call: Call, body: Any) -> None:
        if getattr(body, "error_code", 0):
            raise Violation(f"{self.name}: Fetch says {body.error_code!r}")
        for topic in body.responses:
            for data in topic.partitions:
                if self._offset != call.context:
                    continue
                if data.error_code == ErrorCode.offset_out_of_range and not self._last_turn:
                    self._offset = 0  # undurable records are read, too: a power loss may have taken them
                elif data.error_code:
                    if data.error_code not in _PASSING or self.strict:
                        raise Violation(f"{self.name}: {ErrorCode(data.error_code).name} from {self._offset}")
                    self.idle(0.1)
                else:
                    self._read(memoryview(bytes(data.records or b"")))

    def _read(self, view: memoryview) -> None:
        for at, header in batches(view):
            check_crc(view, at, header)
            for record in records.records(view, at):
                if record.offset < self._offset:
                    continue
                if record.offset > self._offset:
                    raise Violation(f"{self.name}: {record.offset} follows {self._offset - 1}")
                assert record.value is not None
                value = bytes(record.value)
                message = self._log.seen(record.offset, value, self.name, self.life)
                if message.key and bytes(record.key or b"") != message.key.encode():
                    raise Violation(f"{self.name}: the key at {record.offset} is {record.key!r}, not {message.key!r}")
                self._found[record.offset] = value
                self._offset = record.offset + 1
