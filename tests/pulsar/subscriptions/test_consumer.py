"""A consumer's slices: when it is paused, and when it goes on."""

from pathlib import Path
from unittest import mock

import pytest

from broker.client.embedded import Broker
from broker.network.quota import DeliveryQuota
from broker.security.client_quotas import ClientQuotas, Kind, Windows, parse_entity
from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.pulsar.clients import client as connected_client
from tests.pulsar.subscriptions.stage import Client, Member, Stage
from tests.waiting import wait_for


@pytest.mark.parametrize(("count", "size"), [(10, 60_000), (1000, 1)])
def test_a_slice_has_so_many_bytes_and_entries(stage: Stage, count: int, size: int) -> None:
    client = stage.client()
    client.link.reads = False
    member = client.subscribe()
    member.flow(1_000_000)
    while not member.connected.paused:
        stage.produce(1, size)
        assert len(client.link.frames) <= count
    assert not client.link.writable
    client.drained()
    stage.run()
    assert not member.connected.paused


def test_what_a_consumer_was_sent_is_counted(stage: Stage) -> None:
    stage.produce(2)
    stage.produce_batch(5)
    member = stage.client().subscribe()
    member.flow(10)
    stage.run()
    connected = member.connected
    assert (7, 0) == (connected.messages_out, connected.redelivered)
    assert connected.bytes_out > 0


def test_small_entries_are_joined_around_large_ones(stage: Stage) -> None:
    client = stage.client()
    pushed: list[list[int]] = []
    push = client.state.outbox.push

    def note(connection: object, parts: list[bytes]) -> None:
        pushed.append([len(part) for part in parts])
        push(connection, parts)  # type: ignore[arg-type]

    client.state.outbox.push = note  # type: ignore[method-assign, assignment]
    member = client.subscribe()
    for size in (10, 20, 50_000, 30, 40, 60_000):
        stage.produce(1, size)
    pushed.clear()
    member.flow(10)
    stage.run()
    (sizes,) = pushed
    assert [True, False, True, False] == [size < 10_000 for size in sizes]
    assert [0, 1, 2, 3, 4, 5] == member.offsets()


def test_a_closed_consumer_is_forgotten_by_its_connection(stage: Stage) -> None:
    client = stage.client()
    member = client.subscribe()
    member.connected.close()
    assert {} == client.state.consumers
    ((kind, command),) = client.commands()
    assert (BaseCommand.Type.CLOSE_CONSUMER, 0, 2**64 - 1) == (kind, command.consumer_id, command.request_id)


class Throttled:
    """Two consumers of a client with a quota; each has got one message, and there are more."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.quotas = ClientQuotas(mock.Mock(), stage.clock, Windows())
        stage.subscriptions.quota = DeliveryQuota(self.quotas, stage.clock, stage.timer)
        self.set_quota(1000.0)
        self.client = self._client("alice")
        self.member = self.client.subscribe()
        self.member.flow(100)
        # This is more than may be used at once.
        stage.produce(1, int(1000 * Windows().ahead_s) + 2500)
        assert [0] == self.member.offsets()
        stage.produce(2)

    def set_quota(self, quota: float | None) -> None:
        self.quotas.alter([(parse_entity("user=alice"), Kind.FETCH, quota)])

    def _client(self, user: str) -> Client:
        client = self.stage.client()
        client.link.principal = mock.Mock()
        client.link.principal.name = user
        return client

    def other(self, user: str) -> Member:
        member = self._client(user).subscribe("other")
        member.flow(100)
        return member


@pytest.fixture
def throttled(stage: Stage) -> Throttled:
    return Throttled(stage)


def test_consumer_over_quota_waits_until_debt_paid(throttled: Throttled) -> None:
    for _ in range(2):
        throttled.stage.wait(1000)
        # It is not enough that the connection takes more.
        throttled.client.drained()
        throttled.member.connected.writable()
        assert [] == throttled.member.offsets()
    throttled.stage.wait(1000)
    assert [1, 2] == throttled.member.offsets()
    assert not throttled.member.connected.paused


def test_consumer_resumes_when_quota_is_removed(throttled: Throttled) -> None:
    throttled.set_quota(None)
    throttled.stage.wait(1000)
    assert [1, 2] == throttled.member.offsets()


def test_clients_without_a_quota_do_not_wait(throttled: Throttled) -> None:
    assert [0, 1, 2] == throttled.other("bob").offsets()


def test_clients_other_consumers_learn_debt_at_next_delivery(throttled: Throttled) -> None:
    other = throttled.other("alice")
    assert [0, 1, 2] == other.offsets()
    throttled.stage.produce()
    assert [] == other.offsets()


def test_departed_consumer_in_debt_is_forgotten(throttled: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
    throttled.set_quota(0.001)
    looked = mock.Mock(wraps=throttled.quotas.meters)
    monkeypatch.setattr(throttled.quotas, "meters", looked)
    throttled.stage.wait(1000)
    throttled.stage.wait(1000)
    assert 2 == looked.call_count
    throttled.member.leave()
    throttled.stage.wait(1000)
    throttled.stage.wait(1000)
    assert 2 == looked.call_count


def test_the_real_client_is_throttled_and_loses_nothing(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        quotas = broker.server.security.quotas
        quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.FETCH, 100.0)])
        with connected_client(f"pulsar://{broker.address('pulsar')}") as client:
            consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
            producer.send(bytes(100_000))
            assert 100_000 == len(consumer.receive(30_000).data())
            (topic,) = broker.server.part("pulsar").context.topics.loaded()  # type: ignore[union-attr]
            (connected,) = topic.subscriptions["s"].connected
            wait_for(lambda: connected.held)  # the client may receive before the broker holds it
            producer.send(b"later")
            quotas.alter([(parse_entity("user=ANONYMOUS"), Kind.FETCH, None)])
            assert b"later" == consumer.receive(30_000).data()
