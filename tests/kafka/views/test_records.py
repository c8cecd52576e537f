"""The message browser: records from an offset, a time or the end on, of one partition and of all."""

import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.kafka.views import record_reader
from broker.kafka.views.record_reader import Budget, RecordReader, Wanted
from broker.network.work import Work
from protocol.kafka.records.batch import HEADER_SIZE, read_header, recoded
from protocol.kafka.records.records import build_batch
from tests.http.api.harness import Api, api_broker, differences, documented


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker() as made:
        yield made


def topic(api: Api, name: str, partitions: int = 1, **configs: str) -> str:
    api.kafka.logs.create_topic(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
    return name


def append(api: Api, name: str, batch: bytearray, partition: int = 0) -> None:
    log = api.kafka.logs.get(name, partition)
    assert log is not None
    log.append(batch, now_ms=1)


def texts(answer: Any) -> list[str]:
    return [each["value"]["text"] for each in answer["records"]]


def walked(api: Api, path: str) -> list[tuple[int, int]]:
    """Partition and offset of all records of all pages."""
    found, following = [], ""
    for _ in range(1000):
        answer = api.get(path + following)
        found += [(each["partition"], each["offset"]) for each in answer["records"]]
        if answer["next"] is None:
            return found
        following = f"&positions={answer['next']['positions']}"
    raise AssertionError("there is no end")


def test_records_are_shown_with_everything_about_them(api: Api) -> None:
    topic(api, "plain")
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers})
    producer.produce("plain", b'{"n": 1}', b"key", headers=[("trace", b"abc")], timestamp=1_700_000_000_000)
    producer.flush(30)
    answer = api.get("/topics/plain/records?partition=0&offset=0")
    assert [] == differences(documented("/api/v1/topics/orders/records?partition=0&offset=4998&limit=1"), answer)
    (record,) = answer["records"]
    assert {"text": '{"n": 1}', "json": True} == record["value"]
    assert {"text": "key"} == record["key"]
    assert [{"key": "trace", "value": {"text": "abc"}}] == record["headers"]
    assert (0, 0, 1_700_000_000_000, "create") == tuple(
        record[key] for key in ("partition", "offset", "timestamp", "timestamp_type")
    )
    assert len(b'{"n": 1}key' + b"traceabc") == record["size"]
    assert None is answer["next"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_shown(api: Api, codec: str) -> None:
    topic(api, codec)
    producer = Producer(
        {"bootstrap.servers": api.broker.bootstrap_servers, "compression.type": codec, "linger.ms": 200}
    )
    for number in range(20):
        producer.produce(codec, b"value " * 20 + str(number).encode())
    producer.flush(30)
    answer = api.get(f"/topics/{codec}/records?offset=15&partition=0")
    assert [b"value " * 20 + str(number).encode() for number in range(15, 20)] == [
        text.encode() for text in texts(answer)
    ]
    assert {codec} == {each["compression"] for each in answer["records"]}


def test_pages_go_on_where_the_last_one_ended(api: Api) -> None:
    topic(api, "pages")
    api.produce("pages", *[str(number).encode() for number in range(25)])
    found: list[str] = []
    path = "/topics/pages/records?partition=0&limit=10"
    while True:
        answer = api.get(path)
        found += texts(answer)
        if answer["next"] is None:
            break
        path = f"/topics/pages/records?partition=0&limit=10&offset={answer['next']['offset']}"
    assert [str(number) for number in range(25)] == found


def test_the_last_records(api: Api) -> None:
    topic(api, "last")
    api.produce("last", *[str(number).encode() for number in range(25)])
    assert ["22", "23", "24"] == texts(api.get("/topics/last/records?last=3"))
    assert 25 == len(texts(api.get("/topics/last/records?last=1000")))


def test_large_last_records_are_the_last(api: Api) -> None:
    topic(api, "large")
    for number in range(30):
        append(api, "large", build_batch([(None, str(number).encode() * 300_000, [], 1)]))
    answer = api.get("/topics/large/records?last=200&partition=0")
    offsets = [each["offset"] for each in answer["records"]]
    assert offsets == list(range(30 - len(offsets), 30))
    assert 10 < len(offsets)
    assert all(each["value"]["truncated"] for each in answer["records"])


def test_records_from_a_time_on(api: Api) -> None:
    topic(api, "times", 2)
    for number in range(10):
        append(api, "times", build_batch([(None, str(number).encode(), [], 1000 * number)]), number % 2)
    assert ["6", "7", "8", "9"] == texts(api.get("/topics/times/records?time=5500"))
    assert [] == texts(api.get("/topics/times/records?time=99999"))


def test_all_partitions_are_merged_by_time(api: Api) -> None:
    topic(api, "merged", 3)
    for number in range(30):
        append(api, "merged", build_batch([(None, str(number).encode(), [], 1000 * number)]), number % 3)
    assert ["27", "28", "29"] == texts(api.get("/topics/merged/records?last=3"))
    answer = api.get("/topics/merged/records?limit=4")
    assert ["0", "1", "2", "3"] == texts(answer)
    assert {"partition": 0, "offset": 2, "positions": "0:2,1:1,2:1"} == answer["next"]
    found = walked(api, "/topics/merged/records?limit=4")
    assert [(number % 3, number // 3) for number in range(30)] == found


def test_every_record_comes_whatever_the_times_are(api: Api) -> None:
    topic(api, "mixed", 4)
    chance = random.Random(7)
    for _ in range(80):
        times = [chance.randrange(1000) for _ in range(3)]
        append(api, "mixed", build_batch([(None, b"x", [], at) for at in times]), chance.randrange(4))
    found = walked(api, "/topics/mixed/records?limit=7")
    assert 240 == len(set(found))


def test_records_with_a_key(api: Api) -> None:
    topic(api, "keys")
    for number in range(100):
        append(api, "keys", build_batch([(f"k{number % 10}".encode(), str(number).encode(), [], 1)]))
    assert [str(number) for number in range(3, 100, 10)] == texts(api.get("/topics/keys/records?key=k3"))
    assert ["83", "93"] == texts(api.get("/topics/keys/records?key=k3&last=2"))
    assert [] == texts(api.get("/topics/keys/records?key=nothing"))


def test_records_before_an_offset(api: Api) -> None:
    topic(api, "before")
    api.produce("before", *[str(number).encode() for number in range(10)])
    answer = api.get("/topics/before/records?offset=2&before=5&partition=0")
    assert (["2", "3", "4"], None) == (texts(answer), answer["next"])
    assert ["3", "4"] == texts(api.get("/topics/before/records?last=2&before=5&partition=0"))


def test_transactions_are_marked_and_may_be_left_out(api: Api) -> None:
    topic(api, "transactional")
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("transactional", b"aborted")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce("transactional", b"committed")
    producer.commit_transaction(30)
    api.produce("transactional", b"beside")
    producer.begin_transaction()
    producer.produce("transactional", b"open")
    producer.flush(30)
    answer = api.get("/topics/transactional/records?partition=0&offset=0")
    found = [
        ((each["value"] or {}).get("text"), each["transactional"], each["transaction"], each["marker"])
        for each in answer["records"]
    ]
    assert [
        ("aborted", True, "aborted", None),
        (None, True, None, "abort"),
        ("committed", True, "committed", None),
        (None, True, None, "commit"),
        ("beside", False, None, None),
        ("open", True, "open", None),
    ] == found
    committed = api.get("/topics/transactional/records?partition=0&offset=0&committed=true")
    assert (["committed", "beside"], None) == (texts(committed), committed["next"])
    producer.abort_transaction(30)


def bomb(size: int, records: int = 1) -> bytearray:
    """A batch of gzip that is large inside."""
    inside = build_batch([(None, b"\0" * (size // records), [], 1)] * records)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(bytes(inside[HEADER_SIZE:])) + packer.flush()
    return recoded(inside, 0, read_header(inside), 1, packed)


def test_batch_too_large_inside_is_not_opened(api: Api) -> None:
    topic(api, "bomb")
    append(api, "bomb", bomb(200 << 20))
    api.produce("bomb", b"after")
    bad, good = api.get("/topics/bomb/records?partition=0&offset=0")["records"]
    assert (0, None) == (bad["offset"], bad["value"])
    assert "cannot be shown" in bad["unreadable"]
    assert ("after", None) == (good["value"]["text"], good["unreadable"])


def test_large_batch_reader_and_producers_run_independently(api: Api) -> None:
    topic(api, "large-inside")
    append(api, "large-inside", build_batch([(None, b"x" * 100, [], 1)] * 20_000, compression=1))
    log = api.kafka.logs.get("large-inside", 0)
    assert log is not None
    path = "/topics/large-inside/records?partition=0&offset=19990"
    with log.around.large:
        assert list(range(19_990, 20_000)) == [each["offset"] for each in api.get(path)["records"]]
    with log.around.large_shown:
        assert (0, 1) == log.times.offset_for_timestamp(1)


def test_answer_opens_a_bounded_number_of_large_batches(api: Api) -> None:
    topic(api, "bombs")
    batch = bomb(30 << 20)
    for _ in range(10):
        append(api, "bombs", bytearray(batch))
    answer = api.get("/topics/bombs/records?partition=0&offset=0")
    assert 1 <= len(answer["records"]) <= 3
    assert [(0, number) for number in range(10)] == walked(api, "/topics/bombs/records?limit=50")


def test_a_reading_always_gets_further(api: Api) -> None:
    """Also where one record is more than the reading may look at."""
    topic(api, "far")
    for _ in range(3):
        append(api, "far", bomb(8 << 20, records=8))
    log = api.kafka.logs.get("far", 0)
    assert log is not None
    offset = 0
    for _ in range(24):
        found = RecordReader(log, Wanted(10), Budget(1, 1, 1, 1), Work(lambda: False)).read(offset)
        assert offset < found.next_offset
        assert [offset] == [each["offset"] for each in found.records]
        offset = found.next_offset
    assert 24 == offset


def test_garbage_batch_is_shown_as_one_record(api: Api) -> None:
    topic(api, "garbage")
    good = build_batch([(None, b"x", [], 1)] * 3)
    append(api, "garbage", recoded(good, 0, read_header(good), 1, b"\x1f\x8b\x08 and no gzip"))
    (record,) = api.get("/topics/garbage/records?partition=0")["records"]
    assert "3 records that cannot be shown" in record["unreadable"]
    assert [] == api.get("/topics/garbage/records?partition=0&key=x")["records"]


@pytest.mark.parametrize(
    "query",
    [
        "partition=1",
        "partition=-1",
        "offset=x",
        "limit=0",
        "limit=1001",
        "last=0",
        "time=x",
        "positions=x",
        "positions=0",
        "positions=7:1",
        "positions=0:1,",
        "committed=perhaps",
        "before=x",
    ],
)
def test_what_cannot_be_meant_is_refused(api: Api, query: str) -> None:
    if api.kafka.logs.topic("one") is None:
        topic(api, "one")
    assert 400 == api.ask(f"/api/v1/topics/one/records?{query}")[0]


def test_wide_topic_needs_a_partition(api: Api) -> None:
    topic(api, "wide", 101)
    assert 400 == api.ask("/api/v1/topics/wide/records")[0]
    assert [] == api.get("/topics/wide/records?partition=100")["records"]


def test_an_offline_partition_is_not_served(api: Api) -> None:
    topic(api, "offline")
    api.kafka.logs.partitions["offline", 0].state.go_offline("the disk has failed")
    status, answer = api.ask("/api/v1/topics/offline/records")
    assert (503, True) == (status, "the disk has failed" in answer["reason"])


def test_deleted_offsets_begin_at_the_log_start(api: Api) -> None:
    topic(api, "trimmed")
    api.produce("trimmed", *[str(number).encode() for number in range(10)])
    log = api.kafka.logs.get("trimmed", 0)
    assert log is not None
    log.trimming.delete_records(7)
    assert ["7", "8", "9"] == texts(api.get("/topics/trimmed/records?partition=0&offset=0"))
    assert [] == texts(api.get("/topics/trimmed/records?partition=0&offset=99"))


def test_unreadably_large_batch_is_shown_as_one_record(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    topic(api, "heavy", max_message_bytes="10000000")
    append(api, "heavy", build_batch([(None, b"x" * 2_000_000, [], 1)]))
    api.produce("heavy", b"after")
    monkeypatch.setattr(record_reader, "_BATCH_MAX_BYTES", 1_500_000)
    heavy, after = api.get("/topics/heavy/records?partition=0")["records"]
    assert "cannot be shown" in heavy["unreadable"]
    assert "after" == after["value"]["text"]
