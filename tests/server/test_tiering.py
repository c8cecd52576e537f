"""A broker with an object store, and a real client: what was written is read, wherever it is by then."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.config import BrokerConfig
from broker.errors import ConfigError
from broker.runtime import objects
from broker.server.broker_server import BrokerServer
from broker.storage.log.log import Log
from broker.storage.tier.tier import Tier
from tests.storage.tier.helpers import Store
from tests.waiting import DEADLINE_S, wait_for

SEGMENT = 16 * 1024


class World:
    """The broker, which can be started again with other settings."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.server: BrokerServer
        self.start()

    def start(self, **settings: Any) -> None:
        settings = {
            "objects": self.url,
            "log_segment_bytes": SEGMENT,
            "log_local_retention_bytes": 2 * SEGMENT,
            "log_retention_bytes": 10**12,
            "log_flush_offset_checkpoint_interval_ms": 50,
            "remote_log_manager_task_interval_ms": 50,
            "log_retention_check_interval_ms": 50,
            "log_segment_delete_delay_ms": 0,
        } | settings
        config = BrokerConfig(listeners=("kafka://127.0.0.1:0",), data_dir=f"{self.directory}/data", **settings)
        self.server = BrokerServer(config)
        self.server.start()

    def restart(self, **settings: Any) -> None:
        assert self.server.stop()
        self.start(**settings)

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.server.listeners["kafka"], "log_level": 0}

    @property
    def admin(self) -> AdminClient:
        return AdminClient(self.client)

    def log(self, topic: str = "t") -> Log:
        log = self.server.kafka.logs.get(topic, 0)
        assert log is not None
        return log

    @property
    def tier(self) -> Tier:
        tier = self.log().around.tier
        assert isinstance(tier, Tier)
        return tier

    def create(self, topic: str = "t", **configs: str) -> None:
        config = {name.replace("_", "."): value for name, value in configs.items()}
        admin = self.admin
        for future in admin.create_topics([NewTopic(topic, 1, config=config)]).values():
            future.result(DEADLINE_S)

    def produce(self, values: list[bytes], topic: str = "t", partition: int = 0) -> None:
        producer = Producer({**self.client, "batch.num.messages": 10, "linger.ms": 5, "acks": "all"})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def consume(self, count: int, topic: str = "t", offset: int = 0, **options: Any) -> list[bytes]:
        consumer = Consumer({**self.client, "group.id": "g", "enable.auto.commit": False, **options})
        try:
            consumer.assign([TopicPartition(topic, 0, offset)])
            found: list[bytes] = []
            wait_for(lambda: found.extend(_values(consumer)) or len(found) >= count, "records are missing")  # type: ignore[func-returns-value]
            return found
        finally:
            consumer.close()

    def settle(self, topic: str = "t") -> None:
        """Wait until closed segments are uploaded and evicted."""
        log = self.log(topic)
        wait_for(lambda: log.local_bytes() <= 3 * SEGMENT < log.size_bytes())


def _values(consumer: Consumer) -> list[bytes]:
    messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
    return [message.value() for message in messages]


@pytest.fixture(params=["file", "store"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    url = f"file://{tmp_path}/objects"
    if request.param == "store":
        _with_store(monkeypatch)
    world = World(tmp_path, url)
    yield world
    world.server.stop()


def _with_store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Have the broker use this store, again and again."""
    from broker.runtime import open_objects

    store = Store()
    monkeypatch.setattr(open_objects, "open_objects", lambda url: store)
    return store


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, Store]]:
    store = _with_store(monkeypatch)
    world = World(tmp_path, "file:///of-no-use")
    yield world, store
    world.server.stop()


VALUES = [b"%06d" % number * 20 for number in range(5000)]


def test_the_place_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A copy of the catalogue of either would take the place of the other's."""
    first = World(tmp_path / "first", f"file://{tmp_path}/objects")
    try:
        first.restart()
        with pytest.raises(ConfigError, match="Set objects to a place of its own"):
            World(tmp_path / "second", f"file://{tmp_path}/objects")
    finally:
        first.server.stop()


def test_consumer_reads_from_beginning_what_is_in_store(world: World) -> None:
    world.create()
    world.produce(VALUES)
    world.settle()
    assert world.log().log_start_offset == 0 < world.tier.earliest_local(world.log())
    assert VALUES == world.consume(len(VALUES))
    assert world.tier.cache.counts.requests
    world.restart()
    assert world.tier.cache.counts.requests == 0
    assert VALUES == world.consume(len(VALUES))


def test_cache_that_is_smaller_than_data(tmp_path: Path) -> None:
    world = World(tmp_path, f"file://{tmp_path}/objects")
    try:
        world.restart(remote_cache_bytes=1024 * 1024, log_segment_bytes=512 * 1024)
        world.create()
        values = [b"%06d" % number * 1000 for number in range(1000)]
        world.produce(values)
        log = world.log()
        wait_for(lambda: log.local_bytes() < 1_100_000 < 5_000_000 < log.size_bytes())
        for size in (1024 * 1024, 50_000_000):
            assert values == world.consume(len(values), **{"max.partition.fetch.bytes": size})
        cache = tmp_path / "data" / ".remote-cache"

        def cached() -> int:
            total = 0
            for path in cache.iterdir():
                with suppress(FileNotFoundError):  # evicted meanwhile
                    total += path.stat().st_size
            return total

        wait_for(lambda: cached() <= 1024 * 1024)
    finally:
        world.server.stop()


def test_committed_reads_and_several_partitions_in_one_fetch(world: World) -> None:
    for topic in ("t", "other"):
        world.create(topic)
        world.produce(VALUES[:2500], topic)
        world.settle(topic)
    consumer = Consumer({**world.client, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("t", 0, 0), TopicPartition("other", 0, 0)])
    found: dict[str, list[bytes]] = {"t": [], "other": []}

    def poll() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found[message.topic()].append(message.value())
        return all(len(values) >= 2500 for values in found.values())

    try:
        wait_for(poll)
    finally:
        consumer.close()
    assert found == {"t": VALUES[:2500], "other": VALUES[:2500]}


def test_slow_store_keeps_no_handler_from_others(slow: tuple[World, Store]) -> None:
    """The store answers nothing, and more consumers than there are handlers read from it."""
    world, store = slow
    for topic in ("t", "other"):
        world.create(topic)
    world.produce(VALUES)
    world.settle()
    go = threading.Event()

    def hang(operation: str, key: str) -> None:
        go.wait(DEADLINE_S)

    store.before = hang
    found: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: found.append(world.consume(len(VALUES))))
        for _ in range(world.server.config.io_threads + 4)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: store.gets)
    world.produce([b"new"], "other")
    assert [b"new"] == world.consume(1, "other")
    assert [] == found
    world.create("made-meanwhile")
    go.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [VALUES] * len(threads) == found


def test_records_before_those_that_are_lost_can_be_read(slow: tuple[World, Store]) -> None:
    world, store = slow
    world.create()
    world.produce(VALUES)
    world.settle()
    lost = world.log().view.segments[3]
    (key,) = {file.object for file in world.tier.disk.remote_files() if file.path == f"t-0/{lost.base_offset:020d}.log"}
    store.delete([key])
    assert VALUES[: lost.base_offset] == world.consume(lost.base_offset)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_object_is_an_error_of_its_partition(
    slow: tuple[World, Store], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world, store = slow
    for topic in ("t", "other"):
        world.create(topic)
        world.produce(VALUES, topic)
        world.settle(topic)
    key = next(file.object for file in world.tier.disk.remote_files() if file.path == f"t-0/{0:020d}.log")
    data = objects.MemoryObjects.get(store, key, 0, store.size(key))
    if damage == "cut":
        store.cut(key, 100)
    else:
        store.delete([key])
    consumer = Consumer({**world.client, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0), TopicPartition("other", 0, 0)])
    found: list[bytes] = []

    def poll() -> bool:
        found.extend(
            message.value()
            for message in consumer.consume(500, 0.1)
            if not message.error() and message.topic() == "other"
        )
        return len(found) >= len(VALUES)

    try:
        wait_for(poll)
    finally:
        consumer.close()
    assert VALUES == found
    assert world.log().offline is None
    store.put(key, [data], len(data))
    assert VALUES == world.consume(len(VALUES))
    assert key in capsys.readouterr().err


def test_offsets_of_tiers(world: World) -> None:
    world.create()
    world.produce(VALUES)
    world.settle()
    log, partition = world.log(), TopicPartition("t", 0)

    admin = world.admin

    def offset(spec: OffsetSpec) -> int:
        return admin.list_offsets({partition: spec})[partition].result(DEADLINE_S).offset  # type: ignore[no-any-return]

    assert (0, len(VALUES)) == (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest()))
    wait_for(lambda: log.view.bases[-1] - 1 == world.tier.latest_tiered(log))  # the last one may still be on its way
    at = log.times.timestamp_at(100)
    by_time = log.times.offset_for_timestamp(at)
    assert by_time is not None
    assert (0, by_time[0]) == (offset(OffsetSpec.for_timestamp(1)), offset(OffsetSpec.for_timestamp(at)))


def test_retention_and_deletion_reach_store(world: World) -> None:
    world.restart(remote_object_delete_delay_ms=0)
    world.create()
    world.produce(VALUES)
    world.settle()
    admin = world.admin
    admin.delete_records([TopicPartition("t", 0, 2000)])
    log = world.log()
    wait_for(lambda: log.log_start_offset == 2000)
    assert VALUES[2000:] == world.consume(3000, offset=2000)
    consumer = Consumer({**world.client, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("t", 0, 0)])
    errors: list[int] = []

    def refused() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            errors.append(message.error().code())
        return bool(errors)

    wait_for(refused)
    consumer.close()
    assert errors[0] in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
    tier = world.tier
    for future in admin.delete_topics(["t"]).values():
        future.result(DEADLINE_S)
    wait_for(lambda: not tier.disk.remote_files() and not list(tier.objects.list("segments")))


def test_broker_without_its_store_does_not_start(tmp_path: Path) -> None:
    world = World(tmp_path, f"file://{tmp_path}/objects")
    world.create()
    world.produce(VALUES)
    world.settle()
    assert world.server.stop()
    with pytest.raises(ConfigError, match=r"Set objects to the object store of .*t-0/\d+\.\w+ and perhaps others"):
        world.start(objects=None)
    world.start()
    assert VALUES == world.consume(len(VALUES))
    world.server.stop()


def test_broker_that_has_everything_may_give_up_its_store(tmp_path: Path) -> None:
    """The objects stay: this may be a copy of another broker's directory."""
    world = World(tmp_path, f"file://{tmp_path}/objects")
    world.restart(log_local_retention_bytes=-2)
    world.create()
    world.produce(VALUES)
    tier, log = world.tier, world.log()
    wait_for(lambda: tier.latest_tiered(log) == log.view.bases[-1] - 1)
    world.restart(objects=None)
    assert VALUES == world.consume(len(VALUES))
    assert list(tier.objects.list("segments"))
    assert [] == list(world.server.kafka.logs.catalogue.load_remote_files())
    world.server.stop()


def test_store_that_cannot_be_used_is_refused_at_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _with_store(monkeypatch)
    store.down = True
    with pytest.raises(ConfigError, match="it is down"):
        World(tmp_path, "file:///of-no-use")
    store.down = False
    world = World(tmp_path, "file:///of-no-use")
    world.create()
    world.produce(VALUES)
    world.settle()
    store.down = True
    world.restart()
    assert VALUES[-10:] == world.consume(10, offset=len(VALUES) - 10)
    world.server.stop()


def test_without_objects_nothing_is_wrapped(tmp_path: Path) -> None:
    server = BrokerServer(BrokerConfig(listeners=("kafka://127.0.0.1:0",), data_dir=f"{tmp_path}/data"))
    server.start()
    try:
        assert server.kafka.logs.disk is server.runtime.disk
        assert server.kafka.logs.around.tier is None
        assert not server.kafka.logs.config.defaults.remote_storage_enable
    finally:
        server.stop()
