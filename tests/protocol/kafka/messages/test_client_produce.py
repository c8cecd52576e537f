import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import client_produce, produce
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from tests.protocol.kafka.message_strategies import REQUEST, read_by_kio, schema_of

VERSIONS = range(client_produce.MIN_VERSION, client_produce.MAX_VERSION + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)

BATCHES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "topic", "ü" * 60]), st.integers(0, 2**31 - 1)),
    st.binary(min_size=1, max_size=300),
    min_size=1,
    max_size=5,
)


@every_version
@given(BATCHES, st.none() | st.text(max_size=20), st.sampled_from([-1, 0, 1]), st.integers(0, 2**31 - 1))
def test_the_parts_of_a_request_say_what_kafka_s_schema_reads(
    version: int, batches: dict[tuple[str, int], bytes], name: str | None, acks: int, timeout: int
) -> None:
    flat = [(topic, partition, data) for (topic, partition), data in batches.items()]
    parts = client_produce.request_parts(7, "me", version, name, acks, timeout, flat)
    frame = b"".join(parts)
    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    header = parse_request_header(frame)
    assert (ApiKey.PRODUCE, version, 7, "me") == header[:4]
    message = read_by_kio(schema_of(REQUEST, ApiKey.PRODUCE, version), frame[header.body_offset :])
    assert (name, acks, timeout) == (message.transactional_id, message.acks, control.milliseconds(message.timeout))
    read = {(topic.name, one.index): bytes(one.records) for topic in message.topic_data for one in topic.partition_data}
    assert batches == read


def test_batches_go_out_as_they_are() -> None:
    batch = bytearray(b"records")
    parts = client_produce.request_parts(1, None, 9, None, -1, 0, [("t", 0, batch)])
    assert any(part is batch for part in parts)


@pytest.mark.parametrize("version", range(10, 13))
def test_answers_with_the_tags_of_later_versions_are_read(version: int) -> None:
    partition = {
        "index": 3,
        "error_code": 6,
        "base_offset": -1,
        "log_start_offset": 2,
        "current_leader": {"leader_id": 1, "leader_epoch": 2},
    }
    fields = {
        "responses": [{"name": "t", "partition_responses": [partition]}],
        "node_endpoints": [{"node_id": 1, "host": "h", "port": 1, "rack": None}],
    }
    frame = control.encode_response(ApiKey.PRODUCE, version, 9, fields)
    correlation_id, results = produce.parse_response(memoryview(frame), version)
    assert (9, [("t", 3, 6, -1)]) == (correlation_id, [one[:4] for one in results])
