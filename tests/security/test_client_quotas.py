"""All client quotas: which one a client gets, against a slow model, and that changes are durable and in force at once."""

import itertools
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.metrics import Registry
from broker.metrics.registry import render
from broker.security import client_quotas
from broker.security.client_quotas import DEFAULT, OF_CLIENTS, UNLIMITED, ClientQuotas, Entity, Kind, Windows
from tests.clocks import ManualClock


class Stored:
    """A catalogue that keeps quotas only."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], float] = {}

    def load_quotas(self):  # type: ignore[no-untyped-def]
        return [(entity, key, value) for (entity, key), value in self.rows.items()]

    def alter_quotas(self, changes):  # type: ignore[no-untyped-def]
        for entity, key, value in changes:
            self.rows.pop((entity, key), None)
            if value is not None:
                self.rows[entity, key] = value


def opened(catalogue: Stored | None = None) -> ClientQuotas:
    quotas = ClientQuotas(catalogue or Stored(), ManualClock(), Windows())  # type: ignore[arg-type]
    quotas.load()
    return quotas


NAMES = ("a", "b", DEFAULT, None)
ENTITIES = [Entity(user, client) for user, client in itertools.product(NAMES, NAMES) if (user, client) != (None, None)]


def slow(configured: dict[Entity, float], user: str, client_id: str) -> float | None:
    """Kafka's eight levels, one after the other."""
    for entity in (
        Entity(user, client_id),
        Entity(user, DEFAULT),
        Entity(user, None),
        Entity(DEFAULT, client_id),
        Entity(DEFAULT, DEFAULT),
        Entity(DEFAULT, None),
        Entity(None, client_id),
        Entity(None, DEFAULT),
    ):
        if entity in configured:
            return configured[entity]
    return None


@given(
    chosen=st.lists(st.tuples(st.sampled_from(ENTITIES), st.sampled_from(OF_CLIENTS)), unique=True),
    removed=st.lists(st.tuples(st.sampled_from(ENTITIES), st.sampled_from(OF_CLIENTS)), unique=True),
)
def test_precedence_is_kafka_s_for_each_kind(
    chosen: list[tuple[Entity, Kind]], removed: list[tuple[Entity, Kind]]
) -> None:
    catalogue = Stored()
    quotas = opened(catalogue)
    values = {key: float(number + 1) for number, key in enumerate(chosen)}
    quotas.alter([(entity, kind, value) for (entity, kind), value in values.items()])
    for user, client_id in itertools.product("abc", "abc"):
        quotas.meters(user, client_id)  # seen before the change
    quotas.alter([(entity, kind, None) for entity, kind in removed])
    for key in removed:
        values.pop(key, None)
    for each in (quotas, opened(catalogue)):
        assert each.limits_clients == bool(values)
        for user, client_id, kind in itertools.product("abc", ("a", "b", "c", ""), OF_CLIENTS):
            of_kind = {entity: value for (entity, its), value in values.items() if its is kind}
            meter = getattr(each.meters(user, client_id), client_quotas._FIELDS[kind])
            assert (None if meter is None else meter.quota) == slow(of_kind, user, client_id)


def test_use_is_shared_like_in_kafka() -> None:
    quotas = opened()

    def sensors(entity: Entity) -> list[int]:
        """Which of three clients share a sensor."""
        quotas.alter([(each, Kind.PRODUCE, None) for each in ENTITIES] + [(entity, Kind.PRODUCE, 1.0)])
        clients = [("a", "x"), ("a", "y"), ("b", "x")]
        found = [meter.sensor for meter in (quotas.meters(*client).produce for client in clients) if meter is not None]
        assert len(found) == 3
        return [found.index(sensor) for sensor in found]

    assert sensors(Entity(DEFAULT, DEFAULT)) == [0, 1, 2]
    assert sensors(Entity(DEFAULT, None)) == [0, 0, 2]
    assert sensors(Entity(None, DEFAULT)) == [0, 1, 0]


def test_new_value_applies_to_earlier_use() -> None:
    quotas = opened()
    quotas.alter([(Entity("u"), Kind.PRODUCE, 100.0)])
    meter = quotas.meters("u", "c").produce
    assert meter is not None
    meter.take(1020, 1000.0)
    quotas.alter([(Entity("u"), Kind.PRODUCE, 1000.0)])
    meter = quotas.meters("u", "c").produce
    assert meter is not None
    assert meter.throttle_s(1000.0) == pytest.approx(1.0)


def test_clients_without_a_quota_are_unlimited() -> None:
    quotas = opened()
    assert not quotas.limits_clients
    assert quotas.meters("u", "c") is UNLIMITED
    quotas.alter([(Entity("v"), Kind.REQUEST, 1.0)])
    assert quotas.limits_clients
    assert [kind for kind in OF_CLIENTS if quotas.limits(kind)] == [Kind.REQUEST]
    assert quotas.meters("u", "c") is UNLIMITED
    assert quotas.meters("v", "c").request is not None


def test_addresses_have_their_own_rate_or_the_default() -> None:
    quotas = opened()
    assert quotas.connection_rate("10.0.0.1") is None
    quotas.alter([(Entity(ip="10.0.0.1"), Kind.CONNECTION, 3.0)])
    assert [quotas.connection_rate(address) for address in ("10.0.0.1", "10.0.0.2")] == [3.0, None]
    quotas.alter([(Entity(ip=DEFAULT), Kind.CONNECTION, 7.0), (Entity(ip="10.0.0.1"), Kind.CONNECTION, None)])
    assert [quotas.connection_rate(address) for address in ("10.0.0.1", "10.0.0.2")] == [7.0, 7.0]
    assert not quotas.limits_clients


def test_listeners_hear_only_of_stored_changes() -> None:
    catalogue = Stored()
    quotas, heard = opened(catalogue), []
    quotas.on_change.append(lambda: heard.append(quotas.limits_clients))
    quotas.alter([(Entity("u"), Kind.PRODUCE, 1.0)])
    quotas.alter([])
    with mock.patch.object(catalogue, "alter_quotas", side_effect=StorageError("full")), pytest.raises(StorageError):
        quotas.alter([(Entity("u"), Kind.PRODUCE, None)])
    assert heard == [True]
    assert quotas.entries() == {Entity("u"): {Kind.PRODUCE: 1.0}}


def test_made_up_client_ids_take_no_memory() -> None:
    quotas = opened()
    quotas.alter([(Entity("u"), Kind.PRODUCE, 1.0)])
    with mock.patch.object(client_quotas, "_CLIENTS_MAX", 10):
        for number in range(100):
            assert quotas.meters("u", f"{number}") is quotas.meters("u", f"{number}")
            quotas.meters("u", "x" * 30_000 + str(number))
            assert len(quotas._seen) <= 10
    assert quotas.sensors == 1


def test_metrics_count_throttles_by_quota() -> None:
    quotas, metrics = opened(), Registry()
    quotas.register_metrics(metrics)
    quotas.count_throttle(Kind.FETCH, 0.25)
    quotas.count_throttle(Kind.FETCH, 0.25)
    text = render(metrics).decode()
    assert 'broker_quota_throttles_total{quota="consumer_byte_rate"} 2.0' in text
    assert 'broker_quota_throttle_seconds_total{quota="consumer_byte_rate"} 0.5' in text
    assert "broker_quota_sensors 0.0" in text
