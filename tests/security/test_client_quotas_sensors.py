"""The bounded table of sensors: what is used is never forgotten, and what is made up takes no memory."""

import tracemalloc
from unittest import mock

import pytest

from broker.security import client_quotas
from broker.security.client_quotas import NAME_MAX, Kind, SensorTable, Windows, shortened

QUOTA = 1000.0


@pytest.fixture
def table() -> SensorTable:
    return SensorTable(Windows())


def test_entity_has_one_sensor_for_each_kind(table: SensorTable) -> None:
    first = table.sensor(Kind.PRODUCE, ("u", "c"), QUOTA, 0.0)
    assert table.sensor(Kind.PRODUCE, ("u", "c"), 5.0, 9.0) is first
    others = [(Kind.FETCH, ("u", "c")), (Kind.PRODUCE, ("u", None)), (Kind.PRODUCE, (None, "c"))]
    assert len({first, *(table.sensor(kind, pair, QUOTA, 0.0) for kind, pair in others)}) == 4


@pytest.mark.parametrize(
    ("kind", "seconds"), [(Kind.PRODUCE, 0.2), (Kind.FETCH, 0.2), (Kind.REQUEST, 0.2), (Kind.MUTATION, 11.0)]
)
def test_client_may_be_ahead_by_part_of_windows(table: SensorTable, kind: Kind, seconds: float) -> None:
    sensor = table.sensor(kind, ("u", "c"), QUOTA, 0.0)
    assert sensor.take(seconds * QUOTA, QUOTA, 5.0) == 0.0
    assert sensor.take(QUOTA, QUOTA, 5.0) == pytest.approx(1.0)


def test_request_time_is_forgotten_but_not_bytes(table: SensorTable) -> None:
    for kind, debt_s in ((Kind.REQUEST, 11.0), (Kind.PRODUCE, 99.8), (Kind.FETCH, 99.8)):
        assert table.sensor(kind, ("u", "c"), QUOTA, 0.0).take(100 * QUOTA, QUOTA, 0.0) == pytest.approx(debt_s)


def test_made_up_client_ids_do_not_erase_use(table: SensorTable) -> None:
    with mock.patch.object(client_quotas, "SENSORS_MAX", 100):
        used = table.sensor(Kind.PRODUCE, ("u", "c"), QUOTA, 0.0)
        used.take(100 * QUOTA, QUOTA, 0.0)
        crowd = set()
        for number in range(1000):
            now = number / 100
            sensor = table.sensor(Kind.PRODUCE, ("u", f"made up {number}"), QUOTA, now)
            sensor.take(QUOTA, QUOTA, now)
            crowd.add(sensor)
            assert len(table) <= 101
        assert table.sensor(Kind.PRODUCE, ("u", "c"), QUOTA, 10.0) is used
        # Those for whom there was no room share one.
        other = table.sensor(Kind.PRODUCE, ("v", "x"), QUOTA, 10.0)
        assert table.sensor(Kind.PRODUCE, ("v", "y"), QUOTA, 10.0) is other
        assert other not in crowd


def test_idle_sensors_make_room(table: SensorTable) -> None:
    with mock.patch.object(client_quotas, "SENSORS_MAX", 100):
        for number in range(100):
            table.sensor(Kind.PRODUCE, ("u", str(number)), QUOTA, 0.0).take(1 + number * QUOTA / 10, QUOTA, 0.0)
        new = table.sensor(Kind.PRODUCE, ("u", "new"), QUOTA, 5.0)
        assert table.sensor(Kind.PRODUCE, ("u", "new"), QUOTA, 5.0) is new
        assert len(table) == 100 - 50 + 1  # half of them had paid


def test_crowds_are_bounded_too(table: SensorTable) -> None:
    with mock.patch.object(client_quotas, "SENSORS_MAX", 1), mock.patch.object(client_quotas, "CROWDS_MAX", 10):
        for number in range(100):
            table.sensor(Kind.PRODUCE, (str(number), "c"), QUOTA, 0.0).take(QUOTA, QUOTA, 0.0)
        assert len(table) == 1 + 10 + 1
        table.sweep(1000.0)
        assert len(table) == 0


def test_long_names_are_kept_short_and_distinct() -> None:
    long = "x" * NAME_MAX
    assert shortened(long) == long
    assert shortened(None) is None
    names = {shortened(long + end) for end in ("a", "b", "é" * 30_000)}
    assert len(names) == 3
    assert all(len(name or "") < 110 for name in names)


def test_a_full_table_takes_less_than_50_mb(table: SensorTable) -> None:
    count = 5_000
    tracemalloc.start()
    for number in range(count):
        table.sensor(Kind.PRODUCE, ("user", f"client-{number}" * 50), QUOTA, 0.0).take(1.0, QUOTA, 0.0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / count * client_quotas.SENSORS_MAX < 50e6
