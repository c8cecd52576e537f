"""Nodes on several machines, as their supervisors see them in PostgreSQL."""

from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.metadata.postgres_cluster import (
    ClusterSession,
    ClusterView,
    MachineRow,
    SeatRow,
    check_count,
    drain,
    holder,
    left_to_others_s,
    machine_of,
)
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_owner import OwnerSession
from tests.durable.postgres import fresh_schema, shared_server

COUNT = 3


@pytest.fixture
def address() -> Address:
    return Address(shared_server().url, fresh_schema())


@pytest.fixture
def sessions(address: Address) -> Iterator[list[ClusterSession]]:
    """Of two machines, the first of which has made the cluster."""
    made = [ClusterSession(address, 5.0) for _ in range(2)]
    for session in made:
        session.prepare(COUNT, "id", "secret")
    yield made
    for session in made:
        session.close()


def own(address: Address, node: int, machine: str) -> OwnerSession:
    """Have the node on this machine."""
    session = OwnerSession(attrs.evolve(address, node=node), 5.0)
    assert session.lock(5.0)
    session.take(holder(machine), "", 60.0)
    return session


def test_a_holder_s_name_begins_with_the_machine() -> None:
    assert "a, b 1" == machine_of(holder("a, b 1"))


def test_the_number_of_nodes_is_fixed_at_the_first_start(address: Address, sessions: list[ClusterSession]) -> None:
    with pytest.raises(ConfigError, match=r"Start the broker with --nodes 3: .* is that of 3 nodes"):
        sessions[1].prepare(COUNT + 1, "id", "secret")


def test_the_catalogue_of_one_broker_stays_that_of_one(address: Address) -> None:
    own(address, 0, "m").close()
    session = ClusterSession(address, 5.0)
    with pytest.raises(ConfigError, match=r"Start the broker without --nodes: .* is that of 1 node,"):
        session.prepare(COUNT, "id", "secret")
    session.close()


def test_a_broker_alone_refuses_the_catalogue_of_several(address: Address, sessions: list[ClusterSession]) -> None:
    database = PostgresDatabase(address)
    with pytest.raises(ConfigError, match="Start the broker with --nodes 3"):
        check_count(database, 1)
    check_count(database, COUNT)
    database.close()


def test_the_cluster_has_one_id(address: Address, sessions: list[ClusterSession]) -> None:
    sessions[1].prepare(COUNT, "another", "other")
    database = PostgresDatabase(address)
    assert [("id",)] == database.read("SELECT value FROM meta WHERE key = 'cluster_id'")
    database.close()


def test_machines_see_each_other_and_who_has_which_node(address: Address, sessions: list[ClusterSession]) -> None:
    first, second = sessions
    owners = [own(address, 0, "a"), own(address, 2, "a")]
    first.beat("a", "1.0")
    view = second.beat("b", "1.1")
    assert [("a", "1.0"), ("b", "1.1")] == [(each.machine, each.version) for each in view.machines]
    assert ([0, 2], []) == (view.had_by("a"), view.had_by("b"))
    assert [False] * COUNT == [seat.serves for seat in view.seats]
    first.leave("a")
    assert ["b"] == [each.machine for each in second.beat("b", "1.1").machines]
    for each in owners:
        each.close()


def test_one_machine_at_a_time_moves_a_node(sessions: list[ClusterSession]) -> None:
    first, second = sessions
    assert first.begin_move()
    assert not second.begin_move()
    first.end_move()
    assert second.begin_move()


def test_a_machine_leaves_nodes_to_those_that_have_fewer(address: Address, sessions: list[ClusterSession]) -> None:
    sessions[0].beat("a", "")
    sessions[0].beat("b", "")
    owner = own(address, 0, "a")
    standby = OwnerSession(attrs.evolve(address, node=1), 5.0)

    def leaves(machine: str) -> bool:
        return 0 < left_to_others_s(attrs.evolve(address, node=1), COUNT, machine, standby)

    assert (True, False) == (leaves("a"), leaves("b"))
    standby.lock(5.0)
    standby.take(holder("b"), "", 60.0)
    standby.release(1, lease=True)
    assert not leaves("a"), "who had it last does not count"
    database = PostgresDatabase(address)
    assert drain(database, "a", drained=True)
    assert not drain(database, "c", drained=True)
    database.close()
    sessions[0].beat("a", "")
    assert 2.0 < left_to_others_s(attrs.evolve(address, node=1), COUNT, "a", standby), "a drained one leaves it to any"
    owner.close()
    standby.close()


def test_a_machine_is_numbered_by_its_address(sessions: list[ClusterSession]) -> None:
    first, second = sessions
    assert 0 == first.join("a", "host-a:9092", "")
    assert 1 == second.join("b", "host-b:9092", "")
    assert 0 == first.join("a", "host-a:9092", "")
    first.leave("a")
    assert 0 == first.join("a again", "host-a:9092", "")
    assert 2 == first.join("c", "host-c:9092", "")


def test_two_machines_that_are_there_do_not_have_one_address(sessions: list[ClusterSession]) -> None:
    first, second = sessions
    first.join("a", "host:9092", "")
    assert second.join("b", "host:9092", "") is None
    assert ["a"] == [each.machine for each in first.beat("a", "").machines]
    first.leave("a")
    assert 0 == second.join("b", "host:9092", "")


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.7]), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=12),
)
def test_nodes_move_until_each_machine_has_its_share(weights: list[float], had: list[int]) -> None:
    machines = [MachineRow(str(number), "", weight, drained=False) for number, weight in enumerate(weights)]
    places = [place % len(weights) for place in had]

    def view() -> ClusterView:
        return ClusterView(machines, [SeatRow(node, str(place), True, True, {}) for node, place in enumerate(places)])

    for _ in range(len(places) + 1):
        giver = next((int(each.machine) for each in machines if view().has_too_many(each.machine)), None)
        if giver is None:
            break
        load = {
            each: (places.count(each) + 1) / weight for each, weight in enumerate(weights) if weight and each != giver
        }
        places[places.index(giver)] = min(load, key=lambda each: load[each])
    else:
        raise AssertionError(f"they go on to move: {weights}, {places}")
    total = sum(weights)
    for place, weight in enumerate(weights):
        if total:
            assert places.count(place) <= len(places) * weight / total + len(weights)
            assert weight or not places.count(place)
