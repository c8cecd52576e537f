"""Writers' and readers' use counts for their user's quotas, and above these they wait."""

from collections.abc import Iterator

import pytest

from broker.client import Broker
from broker.security.client_quotas import Entity, Kind
from broker.shuffle.assembly import ShufflePart
from protocol.shuffle.buffer_response import BufferResponse
from tests.shuffle.harness import Client, new_id
from tests.waiting import wait_for


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listeners=["kafka://127.0.0.1:0", "shuffle://127.0.0.1:0"]) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    host, port = broker.address("shuffle").rsplit(":", 1)
    with Client((host, int(port))) as client:
        yield client


def limit(broker: Broker, kind: Kind, value: float | None) -> None:
    broker.server.security.quotas.alter([(Entity(user="ANONYMOUS"), kind, value)])


def throttles(broker: Broker, kind: Kind) -> float:
    return broker.server.security.quotas._throttles.get((kind,), 0)


@pytest.mark.parametrize("pushes", [1, 20])  # alone, and as a row
def test_writer_above_quota_is_muted_until_it_ends(broker: Broker, client: Client, pushes: int) -> None:
    part = broker.server.part("shuffle")
    assert isinstance(part, ShufflePart)
    writer = client.open(partition := new_id())
    [present] = part.partitions.present()
    limit(broker, Kind.PRODUCE, 1)
    writer.push(*[b"x" * 1000] * pushes)
    wait_for(lambda: broker.server.security.quotas.throttled() == 1)
    before = present.holdings.memory
    assert before > 0
    writer.push(b"y" * 1000)
    assert 1 == throttles(broker, Kind.PRODUCE)
    assert before == present.holdings.memory
    limit(broker, Kind.PRODUCE, None)
    wait_for(lambda: present.holdings.memory > before)
    assert 0 == broker.server.security.quotas.throttled()
    assert present.id == partition


def test_reader_above_quota_gets_nothing_until_it_ends(broker: Broker, client: Client) -> None:
    writer = client.open(partition := new_id())
    client.request(partition, credit=1000)
    limit(broker, Kind.FETCH, 1)
    writer.push(b"first")
    assert b"first" == client.find(BufferResponse).payload
    writer.push(b"second")
    assert not [each for each in client.sync() if isinstance(each, BufferResponse)]  # other frames are heard
    assert 1 == throttles(broker, Kind.FETCH)
    limit(broker, Kind.FETCH, None)
    assert b"second" == client.find(BufferResponse).payload


def test_the_time_of_frames_counts(broker: Broker, client: Client) -> None:
    limit(broker, Kind.REQUEST, 1e-6)
    client.sync()
    wait_for(lambda: broker.server.security.quotas.throttled() == 1)
    limit(broker, Kind.REQUEST, None)
    client.sync()
