"""A consumer without a group: reads its partitions from the beginning, over and over, and holds each byte against history."""

from collections.abc import Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.sim.clients.client import Call, Client
from tests.sim.history import PartitionHistory
from tests.sim.world import Violation

# A long poll that ends by an append or not at all.
_WATCH_S = 6.0


class _Position:
    def __init__(self, history: PartitionHistory) -> None:
        self.history = history
        self.offset = 0
        self.whole = False  # read from the log's start to its end, after the faults were over
        self.log_start = 0
        self.from_start = False
        self.failures = 0


class Reader(Client):
    def __init__(self, *args: Any, partitions: Sequence[tuple[str, int]], long_poll_s: float = 0.5) -> None:
        super().__init__(*args)
        self._long_poll_s = long_poll_s
        self._positions = {key: _Position(self.history.partition(*key)) for key in partitions}
        self.watching = False  # waits for the next record
        self.finishing = False  # everybody else is done: nothing more will be written

    def finish(self) -> None:
        """Read everything once more, from the start."""
        self.watching = False
        self.finishing = True
        self._idle_until = 0.0
        for position in self._positions.values():
            position.offset = -1

    @property
    def done(self) -> bool:
        return self.finishing and all(position.whole for position in self._positions.values())

    @property
    def parked(self) -> bool:
        """It has read everything, and waits for more in a long poll."""
        if not self.pending or self.pending[0].key != ApiKey.FETCH or self.pending[0].context[1] != _WATCH_S:
            return False
        call = self.pending[0]
        at_end = all(offset == self.history.partition(*key).known_end for key, (offset, _) in call.context[0].items())
        return at_end and self.world.now > call.sent_at + 0.05

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        if any(topic not in self.history.ready for topic, _ in self._positions):
            self.idle(0.05)
            return None
        if self.done or self.rng.random() < 0.1:
            self.idle(0.02 + self.rng.random() * 0.2)
            return None
        positions = self._positions.items()
        sound = [key for key, position in positions if not (self.watching and position.history.rotten)]
        unknown = [key for key in sound if self._positions[key].offset < 0 and not self._positions[key].whole]
        if unknown:
            return self._list_offsets(unknown)
        if self.watching:
            keys = sound
        elif self.finishing:
            keys = [key for key, position in positions if not position.whole]
        else:
            keys = self.rng.sample(list(self._positions), self.rng.randrange(1, len(self._positions) + 1))
            if self.rng.random() < 0.05:
                self._positions[keys[0]].offset = -1  # over again
                return self._list_offsets(keys[:1])
        return self._fetch(keys)

    def _list_offsets(self, keys: list[tuple[str, int]]) -> Call:
        return Call(
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": -1,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [{"partition_index": partition, "timestamp": -2}],
                    }
                    for topic, partition in keys
                ],
            },
            keys,
        )

    def _fetch(self, keys: list[tuple[str, int]]) -> Call:
        rng = self.rng
        wait_s = 0.0 if rng.random() < 0.3 else rng.random() * self._long_poll_s
        least = rng.choice((0, 1, 1, 1, 500))
        if self.watching:
            wait_s, least = _WATCH_S, 1
        most = rng.choice((0, 1, 100, 1000, 100_000))
        context = {key: (self._positions[key].offset, self._positions[key].history.known_end) for key in keys}
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, partition in keys:
            topics.setdefault(topic, []).append(
                {
                    "partition": partition,
                    "fetch_offset": context[topic, partition][0],
                    "partition_max_bytes": rng.choice((0, 50, 1000, 100_000)),
                }
            )
        return Call(
            ApiKey.FETCH,
            {
                "max_wait": int(wait_s * 1000),
                "min_bytes": least,
                "max_bytes": most,
                "isolation_level": rng.choice((0, 1)),
                "session_epoch": rng.choice((-1, 0)),
                "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
            },
            (context, wait_s, least),
        )

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        if call.key == ApiKey.LIST_OFFSETS:
            self._listed(body)
            return
        context, wait_s, least = call.context
        if getattr(body, "error_code", 0):
            raise Violation(f"{self.name}: Fetch says {body.error_code!r}")
        if not body.responses and self.throttled_until > self.world.now:
            return  # the broker has read nothing
        size = 0
        behind: list[PartitionHistory] = []
        answered = []
        for topic in body.responses:
            for data in topic.partitions:
                key = (topic.topic, data.partition_index)
                answered.append(key)
                offset, least_end = context[key]
                position = self._positions[key]
                if data.error_code:
                    self._failed(position, offset, least_end, data.error_code)
                    behind = []
                    size += 1
                    continue
                records = data.records or b""
                size += len(records)
                position.failures = 0
                after = position.history.fetched(
                    offset,
                    least_end,
                    data.high_watermark,
                    max(0, getattr(data, "log_start_offset", 0)),
                    bytes(records),
                    self.life,
                )
                if position.offset != offset:
                    continue  # it was set back meanwhile
                position.offset = after
                if data.high_watermark > offset:
                    behind.append(position.history)
                if self.finishing and position.offset >= data.high_watermark:
                    self._at_end(position, data.high_watermark)
                elif least == 1 and not self.was_throttled(call) and self._slept(call, position.history, offset):
                    raise Violation(f"{self.name}: a fetch of {key} slept on after an append")
        throttled = not answered and getattr(body, "throttle_time", None)  # as Kafka does it: nothing was read
        if sorted(answered) != sorted(context) and not throttled:
            raise Violation(f"{self.name}: asked for {sorted(context)} and got {sorted(answered)}")
        behind = [history for history in behind if not history.rotten]
        if behind and not size:
            raise Violation(f"{self.name}: there are records before the high watermark of {behind}, and none came")
        if (
            self.quiet
            and self.history.hurried
            and not self.was_throttled(call)
            and self.world.now - call.sent_at > wait_s + 5.0
        ):
            raise Violation(
                f"{self.name}: a fetch that waits {wait_s:.2f} s took {self.world.now - call.sent_at:.2f} s"
            )

    def _slept(self, call: Call, history: PartitionHistory, offset: int) -> bool:
        """In quiet times: answered long after the append that it waited for."""
        if not (self.strict and self.history.hurried and call.sent_at >= self.quiet_since):
            return False
        acked_at = history.first_ack(call.sent_at, offset)
        return acked_at is not None and self.world.now > acked_at + 0.5

    def _at_end(self, position: _Position, end: int) -> None:
        if position.from_start and not position.whole:
            position.history.audit(position.log_start, end)
            position.whole = True

    def _listed(self, body: Any) -> None:
        for topic in body.topics:
            for data in topic.partitions:
                position = self._positions[topic.name, data.partition_index]
                if data.error_code:
                    self._failed(position, -1, -1, data.error_code)
                    continue
                position.offset = position.log_start = data.offset
                position.from_start = True

    def _failed(self, position: _Position, offset: int, least_end: int, error: int) -> None:
        history = position.history
        if error == ErrorCode.offset_out_of_range and not history.rotten:
            if history.start_most <= offset <= least_end:
                raise Violation(
                    f"{self.name}: {history} has no {offset}; it starts at {history.start_least}..{history.start_most}"
                )
            position.offset = -1
            position.from_start = False
            return
        if history.rotten:
            self.idle(0.1)
            position.whole = self.finishing  # it is offline, and says so
            return
        if error == ErrorCode.kafka_storage_error and not self.strict:
            self.idle(0.1)
            return
        raise Violation(f"{self.name}: {ErrorCode(error).name} for {history} from {offset}")
