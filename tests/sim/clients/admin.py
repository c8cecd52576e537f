"""An administrator: makes the topics that the others use, makes and deletes some of its own, deletes records.

A topic of its own is filled before it is deleted, and must be empty when it is made again. What was answered must hold after
any crash; a change without an answer may have happened or not.
"""

from collections.abc import Mapping
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch, records
from tests.kafka_connection import fetch_fields, produce_fields
from tests.sim.clients.client import Call, Client
from tests.sim.world import Violation

_CHURN = "churn"


class Admin(Client):
    def __init__(
        self,
        *args: Any,
        topics: Mapping[str, int],
        churns: int,
        deletes_records: tuple[str, int] | None,
        configs: Mapping[str, str],
    ) -> None:
        super().__init__(*args)
        self._to_make = dict(topics)
        self._churns = churns
        self._configs = dict(configs)
        self._deletes_records = deletes_records
        self._state = "gone"  # of the churned topic: gone, there, unknown (asked and not answered)
        self._deleting = False
        self._round = 0  # a topic's life
        self._filled = 0  # records of this round that were acknowledged
        self._tries = 0  # ... and that were sent
        # The broker's life in which a request was lost: it may still be carried out as long as that life lasts.
        self._doubtful_life = 0

    @property
    def done(self) -> bool:
        return not self._to_make and self._churns <= 0

    @property
    def _doubt(self) -> bool:
        return self._doubtful_life == self.world.lives

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        if self._to_make:
            name, partitions = next(iter(self._to_make.items()))
            return self._create(name, partitions)
        if self.rng.random() < 0.4:
            self.idle(self.rng.random() * 0.3)
            return None
        if self._deletes_records and self.rng.random() < 0.15 and not self.quiet:
            call = self._delete_records()
            if call is not None:
                return call
        if self._churns <= 0:
            self.idle(0.5)
            return None
        return self._churn()

    def _create(self, name: str, partitions: int) -> Call:
        configs = [{"name": key, "value": value} for key, value in self._configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        return Call(
            ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": 10_000, "validate_only": False}, ("create", name)
        )

    def _churn(self) -> Call:
        if self._state == "unknown":
            return self._metadata()
        if self._state == "gone":
            self._state = "unknown"
            return self._create(_CHURN, 2)
        if not self._filled:
            self._tries += 1
            return self._fill()
        if not self._deleting and self.rng.random() < 0.6:
            return self._read()
        self._deleting = True
        self._state = "unknown"
        return Call(ApiKey.DELETE_TOPICS, {"topic_names": [_CHURN], "timeout": 10_000}, ("delete", _CHURN))

    def _metadata(self) -> Call:
        return Call(
            ApiKey.METADATA,
            {"topics": [{"name": _CHURN}], "allow_auto_topic_creation": False},
            ("look",),
        )

    def _fill(self) -> Call:
        value = f"round {self._round}".encode()
        batch = bytes(build_batch([(None, value, [], 1)]))
        return Call(ApiKey.PRODUCE, produce_fields(_CHURN, batch), ("fill",))

    def _read(self) -> Call:
        return Call(ApiKey.FETCH, fetch_fields(_CHURN, max_bytes=100_000, min_bytes=0), ("read",))

    def _delete_records(self) -> Call | None:
        assert self._deletes_records is not None
        topic, number = self._deletes_records
        history = self.history.partition(topic, number)
        # Only data that must survive a power loss.
        if history.durable_end <= history.start_most:
            return None
        before = self.rng.randrange(history.start_most, history.durable_end) + 1
        history.start_most = max(history.start_most, before)
        return Call(
            ApiKey.DELETE_RECORDS,
            {
                "topics": [{"name": topic, "partitions": [{"partition_index": number, "offset": before}]}],
                "timeout": 10_000,
            },
            ("records", before),
        )

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        kind = call.context[0]
        if kind == "create":
            self._created(call.context[1], body.topics[0].error_code)
        elif kind == "delete":
            self._deleted(body.responses[0].error_code)
        elif kind == "look":
            if self.is_current:  # else: the state that a dead broker saw, which may have done more before it died
                self._looked(body.topics[0].error_code)
        elif kind == "fill":
            self._produced(body.responses[0].partition_responses[0])
        elif kind == "read":
            if body.responses:  # else it was throttled, and asks again
                self._fetched(body.responses[0].partitions[0])
        else:
            self._records_deleted(call.context[1], body.topics[0].partitions[0])

    def _created(self, name: str, error: int) -> None:
        if name in self._to_make:
            if error in (ErrorCode.none, ErrorCode.topic_already_exists):
                del self._to_make[name]
                self.history.ready.add(name)
            else:
                self._excuse(error, f"the creation of {name}")
            return
        if error == ErrorCode.none:
            self._made()
        elif error == ErrorCode.topic_already_exists and self._doubt:
            pass  # look again
        else:
            self._excuse(error, "the creation of a topic that was gone")

    def _made(self) -> None:
        self._state = "there"
        self._filled = self._tries = 0
        self._round += 1

    def _deleted(self, error: int) -> None:
        if error == ErrorCode.none:
            self._state = "gone"
            self._deleting = False
            self._churns -= 1
        elif error == ErrorCode.unknown_topic_or_partition and self._doubt:
            pass
        else:
            self._excuse(error, "the deletion of a topic that was there")

    def _looked(self, error: int) -> None:
        if error == ErrorCode.leader_not_available:
            return  # an old version of Metadata has the topic made; a broker that stops may not get that far: look again
        if error == ErrorCode.none:
            if not self._deleting:  # made by a request whose answer was lost
                self._made()
            self._state = "there"
        elif error == ErrorCode.unknown_topic_or_partition:
            if self._deleting:
                self._deleting = False
                self._churns -= 1
            self._state = "gone"
        else:
            self._excuse(error, "Metadata")

    def _produced(self, result: Any) -> None:
        if result.error_code:
            if result.error_code == ErrorCode.unknown_topic_or_partition and self._doubt:
                self._state = "unknown"
                return
            self._excuse(result.error_code, "filling a topic")
            return
        if result.base_offset >= self._tries and not self._doubt:
            raise Violation(
                f"{self.name}: after {self._tries} tries a record of a new topic has offset {result.base_offset}"
            )
        self._filled += 1

    def _fetched(self, data: Any) -> None:
        if data.error_code:
            if data.error_code == ErrorCode.unknown_topic_or_partition and self._doubt:
                self._state = "unknown"
                return
            self._excuse(data.error_code, "reading a topic")
            return
        stored = [record.value for record in records(memoryview(bytes(data.records)))] if data.records else []
        expected = f"round {self._round}".encode()
        for value in stored:
            if value != expected and not self._doubt:
                raise Violation(f"{self.name}: {value!r} is in a topic that was made for {expected!r}")
        if not stored and not self._doubt:
            raise Violation(f"{self.name}: {expected!r} was acknowledged and is not there")

    def _records_deleted(self, before: int, result: Any) -> None:
        assert self._deletes_records is not None
        history = self.history.partition(*self._deletes_records)
        if result.error_code:
            self._excuse(result.error_code, f"DeleteRecords of {history} before {before}")
            return
        if result.low_watermark < before:
            raise Violation(
                f"{self.name}: DeleteRecords before {before} leaves {history} starting at {result.low_watermark}"
            )
        history.start_least = max(history.start_least, before)

    def _excuse(self, error: int, what: str) -> None:
        # The machine's fault, while it is at fault.
        if not self.strict and error in (ErrorCode.kafka_storage_error, ErrorCode.unknown_server_error):
            self.idle(0.2)
            return
        raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")

    def lost(self, call: Call) -> None:
        self._doubtful_life = self.world.lives
