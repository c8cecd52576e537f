"""Producers: idempotent ones that retry until everything is acknowledged, and plain ones with any ``acks``."""

from collections.abc import Sequence
from typing import Any

import attrs

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import HEADER_SIZE
from protocol.kafka.records.records import build_batch
from tests.sim.clients.client import Call, Client
from tests.sim.world import Violation

# What a producer meets on a healthy broker and tries again after.
_RETRIABLE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower})
# ... and only where the machine is at fault.
_MACHINE = frozenset({ErrorCode.kafka_storage_error, ErrorCode.coordinator_not_available})


@attrs.define(eq=False)
class Batch:
    values: list[bytes]
    first_number: int
    encoded: bytes = b""
    sent: bool = False
    in_flight: bool = False
    acked: bool = False


class _Partition:
    """A producer's batches for one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: list[Batch] = []
        self.recovering = False  # an answer was bad: nothing more goes out until all are in

    def sendable(self, most: int, held_back: int) -> Batch | None:
        in_flight = 0
        candidate = None
        for batch in self.batches[: len(self.batches) - held_back]:
            if batch.in_flight:
                in_flight += 1
            elif not batch.acked and candidate is None:
                candidate = batch
        if self.recovering and in_flight:
            return None
        self.recovering = False
        if not any(batch.acked for batch in self.batches):
            # As in Kafka, a broker takes any first sequence number of a producer that it does not know: were the first
            # batch refused (disk full) and the second one taken, the first could never come in any more.
            most = 1
        return candidate if in_flight < most else None

    def done(self, held_back: int) -> bool:
        return all(batch.acked for batch in self.batches[: len(self.batches) - held_back])


class Producer(Client):
    idempotent = False

    def __init__(
        self,
        *args: Any,
        partitions: Sequence[tuple[str, int]],
        batches: int,
        acks: int,
        in_flight: int,
        size_most: int = 200,
        pace_s: float = 0.05,
        held_back: int = 0,
    ) -> None:
        """``held_back``: batches that wait for ``release``."""
        super().__init__(*args)
        self.in_flight_most = in_flight
        self.acks = acks
        self.pace_s = pace_s
        self._held_back = held_back
        self.trimmed = ""  # the topic whose records may have been deleted by the time that they are acknowledged
        self._topics = [_Partition(topic, partition) for topic, partition in partitions]
        self._producer_id = -1
        self._producer_epoch = -1
        for entry in self._topics:
            number = 0
            for _ in range(batches):
                count = self.rng.randrange(1, 5)
                values = [self._value(entry, number + n, size_most) for n in range(count)]
                entry.batches.append(Batch(values, number))
                number += count

    def _value(self, entry: _Partition, number: int, size_most: int) -> bytes:
        name = f"{self.name}/{entry.topic}-{entry.partition}/{number}/".encode()
        return name + self.rng.randbytes(1) * self.rng.randrange(1, size_most)

    @property
    def done(self) -> bool:
        """All batches are acknowledged, except those held back."""
        return all(entry.done(self._held_back) for entry in self._topics)

    def release(self) -> None:
        """Send one more of the batches that are held back."""
        self._held_back -= 1
        self.idle(0.0)

    @property
    def holds_back(self) -> bool:
        return self._held_back > 0

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        if any(entry.topic not in self.history.ready for entry in self._topics):
            self.idle(0.05)
            return None
        if self.idempotent and self._producer_id < 0:
            if self.pending:
                return None
            return Call(ApiKey.INIT_PRODUCER_ID, {"transaction_timeout": 60_000})
        if self.rng.random() < 0.4:
            self.idle(self.rng.random() * self.pace_s)
            return None
        most = 5 if self.idempotent else self.in_flight_most
        held = self._held_back
        candidates = [(entry, batch) for entry in self._topics if (batch := entry.sendable(most, held)) is not None]
        if not candidates:
            return None
        count = 1 if self.rng.random() < 0.7 else self.rng.randrange(1, len(candidates) + 1)
        chosen = self.rng.sample(candidates, count)
        together = self.at_one_node([(entry.topic, entry.partition) for entry, _ in chosen])
        chosen = [each for each in chosen if (each[0].topic, each[0].partition) in together]
        for entry, batch in chosen:
            self._encode(batch)
            batch.in_flight = batch.sent = True
            history = self.history.partition(entry.topic, entry.partition)
            history.sending(self.name, batch.values, batch.first_number, self.idempotent)
        topics: dict[str, list[dict[str, Any]]] = {}
        for entry, batch in chosen:
            topics.setdefault(entry.topic, []).append({"index": entry.partition, "records": batch.encoded})
        call = Call(
            ApiKey.PRODUCE,
            {
                "acks": self.acks,
                "timeout": 30_000,
                "topic_data": [{"name": name, "partition_data": data} for name, data in topics.items()],
            },
            chosen,
            expects_answer=self.acks != 0,
        )
        if self.acks == 0:
            for _, batch in chosen:
                batch.in_flight, batch.acked = False, True
        return call

    def _encode(self, batch: Batch) -> None:
        if batch.encoded:
            return
        now_ms = int((self.world.now + 1_700_000_000) * 1000)
        records = [(b"k", value, [], now_ms) for value in batch.values]
        batch.encoded = bytes(
            build_batch(
                records,
                compression=self.rng.choice((0, 0, 0, 1, 2, 3, 4)),
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=batch.first_number if self.idempotent else -1,
            )
        )

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        if call.key == ApiKey.INIT_PRODUCER_ID:
            if body.error_code:
                self._excuse(body.error_code, "InitProducerId")
                self.idle(0.1)
                return
            self._producer_id, self._producer_epoch = body.producer_id, body.producer_epoch
            return
        waiting = {(entry.topic, entry.partition): (entry, batch) for entry, batch in call.context}
        for topic in body.responses:
            for result in topic.partition_responses:
                entry, batch = waiting.pop((topic.name, result.index))
                batch.in_flight = False
                self._result(entry, batch, result)
        if waiting:
            raise Violation(f"{self.name}: no result for {list(waiting)}")

    def _result(self, entry: _Partition, batch: Batch, result: Any) -> None:
        error = result.error_code
        if not error:
            if not batch.acked:
                batch.acked = True
                history = self.history.partition(entry.topic, entry.partition)
                would_survive = self.history.would_survive
                acks = self.history.promise_of(self.acks)
                if (
                    acks == -1
                    and would_survive is not None
                    and entry.topic != self.trimmed
                    and not history.rotten
                    and not would_survive(entry.topic, entry.partition, batch.encoded[HEADER_SIZE:])
                ):
                    raise Violation(
                        f"{self.name}: {history} at {result.base_offset} was acknowledged and is not on the disk"
                    )
                history.acknowledged(result.base_offset, batch.values, acks, self.life)
            return
        if self.history.partition(entry.topic, entry.partition).rotten:
            batch.acked = True  # given up
            return
        head = next(other for other in entry.batches if not other.acked)
        if (
            error == ErrorCode.out_of_order_sequence_number
            and self.idempotent
            and (batch is not head or entry.recovering)
        ):
            pass  # the one before it failed
        else:
            self._excuse(error, f"{entry.topic}-{entry.partition}, batch {batch.first_number}")
        entry.recovering = True
        self.idle(0.05)

    def _excuse(self, error: int, what: str) -> None:
        if error in _RETRIABLE and not self.strict:
            return
        if error in _MACHINE and not self.strict:
            return
        raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")

    def lost(self, call: Call) -> None:
        if call.key == ApiKey.PRODUCE:
            for entry, batch in call.context:
                batch.in_flight = False
                entry.recovering = True


class IdempotentProducer(Producer):
    idempotent = True
