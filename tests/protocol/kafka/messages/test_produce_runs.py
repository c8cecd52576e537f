from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import produce
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.produce import FIRST_IN_RUNS, MAX_VERSION, PartitionResult, Run, Templates
from protocol.kafka.schema import control

VERSIONS = st.integers(FIRST_IN_RUNS, MAX_VERSION)
# Around the limits of what one, two and three bytes of a length can say.
RECORDS = st.sampled_from([1, 60, 126, 127, 128, 129, 16382, 16383, 16384, 20000]).map(lambda size: b"r" * size)
TOPICS = st.text("abc._-", min_size=1, max_size=12) | st.just("t" * 127) | st.just("t" * 126)
MOST = 1 << 30


def request(
    version: int,
    records: bytes | None,
    topic: str = "topic",
    correlation_id: int = 1,
    client: str | None = "client",
    **fields: Any,
) -> bytes:
    data = [{"index": fields.pop("partition", 0), "records": records}]
    topics = [{"name": topic, "topic_id": uuid5(NAMESPACE_URL, topic), "partition_data": data}]
    fields = {"acks": 1, "timeout": 30_000, "topic_data": topics} | fields
    return control.encode_request(ApiKey.PRODUCE, version, correlation_id, client, fields)


def learned(*frames: bytes) -> Templates:
    templates = Templates()
    for frame in frames:
        assert templates.learn(memoryview(frame))
    assert len(templates) == len(frames)
    return templates


def alone(frame: bytes) -> tuple[Any, ...]:
    """What the usual way makes of one request."""
    view = memoryview(frame)
    _, version, correlation_id, _, body = parse_request_header(view)
    parsed = produce.parse_request(view, version, body)
    assert parsed.transactional_id is None
    ((topic, partition, records),) = parsed.topics
    assert records is not None
    return correlation_id, version, parsed.acks, parsed.timeout_ms, topic, partition, bytes(records)


def parsed(run: Run | None) -> list[tuple[Any, ...]]:
    """The same of those that were followed."""
    if run is None:
        return []
    assert run.is_uniform == (len(set(map(id, run.templates))) == 1)
    return [
        (correlation_id, t.version, t.acks, t.timeout_ms, t.topic, t.partition, bytes(records))
        for t, correlation_id, records in zip(run.templates, run.correlation_ids, run.records, strict=True)
    ]


def together(frames: bytes, templates: Templates, most: int = 100) -> list[tuple[Any, ...]]:
    run = templates.follow(memoryview(frames), most, MOST)
    assert run is None or run.end <= len(frames)
    return parsed(run)


@given(VERSIONS, st.lists(RECORDS, min_size=1, max_size=6), TOPICS, st.sampled_from([1, -1]), st.booleans())
def test_requests_of_one_partition_are_followed_as_parsed(
    version: int, batches: list[bytes], topic: str, acks: int, cut: bool
) -> None:
    frames = [request(version, batch, topic, n, acks=acks) for n, batch in enumerate(batches)]
    if 9 <= version < 13 and len(topic) > 126:
        assert not Templates().learn(memoryview(frames[0]))
        return
    data = b"".join(frames)[: -1 if cut else None]
    assert [alone(frame) for frame in frames][: len(frames) - cut] == together(data, learned(frames[0]))


@given(VERSIONS, st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_requests_of_several_partitions_are_followed_in_order(version: int, partitions: list[int]) -> None:
    templates = learned(*(request(version, b"first", partition=number) for number in range(3)))
    frames = [request(version, b"x" * n, correlation_id=n, partition=p) for n, p in enumerate(partitions, 1)]
    assert [alone(frame) for frame in frames] == together(b"".join(frames), templates)


@given(VERSIONS, st.lists(st.sampled_from(["a", "topic", "another-topic", "t" * 126]), min_size=1, max_size=8))
def test_long_and_short_topic_names_are_followed_together(version: int, topics: list[str]) -> None:
    templates = learned(*(request(version, b"first", topic) for topic in dict.fromkeys(topics)))
    frames = [request(version, b"x" * n, topic, n) for n, topic in enumerate(topics, 1)]
    assert [alone(frame) for frame in frames] == together(b"".join(frames), templates)


@given(VERSIONS, VERSIONS, st.sampled_from(["client", "another-client", None]))
def test_client_with_new_version_or_id_is_followed(version: int, other: int, client: str | None) -> None:
    templates = learned(request(version, b"first"))
    frame = request(other, b"records", client=client)
    assert templates.learn(memoryview(frame))
    assert [alone(frame)] * 2 == together(frame * 2, templates)


@pytest.mark.parametrize("version", range(FIRST_IN_RUNS, MAX_VERSION + 1))
def test_run_ends_before_a_different_request(version: int) -> None:
    template = learned(request(version, b"records"))
    others = [
        request(version, b"records", acks=-1),
        request(version, b"records", "other"),
        request(version, b"records", partition=1),
        request(version, b"records", client="other"),
        request(version, b"records", transactional_id="id"),
        request(version, None),
        request(version, b""),
        control.encode_request(
            ApiKey.HEARTBEAT, 0, 1, "client", {"group_id": "g", "generation_id": 1, "member_id": "m"}
        ),
    ]
    if version not in (7, 13):
        same_bytes = request(version - 1 if version not in (9,) else version + 1, b"records")
        others.append(same_bytes)
    for other in others:
        assert 1 == len(together(request(version, b"records") + other, template)), other
        assert 0 == len(together(other, template)), other


def test_run_has_one_version_acks_and_timeout() -> None:
    known = learned(
        request(7, b"r"),
        request(8, b"r", partition=1),
        request(7, b"r", partition=2, acks=-1),
        request(7, b"r", partition=3, timeout=1),
    )
    first = request(7, b"r")
    assert 2 == len(together(first * 2 + request(8, b"r", partition=1), known))
    assert 2 == len(together(first * 2 + request(7, b"r", partition=1), known))  # as a template says, it is one of 8
    assert 2 == len(together(first * 2 + request(7, b"r", partition=2, acks=-1), known))
    assert 2 == len(together(first * 2 + request(7, b"r", partition=3, timeout=1), known))


@pytest.mark.parametrize("version", [7, 9, 12, 13])
def test_a_run_has_one_client_id(version: int) -> None:
    templates = learned(request(version, b"first"))
    frame, other = request(version, b"records"), request(version, b"records", client="tneilc")
    assert templates.learn(memoryview(other))
    assert [alone(other)] == together(other + frame, templates)
    assert templates.learn(memoryview(frame))
    assert [alone(frame)] == together(frame + other, templates)


@pytest.mark.parametrize("version", [7, 9, 13])
def test_request_with_long_name_has_no_template(version: int) -> None:
    assert learned(request(version, b"records", client="c" * 249))
    assert not Templates().learn(memoryview(request(version, b"records", client="c" * 1000)))


def test_a_run_is_bounded() -> None:
    frame = request(7, b"records")
    templates = learned(frame)
    assert 3 == len(together(frame * 5, templates, most=3))
    run = templates.follow(memoryview(frame * 5), 100, 2 * len(frame) + 7)
    assert run is not None
    assert (2, 2 * len(frame)) == (len(run.records), run.end)


@given(VERSIONS, st.data())
def test_whatever_is_followed_is_parsed_alike(version: int, draw: st.DataObject) -> None:
    """With any bytes changed: what is followed must be what the usual way would make of it."""
    frame = request(version, b"records")
    templates = learned(frame)
    data = bytearray(frame * 2)
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    run = templates.follow(memoryview(data), 100, MOST)
    position = 0
    for one in parsed(run):
        size = 4 + int.from_bytes(data[position : position + 4], "big")
        assert alone(bytes(data[position : position + size])) == one
        position += size
    assert position == (0 if run is None else run.end)


@given(VERSIONS, st.binary(max_size=80))
def test_request_with_trailing_bytes_has_no_template(version: int, after: bytes) -> None:
    frame = bytearray(request(version, b"records") + after)
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    assert Templates().learn(memoryview(bytes(frame))) is not bool(after)


@given(st.binary(max_size=100))
def test_any_bytes_are_no_template_and_no_error(data: bytes) -> None:
    try:
        parse_request_header(data)
    except ProtocolError:
        assert not Templates().learn(memoryview(data))
    else:
        Templates().learn(memoryview(data))


INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)


@given(VERSIONS, st.lists(st.tuples(INT32, INT64), min_size=1, max_size=4), INT64, TOPICS, st.integers(0, 1))
def test_answers_are_the_responses_of_the_usual_way(
    version: int, numbers: list[tuple[int, int]], start_offset: int, topic: str, failed: int
) -> None:
    templates = Templates()
    frame = memoryview(request(version, b"records", topic, partition=3))
    if not templates.learn(frame):
        return
    run = templates.follow(frame, 1, MOST)
    assert run is not None
    template = run.templates[0]
    stored = numbers[: len(numbers) - failed]
    expected = [
        produce.response(
            correlation_id,
            version,
            [PartitionResult(template.topic, 3, 0, base_offset, -1, start_offset, None)],
            0,
        )
        for correlation_id, base_offset in stored
    ]
    assert expected == template.answers([one for one, _ in numbers], [base for _, base in stored], start_offset)


def test_what_would_take_much_memory_has_no_template() -> None:
    assert Templates().learn(memoryview(request(8, b"records", "t" * 249, client="c" * 100)))
    assert not Templates().learn(memoryview(request(8, b"records", "t" * 10_000)))
    assert not Templates().learn(memoryview(request(9, b"records", client="c" * 10_000)))


def test_templates_of_a_client_share_response_packers() -> None:
    run = learned(*(request(8, b"r", partition=n) for n in range(64))).follow(
        memoryview(b"".join(request(8, b"r", partition=n) for n in range(64))), 64, MOST
    )
    assert run is not None
    frames = [template.answers([1], [2], 3)[0] for template in run.templates]
    assert frames == [produce.response(1, 8, [PartitionResult("topic", n, 0, 2, -1, 3, None)], 0) for n in range(64)]
    assert 1 == len({id(template._answer[0]) for template in run.templates if template._answer is not None})
