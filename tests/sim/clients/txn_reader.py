"""A reader of committed records: skips the records that the broker lists as aborted, and compares the rest with the ledger."""

from collections.abc import Iterator, Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records import records
from protocol.kafka.records.batch import batches, check_crc
from protocol.kafka.records.records import read_marker
from tests.sim.clients.client import Call, Client
from tests.sim.ledger import Ledger, Partition
from tests.sim.world import Violation


def read_committed(data: Any, position: int, what: str) -> Iterator[tuple[int, list[tuple[int, bytes, bool]]]]:
    """Of each batch from ``position`` on, in a partition's answer to a reader of committed records: the offset after it, and its
    records: offset, value, and whether the broker says that it was aborted."""
    stable = data.last_stable_offset
    if not 0 <= stable <= data.high_watermark:
        raise Violation(f"{what} is stable up to {stable}, and ends at {data.high_watermark}")
    aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
    passed_over: set[int] = set()
    view = memoryview(bytes(data.records or b""))
    for at, header in batches(view):
        check_crc(view, at, header)
        if header.next_offset <= position:
            continue
        if header.next_offset > stable:
            raise Violation(f"{what} is stable up to {stable}, and {header.last_offset} came")
        if header.base_offset > position:
            raise Violation(f"{what}: {header.base_offset} follows {position - 1}")
        while aborted and aborted[0][0] <= header.last_offset:
            passed_over.add(aborted.pop(0)[1])
        found = []
        if header.is_control:
            marker = read_marker(view[at : at + header.size])
            if marker is None:
                raise Violation(f"{what}: no marker at {header.base_offset}")
            if not marker.commit:
                passed_over.discard(header.producer_id)
        else:
            for record in records.records(view, at):
                assert record.value is not None
                found.append((record.offset, record.value, header.producer_id in passed_over))
        position = header.next_offset
        yield position, found


class _Place:
    def __init__(self) -> None:
        self.offset = 0
        self.seen: list[bytes] = []  # since the beginning
        self.whole = False


class TxnReader(Client):
    """``patience_s``: after so long no transaction is open that nobody goes on with."""

    def __init__(self, *args: Any, ledger: Ledger, partitions: Sequence[Partition], patience_s: float) -> None:
        super().__init__(*args)
        self._patience_s = patience_s if self.history.hurried else 10 * patience_s
        self._finishing_since = 0.0
        self._ledger = ledger
        self._places = {partition: _Place() for partition in partitions}
        self.finishing = False

    def finish(self) -> None:
        """Read everything once more: nobody writes any more."""
        self.finishing = True
        self._finishing_since = self.world.now
        self._idle_until = 0.0
        for key in self._places:
            self._places[key] = _Place()

    @property
    def seen(self) -> dict[Partition, list[bytes]]:
        """All committed values of each partition, when it is done."""
        return {key: place.seen for key, place in self._places.items()}

    @property
    def done(self) -> bool:
        return self.finishing and all(place.whole for place in self._places.values())

    def next_call(self) -> Call | None:
        rng = self.rng
        if any(topic not in self.history.ready for topic, _ in self._places) or self.done or rng.random() < 0.2:
            self.idle(0.02 + rng.random() * 0.2)
            return None
        keys = self.at_one_node([key for key, place in self._places.items() if not place.whole])
        keys = rng.sample(keys, rng.randrange(1, len(keys) + 1))
        if rng.random() < 0.02 and not self.finishing:
            self._places[keys[0]] = _Place()
        committed = rng.random() < 0.8 or self.finishing
        context = {key: self._places[key] for key in keys}, {key: self._places[key].offset for key in keys}, committed
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, number in keys:
            topics.setdefault(topic, []).append(
                {
                    "partition": number,
                    "fetch_offset": self._places[topic, number].offset,
                    "partition_max_bytes": rng.choice((0, 300, 100_000)),
                }
            )
        fields = {
            "max_wait": rng.choice((0, 100, 300)),
            "min_bytes": 1,
            "max_bytes": rng.choice((0, 1000, 100_000)),
            "isolation_level": int(committed),
            "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        return Call(ApiKey.FETCH, fields, context)

    def answered(self, call: Call, body: Any) -> None:
        if getattr(body, "error_code", 0):
            raise Violation(f"{self.name}: Fetch says {body.error_code!r}")
        places, offsets, committed = call.context
        for topic in body.responses:
            for data in topic.partitions:
                key = (topic.topic, data.partition_index)
                place = places[key]
                if self._places[key] is not place or place.offset != offsets[key]:
                    continue  # it was set back meanwhile
                if data.error_code:
                    self._failed(key, place, data.error_code)
                elif committed:
                    self._committed(key, place, data)
                elif not 0 <= data.last_stable_offset <= data.high_watermark:
                    raise Violation(
                        f"{self.name}: {key} is stable up to {data.last_stable_offset} of {data.high_watermark}"
                    )

    def _failed(self, key: Partition, place: _Place, error: int) -> None:
        self.idle(0.1)
        if error == ErrorCode.offset_out_of_range and not self.is_current:
            return
        if error == ErrorCode.offset_out_of_range and not self.strict:
            # What is not durable is read, too: a power loss may have taken it.
            self._places[key] = _Place()
            return
        if error != ErrorCode.kafka_storage_error or self.strict:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {key} from {place.offset}")

    def _committed(self, key: Partition, place: _Place, data: Any) -> None:
        if not self.is_current:
            return
        stable = data.last_stable_offset
        for next_offset, found in read_committed(data, place.offset, f"{self.name}: {key}"):
            for offset, value, is_aborted in found:
                if is_aborted:
                    self._ledger.hidden(key, offset, value, self.name)
                else:
                    self._ledger.visible(key, offset, value, self.name)
                    place.seen.append(value)
            place.offset = next_offset
        if (
            self.finishing
            and stable < data.high_watermark
            and self.world.now > self._finishing_since + self._patience_s
        ):
            raise Violation(f"{self.name}: {key} ends at {data.high_watermark} and is stable up to {stable}, for ever")
        if self.finishing and place.offset >= data.high_watermark:
            place.whole = True
            if self.done:
                self._ledger.audit(self.seen)
