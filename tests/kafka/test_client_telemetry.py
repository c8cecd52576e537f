"""What clients push becomes series, bounded in number and in time."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from broker.errors import RequestError
from broker.kafka import client_telemetry
from broker.kafka.client_telemetry import ClientTelemetry, kafka_text
from broker.kafka.configs.client_metrics import ClientMetricsConfigs
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.entropy import SystemEntropy
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from tests.clocks import ManualClock
from tests.kafka.otlp_writer import gauges, metric, metrics_data, point

FACTS = {"client_id": "app", "client_software_name": "test", "client_software_version": "1"}
FACTS |= {"client_source_address": "::1", "client_source_port": "1"}
INTERVAL_S = 100.0


PUSH_MAX_BYTES = 1 << 20


class World:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.catalogue = SqliteCatalogue(str(path / "catalogue"))
        self.configs = ClientMetricsConfigs(self.catalogue)
        self.configs.load()
        self.subscribe("org.")
        self.telemetry = ClientTelemetry(self.configs, self.clock, SystemEntropy(), PUSH_MAX_BYTES)

    def subscribe(self, metrics: str) -> None:
        changes = {"metrics": metrics, "interval.ms": str(int(INTERVAL_S * 1000))}
        self.configs.alter("one", lambda _own, _in_force: changes)

    def ask(self, instance_id: uuid.UUID | None = None) -> uuid.UUID:
        return self.telemetry.ask(instance_id, FACTS).instance_id

    def push(
        self, instance_id: uuid.UUID | None, data: bytes, codec: int = NONE, subscription: int | None = None
    ) -> None:
        if subscription is None:
            assert instance_id is not None
            subscription = self.telemetry._instances[instance_id].subscription_id
        self.telemetry.push(instance_id, FACTS, subscription, codec, data, terminating=False)

    def refused(
        self, instance_id: uuid.UUID | None, data: bytes, codec: int = NONE, subscription: int | None = None
    ) -> int:
        with pytest.raises(RequestError) as error:
            self.push(instance_id, data, codec, subscription)
        return error.value.code

    def pushed(self, **values: float) -> uuid.UUID:
        """By a new client."""
        instance_id = self.ask()
        self.push(instance_id, gauges(**values))
        return instance_id


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.catalogue.close()


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_pushed_metrics_are_readable_with_any_codec(world: World, codec: int) -> None:
    instance_id = world.ask()
    data = metrics_data(metric("org.x", point(1.5, {"b": "2", "a": "1"}), point(2, {})))
    world.push(instance_id, data if codec == NONE else compress(codec, data), codec)
    name = kafka_text(instance_id)
    assert {(name, "app", "org.x", "a=1,b=2"): 1.5, (name, "app", "org.x", ""): 2.0} == world.telemetry.series()


def test_push_replaces_the_previous_and_drops_unsubscribed_metrics(world: World) -> None:
    instance_id = world.pushed(org__x=1, org__y=2, com__z=3)
    assert {"org.x", "org.y"} == {key[2] for key in world.telemetry.series()}
    world.clock.now += INTERVAL_S
    world.push(instance_id, gauges(org__x=7))
    assert {kafka_text(instance_id): 7.0} == {key[0]: value for key, value in world.telemetry.series().items()}


def test_silent_client_is_forgotten_with_its_series(world: World) -> None:
    world.pushed(org__x=1)
    world.clock.now += 2 * INTERVAL_S
    world.pushed(org__x=2)
    assert [1.0, 2.0] == sorted(world.telemetry.series().values())
    world.clock.now += INTERVAL_S
    assert [2.0] == list(world.telemetry.series().values())
    assert world.telemetry.count() == 1


def test_series_are_bounded_per_client_and_overall(world: World) -> None:
    with mock.patch.multiple(client_telemetry, _SERIES_MAX=2, _ALL_SERIES_MAX=3):
        first = world.pushed(org__a=1, org__b=2, org__c=3)
        assert len(world.telemetry.series()) == 2
        world.pushed(org__a=1, org__b=2)
        assert len(world.telemetry.series()) == 3
        world.clock.now += INTERVAL_S
        world.push(first, b"")
        world.pushed(org__a=1, org__b=2)
        assert len(world.telemetry.series()) == 3
        world.clock.now += 4 * INTERVAL_S
        world.pushed(org__a=1, org__b=2)
        assert len(world.telemetry.series()) == 2


def test_names_are_bounded(world: World) -> None:
    instance_id = world.ask()
    long = metrics_data(metric("org." + "x" * 200, point(1, {})), metric("org.y", point(1, {"a": "b" * 500})))
    world.push(instance_id, long)
    assert {} == world.telemetry.series()


def test_longest_silent_client_gives_way(world: World) -> None:
    with mock.patch.object(client_telemetry, "_INSTANCES_MAX", 2):
        first, second = world.pushed(org__x=1), world.pushed(org__x=2)
        world.clock.now += INTERVAL_S
        world.push(first, gauges(org__x=3))
        third = world.pushed(org__x=4)
    assert {kafka_text(first), kafka_text(third)} == {key[0] for key in world.telemetry.series()}
    assert second not in world.telemetry._instances


def test_changed_subscription_is_fetched_at_once_keeping_series(world: World) -> None:
    instance_id = world.pushed(org__x=1)
    before = world.telemetry._instances[instance_id].subscription_id
    world.subscribe("com.")
    assert world.refused(instance_id, gauges(org__x=2), subscription=before) == ErrorCode.unknown_subscription_id
    assert instance_id == world.ask(instance_id)
    assert [1.0] == list(world.telemetry.series().values())
    world.clock.now += INTERVAL_S
    world.push(instance_id, gauges(com__y=3))
    assert [3.0] == list(world.telemetry.series().values())


@pytest.mark.parametrize("reserved", [None, uuid.UUID(int=0), uuid.UUID(int=1)])
def test_push_needs_the_assigned_client_id(world: World, reserved: uuid.UUID | None) -> None:
    assert world.refused(reserved, b"", subscription=0) == ErrorCode.invalid_request


def test_refused_pushes_keep_the_previous_metrics(world: World) -> None:
    instance_id = world.pushed(org__x=1)
    for data, codec, code in [
        (b"x" * (PUSH_MAX_BYTES + 1), NONE, ErrorCode.telemetry_too_large),
        (compress(ZSTD, bytes(PUSH_MAX_BYTES + 1)), ZSTD, ErrorCode.telemetry_too_large),
        (compress(GZIP, bytes(50 * PUSH_MAX_BYTES)), GZIP, ErrorCode.telemetry_too_large),
        (b"garbage", LZ4, ErrorCode.invalid_record),
        (b"\xff", NONE, ErrorCode.invalid_record),
        (b"", 5, ErrorCode.unsupported_compression_type),
    ]:
        world.clock.now += INTERVAL_S
        assert world.refused(instance_id, data, codec) == code
    assert world.refused(instance_id, gauges(org__x=2)) == ErrorCode.throttling_quota_exceeded
    assert [1.0] == list(world.telemetry.series().values())
    world.clock.now += INTERVAL_S
    world.push(instance_id, gauges(org__x=2))
    assert [2.0] == list(world.telemetry.series().values())
