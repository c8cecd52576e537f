"""Nodes on several machines, as their supervisors see them in PostgreSQL."""

from collections.abc import Iterator

import attrs
import pytest

from broker.errors import ConfigError
from broker.metadata.postgres_cluster import ClusterSession, holder, machine_of, others_have_fewer, refuse_several
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
        refuse_several(database)
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
    assert {"a": "1.0", "b": "1.1"} == view.machines
    assert ([0, 2], []) == (view.had_by("a"), view.had_by("b"))
    assert [False] * COUNT == [seat.serves for seat in view.seats]
    first.leave("a")
    assert {"b": "1.1"} == second.beat("b", "1.1").machines
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
        return others_have_fewer(attrs.evolve(address, node=1), COUNT, machine, standby)

    assert (True, False) == (leaves("a"), leaves("b"))
    standby.lock(5.0)
    standby.take(holder("b"), "", 60.0)
    standby.release(1, lease=True)
    assert not leaves("a"), "who had it last does not count"
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
    assert {"a"} == set(first.beat("a", "").machines)
    first.leave("a")
    assert 0 == second.join("b", "host:9092", "")
