"""Quotas as clients see them: throttle times in responses, and connections from which nothing is taken meanwhile.

No test measures time: quotas are so small that a throttle outlasts every test, or so large that nothing is throttled.
"""

import struct
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from broker.kafka.kafka_session import RunFinder
from broker.kafka.metering import Metered, Metering
from broker.metrics.registry import render
from broker.network.mute import THROTTLED
from broker.network.quota import Throttling
from broker.runtime.timers import Timer
from broker.security.client_quotas import DEFAULT, ClientQuotas, Entity, Kind, Windows
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch, produce
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.clocks import ManualClock
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.waiting import wait_for

EVERYBODY = Entity(client_id=DEFAULT)
VALUE = b"x" * 1000
# Bytes a second: a request of 1 KB takes a quarter of an hour.
TINY = 1.0
HUGE = 1e12


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def limit(kafka: Kafka, kind: Kind, value: float | None, entity: Entity = EVERYBODY) -> None:
    kafka.inside.quotas.alter([(entity, kind, value)])


def connections(kafka: Kafka) -> list[Any]:
    return [connection for processor in kafka.broker.server.sockets.processors for connection in processor.connections]


def is_throttled(kafka: Kafka) -> bool:
    return any(connection.holds & THROTTLED for connection in connections(kafka))


def produce_frame(topic: str, acks: int = 1, version: int = 9, client_id: str | None = "c") -> bytes:
    batch = build_batch([(None, VALUE, [], 1)])
    return b"".join(produce.request_parts(7, client_id, version, None, acks, 30_000, [(topic, 0, batch)]))


def throttle_of_produce(frame: bytes, version: int = 9) -> int:
    end = len(frame) - (version >= 9)
    (ms,) = struct.unpack(">i", frame[end - 4 : end])
    return int(ms)


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_above_the_quota_throttles_the_next_request(kafka: Kafka, acks: int) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY)
    answer = kafka.exchange(produce_frame(topic, acks))
    _, (result,) = produce.parse_response(memoryview(answer), 9)
    assert (result.error, result.base_offset) == (0, 0)
    assert throttle_of_produce(answer) == pytest.approx((len(produce_frame(topic, acks)) - 4 - 0.2) * 1000, rel=0.1)
    assert is_throttled(kafka)
    kafka.send(produce_frame(topic))
    # Another connection of the same client is still answered once, and nothing was taken from the first.
    with Beside(kafka) as other:
        other.send(control.encode_request(ApiKey.METADATA, 9, 1, "c", {}))
        assert other.exactly(4)
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    assert log.log_end_offset == 1
    limit(kafka, Kind.PRODUCE, HUGE)  # ends the throttle
    _, (result,) = produce.parse_response(memoryview(kafka.exchange(b"")), 9)
    assert result.base_offset == 1
    assert not is_throttled(kafka)


@pytest.mark.parametrize("acks", [1, -1])
def test_smallest_quota_bounds_the_size_of_a_run(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, acks: int) -> None:
    runs = []
    find = RunFinder.find

    def noted(self: RunFinder, data: memoryview, first: int) -> int:
        size = find(self, data, first)
        if self.found is not None:
            runs.append(self.found.count)
        return size

    monkeypatch.setattr(RunFinder, "find", noted)
    topic = kafka.topic()
    frame = produce_frame(topic, acks)
    limit(kafka, Kind.PRODUCE, 3.5 * len(frame) / kafka.inside.quotas.windows.ahead_s)
    limit(kafka, Kind.PRODUCE, HUGE, Entity(client_id="another"))
    for round_ in range(50):  # the network may still divide what was sent at once
        kafka.send(frame * 9)
        for number in range(9):
            _, (result,) = produce.parse_response(memoryview(kafka.exchange(b"")), 9)
            assert (result.error, result.base_offset) == (0, 9 * round_ + number)
        if max(runs) >= 3:
            break
    assert max(runs) == 3


def test_runs_last_answer_has_the_throttle_time(kafka: Kafka) -> None:
    topic = kafka.topic()
    for number in range(50):  # the network may still divide what was sent at once
        limit(kafka, Kind.PRODUCE, TINY)
        assert kafka.inside.metering is not None
        kafka.inside.metering.run_max_bytes = 1 << 20
        frame = produce_frame(topic, client_id=f"c{number}")
        with Beside(kafka) as other:
            other.send(frame * 3)
            throttles = [throttle_of_produce(other.exchange(b""))]
            if not throttles[0]:
                throttles += [throttle_of_produce(other.exchange(b""))]
            limit(kafka, Kind.PRODUCE, HUGE)  # otherwise those that came later would not be answered
            throttles += [throttle_of_produce(other.exchange(b"")) for _ in range(3 - len(throttles))]
        if throttles[:2] == [0, 0]:
            assert throttles[2] == pytest.approx((len(frame) - 4) * 3 * 1000, rel=0.01)
            break
    else:
        raise AssertionError(throttles)


def test_batch_that_begins_a_transaction_is_counted_once(kafka: Kafka) -> None:
    topic = kafka.topic()
    me = kafka.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="tx", transaction_timeout=60_000, producer_id=-1)
    producer = {"producer_id": me.producer_id, "producer_epoch": me.producer_epoch, "base_sequence": 0}
    batch = build_batch([(None, VALUE, [], 1)], attributes=TRANSACTIONAL, **producer)
    frame = b"".join(produce.request_parts(7, "c", 12, "tx", 1, 30_000, [(topic, 0, batch)]))
    limit(kafka, Kind.PRODUCE, TINY)
    answer = kafka.exchange(frame)
    _, (result,) = produce.parse_response(memoryview(answer), 12)
    assert (result.error, result.base_offset) == (0, 0)
    assert throttle_of_produce(answer) == pytest.approx((len(frame) - 4 - 0.2) * 1000, rel=0.1)
    assert is_throttled(kafka)


def test_produce_without_an_answer_is_throttled_by_muting(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY)
    kafka.send(produce_frame(topic, acks=0))
    wait_for(lambda: is_throttled(kafka))
    kafka.send(produce_frame(topic, acks=1))
    limit(kafka, Kind.PRODUCE, None)
    _, (result,) = produce.parse_response(memoryview(kafka.exchange(b"")), 9)
    assert result.base_offset == 1


def test_below_the_quota_nothing_is_throttled(kafka: Kafka) -> None:
    topic = kafka.topic()
    for kind in (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST, Kind.MUTATION):
        limit(kafka, kind, HUGE)
    for _ in range(5):
        assert throttle_of_produce(kafka.exchange(produce_frame(topic))) == 0
    assert fetched(kafka, topic).throttle_ms == 0
    assert not is_throttled(kafka)


def fetched(kafka: Kafka, topic: str, version: int = 11) -> fetch.FetchResponse:
    frame = fetch.request(
        7, "c", version, topic, 0, 0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0
    )
    return fetch.parse_response(memoryview(kafka.exchange(frame)), version)


def test_fetch_above_the_quota_is_empty_and_uncounted(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(20))
    limit(kafka, Kind.FETCH, TINY)
    first = fetched(kafka, topic)
    assert first.throttle_ms == 0
    size = len(first.partitions[0].records)
    assert 0 < size  # one batch at least, whatever the quota
    second = fetched(kafka, topic)
    assert (second.error, second.partitions) == (0, [])
    assert second.throttle_ms >= size * 900
    assert is_throttled(kafka)
    meter = kafka.inside.quotas.meters("ANONYMOUS", "c").fetch
    assert meter is not None
    assert meter.throttle_s(kafka.inside.clock.monotonic()) * 1000 <= second.throttle_ms
    limit(kafka, Kind.FETCH, None)
    assert fetched(kafka, topic).partitions


def test_empty_fetch_always_has_a_throttle_time() -> None:
    clock = ManualClock()
    quotas = ClientQuotas(mock.Mock(), clock, Windows())
    quotas.alter([(EVERYBODY, Kind.FETCH, 1000.0)])
    meters = quotas.meters("u", "c")
    assert meters.fetch is not None
    meters.fetch.take(200.1, clock.now)  # 0.2 s are allowed at once: 0.1 ms in debt
    metering = Metering(quotas, Throttling(Timer(clock)), clock)
    metered = Metered(metering, meters, mock.Mock(), clock.now, in_debt=False)
    assert not metered.fetched(10)
    outbox = metered._inner
    request = mock.Mock(api=mock.Mock(key=ApiKey.FETCH), api_version=11)
    metered.send(request, fetch.response_parts(7, 11, 0, 0, 0, ()))
    (_, parts), _ = outbox.send.call_args  # type: ignore[attr-defined]
    assert fetch.parse_response(memoryview(b"".join(parts)), 11).throttle_ms == 1


def test_fetch_is_limited_to_the_quotas_burst(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(200))
    everything = len(fetched(kafka, topic).partitions[0].records)
    limit(kafka, Kind.FETCH, everything / 2 / 0.2)
    assert 0 < len(fetched(kafka, topic).partitions[0].records) <= everything / 2


def test_request_time_is_throttled_for_one_window_only(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.REQUEST, 1e-6)
    answer = kafka.exchange(produce_frame(topic))
    assert throttle_of_produce(answer) == 1000
    wait_for(lambda: is_throttled(kafka))


def test_sending_time_counts_while_a_quota_exists(kafka: Kafka) -> None:
    limit(kafka, Kind.REQUEST, HUGE)
    topic = kafka.topic()
    kafka.exchange(produce_frame(topic))
    (connection,) = [one for one in connections(kafka) if one.peer.port == kafka.socket.getsockname()[1]]
    meter = kafka.inside.quotas.meters("ANONYMOUS", "c").request
    assert meter is not None
    assert connection.on_flushed is not None
    before = meter.sensor.tokens(HUGE, 1e9)
    connection.on_flushed(0.5, 1e9)
    assert before - meter.sensor.tokens(HUGE, 1e9) == 50.0
    limit(kafka, Kind.REQUEST, None)
    limit(kafka, Kind.PRODUCE, HUGE)
    kafka.exchange(produce_frame(topic))
    assert connection.on_flushed is None


@pytest.mark.parametrize("version", [2, 9])
def test_every_api_is_throttled_on_handlers_as_well(kafka: Kafka, version: int) -> None:
    limit(kafka, Kind.REQUEST, 1e-6)
    answer = kafka.ask(ApiKey.METADATA, version, topics=None)
    assert is_throttled(kafka)
    assert version < 3 or answer.throttle_time.total_seconds() == 1


def test_other_clients_are_not_throttled(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY, Entity(client_id="other"))
    assert throttle_of_produce(kafka.exchange(produce_frame(topic))) == 0
    limit(kafka, Kind.PRODUCE, TINY, Entity("ANONYMOUS"))
    assert throttle_of_produce(kafka.exchange(produce_frame(topic))) > 0


def test_client_without_an_id_has_the_default_quota(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY)
    assert throttle_of_produce(kafka.exchange(produce_frame(topic, client_id=None))) > 0


def create(kafka: Kafka, version: int, *names: str, validate_only: bool = False) -> Any:
    topics = [{"name": name, "num_partitions": 10, "replication_factor": 1} for name in names]
    return kafka.ask(ApiKey.CREATE_TOPICS, version, topics=topics, validate_only=validate_only)


OVER = ErrorCode.throttling_quota_exceeded


def test_partitions_beyond_the_quota_are_refused_by_version(kafka: Kafka) -> None:
    limit(kafka, Kind.MUTATION, 1e-3)  # a bucket of 0.011 tokens
    answer = create(kafka, 7, "a", "b")
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.none, OVER]
    assert answer.throttle_time.total_seconds() == pytest.approx(10_000, rel=0.1)
    assert is_throttled(kafka)
    for key, version, fields, field in (
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": [{"name": "a", "count": 11}]}, "results"),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["a"]}, "responses"),
        (ApiKey.CREATE_TOPICS, 7, {"topics": [{"name": "c", "num_partitions": 1, "replication_factor": 1}]}, "topics"),
    ):
        kafka.inside.throttling.end_all()
        answer = kafka.ask(key, version, **fields)
        assert [each.error_code for each in getattr(answer, field)] == [OVER]
        assert answer.throttle_time.total_seconds() > 9_000
    kafka.inside.throttling.end_all()
    assert [topic.error_code for topic in create(kafka, 7, "d", validate_only=True).topics] == [ErrorCode.none]


def test_older_clients_are_throttled_instead_of_refused(kafka: Kafka) -> None:
    limit(kafka, Kind.MUTATION, 1e-3)
    answer = create(kafka, 5, "a", "b")
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.none, ErrorCode.none]
    assert answer.throttle_time.total_seconds() == pytest.approx(20_000, rel=0.1)
    assert is_throttled(kafka)


@pytest.mark.parametrize("version", [5, 7])
def test_smallest_quota_has_the_longest_throttle_time(kafka: Kafka, version: int) -> None:
    limit(kafka, Kind.MUTATION, 5e-324)
    answer = create(kafka, version, "a")
    if version == 7:
        assert answer.topics[0].error_code == ErrorCode.none
        kafka.inside.throttling.end_all()
        answer = create(kafka, version, "b")
        assert answer.topics[0].error_code == OVER
    assert answer.throttle_time.total_seconds() * 1000 == 2**31 - 1


def test_auto_created_topics_count_for_the_quota(kafka: Kafka) -> None:
    limit(kafka, Kind.MUTATION, 1e-3)
    answer = kafka.ask(ApiKey.METADATA, 9, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert answer.throttle_time.total_seconds() > 900


def test_a_throttled_client_that_leaves_is_forgotten(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY)
    before = len(kafka.inside.timer)
    for _ in range(3):
        with Beside(kafka) as other:
            other.send(produce_frame(topic))
            assert other.exactly(4)
            wait_for(lambda: len(kafka.inside.throttling) == 1)
            other.send(produce_frame(topic))
    wait_for(lambda: len(kafka.inside.throttling) == 0)
    assert len(kafka.inside.timer) <= before + 64  # handles that were cancelled go when there are many


def test_the_broker_stops_while_clients_are_throttled(kafka: Kafka) -> None:
    topic = kafka.topic()
    limit(kafka, Kind.PRODUCE, TINY)
    kafka.exchange(produce_frame(topic))
    kafka.send(produce_frame(topic))
    assert kafka.broker.server.stop(10.0)


def test_quotas_are_in_force_after_a_restart(tmp_path: Any) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        limit(kafka, Kind.PRODUCE, TINY)
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert throttle_of_produce(kafka.exchange(produce_frame(kafka.topic()))) > 0


def test_metrics_name_throttled_clients_and_quotas(kafka: Kafka) -> None:
    limit(kafka, Kind.PRODUCE, TINY)
    kafka.exchange(produce_frame(kafka.topic()))
    text = render(kafka.broker.server.metrics).decode()
    assert 'broker_quota_throttles_total{quota="producer_byte_rate"} 1.0' in text
    assert "broker_quota_throttled_connections 1.0" in text
