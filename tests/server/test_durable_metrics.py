"""What a broker says about its journal and its lease."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from broker.config import BrokerConfig
from broker.errors import ConfigError
from broker.metrics import Labels, names
from broker.metrics.metric import Metric
from broker.server.broker_server import BrokerServer
from tests.bench.wire import Wire, batch, produce, produce_frame
from tests.durable.postgres import PostgresServer, fresh_schema, shared_server
from tests.waiting import wait_for

pytest.importorskip("obstore")


@pytest.fixture
def postgres() -> PostgresServer:
    return shared_server()


@pytest.fixture
def config(postgres: PostgresServer, tmp_path: Path) -> BrokerConfig:
    (tmp_path / "objects").mkdir()
    return BrokerConfig(
        listeners=("kafka://127.0.0.1:0",),
        data_dir=str(tmp_path / "data"),
        catalogue=postgres.url,
        catalogue_schema=fresh_schema(),
        objects=f"file://{tmp_path}/objects",
    )


@pytest.fixture
def server(config: BrokerConfig) -> Iterator[BrokerServer]:
    server = BrokerServer(config)
    server.start()
    yield server
    server.stop()


def send(server: BrokerServer, size: int) -> None:
    """A batch of random bytes, acks=all, to the topic ``t``."""
    with closing(Wire(server.listeners["kafka"])) as wire:
        produce(wire, produce_frame("t", batch(1, size), -1), "t", 1, 1)


def make_topic(server: BrokerServer) -> None:
    with closing(Wire(server.listeners["kafka"])) as wire:
        wire.create_topic("t")


def read(server: BrokerServer, metric: Metric) -> float:
    values: Mapping[Labels, float] = server.metrics.values(metric)
    return values[()]


@pytest.mark.parametrize(("size", "objects"), [(100, 0), (100_000, 1)])
def test_flushes_are_counted_with_their_bytes_and_objects(server: BrokerServer, size: int, objects: int) -> None:
    make_topic(server)
    counters = names.JOURNAL_FLUSHES, names.JOURNAL_BYTES, names.JOURNAL_OBJECTS
    before = [read(server, metric) for metric in counters]
    send(server, size)
    flushes, shipped, puts = (read(server, metric) - old for metric, old in zip(counters, before, strict=True))
    assert (True, objects) == (flushes >= 1, puts)
    assert size < shipped < size + 2_000
    ((counts, seconds),) = server.metrics.ranges(names.JOURNAL_FLUSH_SECONDS).values()
    assert (read(server, names.JOURNAL_FLUSHES), True) == (sum(counts), seconds > 0)


def test_journal_s_size_is_that_of_its_table(
    server: BrokerServer, config: BrokerConfig, postgres: PostgresServer
) -> None:
    make_topic(server)
    send(server, 100)
    query = f"SELECT count(*), sum(length(index) + length(data)) FROM {config.catalogue_schema}.journal"
    with postgres.connect() as connection:
        ((rows, size),) = connection.execute(query).fetchall()
    assert (rows, size) == (read(server, names.JOURNAL_ROWS), read(server, names.JOURNAL_SIZE))


def test_epoch_rises_with_each_take_over_and_the_owner_leads(config: BrokerConfig) -> None:
    epochs = []
    for _ in range(2):
        server = BrokerServer(config)
        server.start()
        epochs.append(read(server, names.OWNER_EPOCH))
        assert 1 == read(server, names.OWNER_LEADING)
        assert 0 < read(server, names.OWNER_LEASE_SECONDS) <= 10
        server.stop()
    assert [epochs[0], epochs[0] + 1] == epochs


def test_a_broker_without_a_lease_says_so(server: BrokerServer) -> None:
    durable = server._taken.durable
    assert durable is not None
    durable.engine.owner.lease.lost()
    assert (0, 0) == (read(server, names.OWNER_LEADING), read(server, names.OWNER_LEASE_SECONDS))


def test_failed_attempts_are_counted(server: BrokerServer, tmp_path: Path) -> None:
    make_topic(server)
    place = tmp_path / "objects"
    place.rename(tmp_path / "away")
    place.write_text("no directory")
    with closing(Wire(server.listeners["kafka"])) as wire:
        wire.send(produce_frame("t", batch(1, 100_000), -1))
        wait_for(lambda: read(server, names.JOURNAL_FAILURES) > 0)
        place.unlink()
        (tmp_path / "away").rename(place)
        wire.receive()


def test_catalogue_without_objects_is_refused(config: BrokerConfig) -> None:
    with pytest.raises(ConfigError, match="Set objects, too"):
        BrokerServer(attrs.evolve(config, objects=None)).start()
