"""The database or the object store is away, slow, or lies: clients wait, nothing that was acknowledged is lost or doubled, and
everything goes on when it is back. What is damaged for good is named."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches
from tests.durable.bad_store import Act, BadStore, delay, lie_with, reset, status
from tests.durable.durable_broker import DurableBroker, wait_until
from tests.durable.engines import absence, health
from tests.durable.mixed_load import MixedLoad
from tests.durable.postgres import PostgresServer
from tests.durable.s3_server import BUCKET, S3Server, fresh_prefix
from tests.kafka_connection import KafkaConnection, fetch_fields
from tests.process.broker_process import PATIENCE_S

MIB = 1024 * 1024
SETTINGS = (
    "log_segment_bytes=1000000",
    "remote_log_manager_task_interval_ms=500",
    "log_local_retention_ms=500",
    "log_flush_offset_checkpoint_interval_ms=500",  # segments are uploaded after it
)
SEED = 1  # of nothing that these parts do
SMALL, LARGE = "crowd-0", "crowd-1"
pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tmp_path: Path, postgres: PostgresServer) -> Iterator[DurableBroker]:
    with DurableBroker(tmp_path, postgres, *SETTINGS, schemes=("kafka", "http"), standbys=0) as broker:
        yield broker


def load_of(broker: DurableBroker) -> MixedLoad:
    """Small records for rows of the journal, and large ones for objects."""
    return MixedLoad(broker, SEED, (SMALL, LARGE), (100, 300_000))


@pytest.mark.parametrize("away_s", [1, 15])
def test_a_killed_database_loses_nothing(broker: DurableBroker, postgres: PostgresServer, away_s: int) -> None:
    """1 s: within the lease, with time for a slow start. 15 s: the broker is suspended, and leads again with the same epoch."""
    with load_of(broker) as load:
        found = absence(broker, load, away_s, postgres.kill, postgres.start)
        load.finish()
        load.check()
    assert found.memory < 100 * MIB
    assert found.disk < 100 * MIB
    assert broker.leader is not None
    names = [event["event"] for event in broker.leader.events]
    assert (away_s > 10) == ("lease_ran_out" in names)
    assert (away_s > 10) == ("lease_resumed" in names)
    assert 1 == names.count("state_taken_over")
    assert [] == broker.errors


def test_a_stop_takes_no_longer_while_the_database_is_away(broker: DurableBroker, postgres: PostgresServer) -> None:
    with load_of(broker) as load:
        load.go_on(30)
        postgres.kill()
        leader = broker.leader
        assert leader is not None
        broker.stop()
        postgres.start()
        broker.start()
        load.go_on(30)
        load.finish()
        load.check()
    assert 1 == [event["event"] for event in leader.events].count("broker_stopped")
    assert "the process ends now" not in leader.output  # which it says when shutdown_timeout_ms is over


def test_requests_that_wait_for_the_database_do_not_hold_up_http(
    broker: DurableBroker, postgres: PostgresServer
) -> None:
    """More of them than there are handlers. They come to a good end when the database is back."""
    connections = [KafkaConnection(broker.address) for _ in range(30)]
    postgres.kill()
    for number, connection in enumerate(connections):
        topic = {"name": f"topic-{number}", "num_partitions": 1, "replication_factor": 1}
        connection.tell(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=60_000)
    for _ in range(6):
        assert 200 == health(broker)
        time.sleep(0.5)
    postgres.start()
    codes = [connection.answer(ApiKey.CREATE_TOPICS, 7).topics[0].error_code for connection in connections]
    assert [ErrorCode.none] * 30 == codes
    for connection in connections:
        connection.close()


STORES: dict[str, Act] = {
    "slow": delay(2.0),
    "500": status(500),
    "503": status(503),
    "429": status(429),
    "reset": reset,
    "lies": lie_with(500),
}


@pytest.fixture
def bad(seaweed: S3Server) -> Iterator[BadStore]:
    bad = BadStore(seaweed.port)
    yield bad
    bad.close()


@pytest.fixture
def far(tmp_path: Path, postgres: PostgresServer, seaweed: S3Server, bad: BadStore) -> Iterator[DurableBroker]:
    """A broker with its objects behind ``bad``."""
    environment = {**seaweed.environment, "AWS_ENDPOINT_URL": bad.endpoint}
    with DurableBroker(
        tmp_path,
        postgres,
        *SETTINGS,
        objects=f"s3://{BUCKET}/{fresh_prefix()}",
        standbys=0,
        environment=environment,
    ) as broker:
        yield broker


def test_a_bad_store_slows_producers_and_loses_nothing(far: DurableBroker, bad: BadStore) -> None:
    """All that a store may do, 5 s each, while flushes are put into it."""
    assert far.leader is not None
    with load_of(far) as load:
        load.go_on(30)
        before = far.leader.resident_bytes
        most = before
        for act in STORES.values():
            fault = bad.fail(act, method="PUT", where="journal/", times=None)
            ends = time.monotonic() + 5
            while time.monotonic() < ends:
                most = max(most, far.leader.resident_bytes)
                time.sleep(0.1)
            assert fault.hits
            bad.repair()
            load.go_on(30)
        load.finish()
        load.check()
    assert most - before < 100 * MIB
    far.kill()
    far.start()
    load.check()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_object_of_the_journal_is_named(broker: DurableBroker, tmp_path: Path, damage: str) -> None:
    with MixedLoad(broker, SEED, (LARGE,), (100, 300_000)) as load:
        load.go_on(30)
        broker.kill()
    assert broker.leader is None
    objects = [path for path in (tmp_path / "objects" / "journal").rglob("*") if path.is_file()]
    victim = objects[-1]
    if damage == "missing":
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size // 2)
    machine = broker.launch()
    assert 2 == machine.process.wait(PATIENCE_S)
    key = re.escape(str(victim.relative_to(tmp_path / "objects")))
    assert re.search(f"The journal cannot be read: object {key} of journal row [0-9]+", machine.output), machine.output
    assert "Traceback" not in machine.output


def test_a_missing_tier_object_costs_its_segment_only(broker: DurableBroker, tmp_path: Path) -> None:
    with load_of(broker) as load:
        wait_until(lambda: len(tier_objects(tmp_path)) > 4, "nothing is uploaded")
        load.go_on(30)
        load.finish()
        load.check()
    broker.kill()
    victim = next(path for path in tier_objects(tmp_path) if path.parent.name == "0")
    victim.unlink()
    broker.start()
    damaged, sound = sorted((codes(broker.address, name) for name in (LARGE, SMALL)), key=len, reverse=True)
    assert {0} == sound
    assert {0, ErrorCode.kafka_storage_error} == damaged


def tier_objects(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "objects" / "segments").rglob("*") if path.is_file())


def codes(address: str, topic: str) -> set[int]:
    """The errors of fetches from partition 0, from its beginning to its end."""
    found = set()
    with KafkaConnection(address) as connection:
        offset = 0
        while True:
            answer = connection.ask(ApiKey.FETCH, 11, **fetch_fields(topic, (0,), offset))
            (partition,) = answer.responses[0].partitions
            found.add(int(partition.error_code))
            ends = [header.last_offset for _, header in batches(partition.records or b"")]
            offset = ends[-1] + 1 if ends else offset + 20
            if partition.error_code == 0 and offset >= partition.high_watermark:
                return found
