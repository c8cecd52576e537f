"""The link to one broker: the connection, the share session, the request in flight, and the records the broker has
locked.

Used by the thread that has the engine's turn. It changes ``holdings`` under the consumer's lock, because users decide
about records from any thread. A broken connection ends the session: decisions in flight are settled with the error, and
the broker may deliver its locked records again.

``RecordReader`` turns record batches and acquired ranges into records. Pure. An answer holds complete batches; the
ranges state which records are acquired by this consumer. Batches without an acquired record are skipped by their
headers. An offset of a range without a record belongs to a control record or to a record that compaction has removed.

A broker that gets a request for a few records sends the complete batch with them, and sends it again for the next
few. So the batch that was read last in a partition is kept together with the position in it: it is unpacked and walked
through only once.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from broker.client.kafka.config import Address
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import ConnectionLostError, KafkaClientError
from broker.client.kafka.routing import Routing
from broker.client.kafka.share import requests
from broker.client.kafka.share.acquired import (
    BUFFERED,
    Acknowledgements,
    AcquiredRange,
    Holdings,
    Settled,
    TopicIdPartition,
)
from broker.client.kafka.share.record import RecordOwner, ShareRecord, unsupported
from broker.client.kafka.share.requests import FetchLimits, ShareAnswer, ShareSession
from broker.runtime.threads import Lock
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import LOG_OVERHEAD, BatchHeader, check_crc, read_header, whole_batches
from protocol.kafka.records.records import Record, read_records, unpack
from protocol.kafka.schema import control

# A larger batch is not kept (bytes on the wire).
_KEPT_MAX = 1 << 20


class _OpenBatch:
    """A batch and the position up to which it was read. ``rows`` continues at the first record that was not wanted
    yet."""

    __slots__ = ("header", "next_offset", "pushed_back", "rows")

    def __init__(self, header: BatchHeader, rows: Iterator[Record]) -> None:
        self.header = header
        self.rows = rows
        self.next_offset = header.base_offset
        self.pushed_back: Record | None = None


class RecordReader:
    """Reads all partitions of a consumer."""

    __slots__ = ("_open", "_owner")

    def __init__(self, owner: RecordOwner) -> None:
        self._owner = owner
        self._open: dict[TopicIdPartition, _OpenBatch] = {}

    def read(self, data: memoryview, ranges: Sequence[AcquiredRange]) -> list[ShareRecord]:
        """The records of ``ranges``, which are of one partition and ascend, in order. Raises ProtocolError for
        unreadable bytes."""
        records: list[ShareRecord] = []
        if not ranges:
            return records
        partition = ranges[0].partition
        kept = self._open.pop(partition, None)
        size, _ = whole_batches(data)
        position, index = 0, 0
        while position < size and index < len(ranges):
            header = read_header(data, position)
            while index < len(ranges) and ranges[index].last < header.base_offset:
                index += 1
            if index < len(ranges) and ranges[index].first <= header.last_offset and not header.is_control:
                if kept is None or kept.header != header or kept.next_offset > ranges[index].first:
                    check_crc(data, position, header)
                    kept = _OpenBatch(header, read_records(header, unpack(data, position, header)))
                if self._read_batch(kept, ranges, index, records) and header.batch_length <= _KEPT_MAX:
                    self._open[partition] = kept
            position += LOG_OVERHEAD + header.batch_length
        return records

    def _read_batch(
        self, batch: _OpenBatch, ranges: Sequence[AcquiredRange], index: int, records: list[ShareRecord]
    ) -> bool:
        """Append the records in ``ranges`` from ``index`` on. Returns whether the batch has more records after them."""
        current = ranges[index]
        topic, (_, partition) = current.topic, current.partition
        first, last, count = current.first, current.last, current.delivery_count
        owner, next_offset, final = self._owner, batch.next_offset, batch.header.last_offset
        rows, states = batch.rows, current.states
        row = batch.pushed_back or next(rows, None)
        batch.pushed_back = None
        while row is not None:
            offset, timestamp, key, value, headers = row
            if not next_offset <= offset <= final:
                raise ProtocolError(f"a record with offset {offset}, where {next_offset} to {final} are possible")
            while offset > last:
                index += 1
                if index == len(ranges):
                    batch.pushed_back, batch.next_offset = row, offset
                    return True
                current = ranges[index]
                first, last, count, states = current.first, current.last, current.delivery_count, current.states
            if offset >= first:
                states[offset - first] = BUFFERED
                records.append(
                    ShareRecord(topic, partition, offset, timestamp, key, value, headers, count, current, owner)
                )
            next_offset = offset + 1
            row = next(rows, None)
        return False


# The broker has another session of this member, or none.
_SESSION_LOST = frozenset(
    {
        ErrorCode.share_session_not_found,
        ErrorCode.invalid_share_session_epoch,
        ErrorCode.share_session_limit_reached,
    }
)

# The requested records and one more batch, which a broker sends even if it is larger.
_FRAME_MAX = 128 << 20


@attrs.frozen(eq=False)
class _InFlight:
    kind: Literal["fetch", "acknowledge", "renew"]
    correlation_id: int
    version: int
    sent_at: float
    wait_s: float
    # Only renewals: other acknowledgements are marked as sent in the holdings.
    renewals: Acknowledgements


@attrs.frozen(eq=False)
class Received:
    """``locked_from``: when (monotonic, s) the locks of its records began, at the earliest. A lock that could not be renewed ends
    at its time, and its records are delivered again."""

    kind: str
    answer: ShareAnswer
    settled: Sequence[Settled]
    locked_from: float


class BrokerLink:
    """``not_before``: no request before this time (monotonic, s), because the broker throttles this client or has
    failed."""

    def __init__(self, address: Address, routing: Routing, group: str, member_id: str, lock: Lock) -> None:
        self.address = address
        self.holdings = Holdings()
        self.session = ShareSession()
        self.not_before = 0.0
        self.failures = 0  # in a row
        self._routing = routing
        self._group, self._member_id = group, member_id
        self._lock = lock
        self._connection: Connection | None = None
        self._in_flight: _InFlight | None = None

    @property
    def is_waiting(self) -> bool:
        return self._in_flight is not None

    @property
    def is_fetching(self) -> bool:
        return self._in_flight is not None and self._in_flight.kind == "fetch"

    @property
    def renews(self) -> bool:
        """Whether the broker can renew locks. Known only after a first request."""
        return (
            self._connection is not None
            and self._connection.ranges.get(ApiKey.SHARE_ACKNOWLEDGE, (0, -1))[1] >= requests.FIRST_WITH_RENEWAL
        )

    # Requests -------------------------------------------------------------------------------------------------------

    def fetch(self, wanted: Collection[TopicIdPartition], limits: FetchLimits) -> None:
        """Ask for records of these partitions. Decisions about their records are sent with the request."""
        connection = self._connect()
        version = self._version(connection, ApiKey.SHARE_FETCH, requests.FETCH_VERSIONS)
        may_acknowledge = self.session.is_open
        plan = self.session.fetch(wanted)
        acknowledgements: Acknowledgements = {}
        if may_acknowledge:
            with self._lock:
                acknowledgements = self.holdings.send(wanted)
        fields = requests.share_fetch(version, self._group, self._member_id, plan, acknowledgements, limits)
        self._send(connection, "fetch", ApiKey.SHARE_FETCH, version, fields, limits.max_wait_ms / 1000, {})

    def acknowledge(self, *, ends_session: bool = False) -> bool:
        """Send all decisions. False if there is none. The session must be open; if it ends, all records are released."""
        connection = self._connect()
        version = self._version(connection, ApiKey.SHARE_ACKNOWLEDGE, requests.ACKNOWLEDGE_VERSIONS)
        with self._lock:
            acknowledgements = self.holdings.send()
        if not acknowledgements and not ends_session:
            return False
        epoch = self.session.close() if ends_session else self.session.acknowledge()
        fields = requests.share_acknowledge(version, self._group, self._member_id, epoch, acknowledgements)
        self._send(connection, "acknowledge", ApiKey.SHARE_ACKNOWLEDGE, version, fields, 0.0, {})
        return True

    def renew(self, renewals: Acknowledgements) -> None:
        """Requires an open session and ``renews``."""
        connection = self._connect()
        version = self._version(connection, ApiKey.SHARE_ACKNOWLEDGE, (requests.FIRST_WITH_RENEWAL, 2))
        epoch = self.session.acknowledge()
        fields = requests.share_acknowledge(version, self._group, self._member_id, epoch, renewals, renewal=True)
        self._send(connection, "renew", ApiKey.SHARE_ACKNOWLEDGE, version, fields, 0.0, renewals)

    def _send(
        self,
        connection: Connection,
        kind: Literal["fetch", "acknowledge", "renew"],
        key: ApiKey,
        version: int,
        fields: Mapping[str, Any],
        wait_s: float,
        renewals: Acknowledgements,
    ) -> None:
        config = self._routing.config
        correlation_id = connection.next_id()
        frame = control.encode_request(key, version, correlation_id, config.client_id, fields)
        now = self._routing.clock.monotonic()
        self._in_flight = _InFlight(kind, correlation_id, version, now, wait_s, renewals)
        connection.send([frame], connection.deadline(config.request_timeout_ms))

    # Answers --------------------------------------------------------------------------------------------------------

    def answer_begins(self, deadline: float) -> bool:
        """Wait for the answer to the request in flight until ``deadline``."""
        assert self._connection is not None
        return self._connection.answer_begins(deadline)

    def receive(self) -> Received:
        """The answer to the request in flight. Raises KafkaClientError; then call ``lost``."""
        in_flight, connection = self._in_flight, self._connection
        assert in_flight is not None
        assert connection is not None
        timeout_ms = self._routing.config.request_timeout_ms + in_flight.wait_s * 1000
        frame = connection.receive(connection.deadline(timeout_ms), f"a share {in_flight.kind}")
        read = requests.read_fetched if in_flight.kind == "fetch" else requests.read_acknowledged
        try:
            correlation_id, answer = read(in_flight.version, frame)
        except ProtocolError as error:
            raise connection.unreadable(f"a share {in_flight.kind}", error) from None
        connection.check_id(correlation_id, in_flight.correlation_id)
        self._in_flight = None
        self.failures = 0
        now = self._routing.clock.monotonic()
        if answer.throttle_s:
            self.not_before = now + answer.throttle_s
        if answer.error in _SESSION_LOST:
            self.session.lost()
        else:
            self.session.answered()
        # The answer may have waited here unread. The broker has kept it for at most the permitted time.
        locked_from = min(now, in_flight.sent_at + in_flight.wait_s + 1.0)
        errors = {data.partition: data.acknowledge_error for data in answer.partitions}

        def error_of(partition: TopicIdPartition) -> int:
            return answer.error or errors.get(partition, 0)

        with self._lock:
            if answer.lock_s:
                self.holdings.lock_s = answer.lock_s
            if in_flight.kind != "renew":
                return Received(in_flight.kind, answer, self.holdings.settle(error_of), locked_from)
            renewed = {where: kinds for where, kinds in in_flight.renewals.items() if not error_of(where)}
            self.holdings.renewed(renewed, in_flight.sent_at + self.holdings.lock_s)
        return Received(in_flight.kind, answer, (), locked_from)

    # Life -----------------------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        assert self._in_flight is None
        if self._connection is None:
            self._connection = self._routing.dial(self.address, _FRAME_MAX)
        elif not self._connection.is_open:  # pragma: no cover  # a caller that sees an error calls `lost`
            raise ConnectionLostError(f"The connection to the broker at {self._connection.where} is closed.")
        return self._connection

    @staticmethod
    def _version(connection: Connection, key: ApiKey, versions: tuple[int, int]) -> int:
        if connection.ranges.get(key, (0, -1))[1] < versions[0]:
            raise unsupported(connection.where)
        return connection.version(key, *versions)

    def lost(self, error: KafkaClientError | None, now: float) -> list[Settled]:
        """Close the connection. Decisions in flight are settled: it is unknown whether they counted."""
        self.disconnect()
        self.session.lost()
        self.failures += 1
        config = self._routing.config
        pause_ms = min(config.retry_backoff_ms * 2 ** min(self.failures - 1, 16), config.retry_backoff_max_ms)
        self.not_before = now + pause_ms / 1000
        with self._lock:
            return self.holdings.settle(lambda _: (error and error.code) or ErrorCode.network_exception)

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._in_flight = None
        if connection is not None:
            connection.close()
