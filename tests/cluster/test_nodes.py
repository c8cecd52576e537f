"""Each partition, group and transactional id has one owner among the nodes, whichever of them is asked."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import nodes as module
from broker.cluster.nodes import Node, Nodes, coordinator_of, moved_id, owner_of, transaction_key
from broker.errors import StorageError
from broker.runtime.disk import SystemDisk
from broker.runtime.threads import Event, SimpleQueue
from broker.spark.sink.commit import task_name
from broker.spark.sink.marks import query_name, write_name
from tests.waiting import wait_for


class Settled:
    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        return 0, None

    def settle(self, timeout_s: float, node: int) -> bool:
        return True


def cluster(count: int, directory: str = "/nowhere") -> list[Nodes]:
    return [Nodes(place, count, 5, directory, SystemDisk(), Settled()) for place in range(count)]


@given(st.integers(1, 9), st.text(max_size=10), st.integers(0, 1000))
def test_one_node_owns_a_partition_and_all_name_it(count: int, topic: str, partition: int) -> None:
    nodes = cluster(count)
    [owner] = [node for node in nodes if node.has_partition(topic, partition)]
    assert {owner.place} == {node.place_of_owner(topic, partition) for node in nodes}
    assert {f"/nowhere/nodes/{owner.place}"} == {node.directory_of(topic, partition) for node in nodes}


@given(st.integers(1, 9), st.text(max_size=10), st.integers(1, 100))
def test_partitions_of_a_topic_are_spread_evenly(count: int, topic: str, partitions: int) -> None:
    owned = [sum(owner_of(topic, number, count) == place for number in range(partitions)) for place in range(count)]
    assert max(owned) - min(owned) <= 1


@given(st.integers(1, 9), st.text(max_size=10))
def test_one_node_coordinates_a_key_and_all_name_it_if_it_lives(count: int, key: str) -> None:
    nodes = cluster(count)
    [coordinator] = [node for node in nodes if node.coordinates(key)]
    assert {None} == {node.coordinator_of(key) for node in nodes}
    living = {place: Node(5 + place, {}) for place in range(count)}
    for node in nodes:
        node.found(living)
    assert {coordinator.node_id} == {found.node_id for node in nodes if (found := node.coordinator_of(key))}


@given(st.integers(2, 64), st.integers(0, 1000))
def test_a_node_has_an_id_of_its_own_on_each_machine(count: int, first_id: int) -> None:
    ids = [moved_id(first_id, machine, place, count) for machine in range(3) for place in range(count)]
    assert len(ids) == len(set(ids))
    assert [first_id + place for place in range(count)] == ids[:count]


def test_a_node_that_has_gone_is_known_as_it_was_last() -> None:
    node = Nodes(0, 2, 5, "/nowhere", SystemDisk(), Settled(), node_id=9)
    assert [9, 6] == node.node_ids
    node.found({1: Node(8, {}, None, 3)})
    assert [9, 8] == node.node_ids
    node.found({})
    assert [9, 8] == node.node_ids
    assert Node(8, {}, None, 3) == node.known(1)
    assert node.owner_of("topic", owner_of("topic", 0, 2) ^ 1) is None


def test_keys_with_the_same_text_in_braces_are_kept_together() -> None:
    assert 1 == len({coordinator_of(key, 1000) for key in ("orders", "a{orders}", "b{orders}c", "{orders}{other}")})
    assert 1 < len({coordinator_of(key, 1000) for key in ("a{}", "b{}", "{a", "b}", "}c{")})


def test_ids_of_a_write_of_spark_are_kept_together() -> None:
    for job in (query_name("7f0c"), write_name("app", "orders"), write_name("app", None)):
        ids = (job, *(task_name(job, number, 3) for number in range(50)))
        assert 1 == len({coordinator_of(transaction_key(name), 1000) for name in ids})
    assert 1 < len({coordinator_of(transaction_key(query_name(str(number))), 1000) for number in range(50)})


def test_nodes_change_topics_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_WAIT_S", 0.02)
    one, other = cluster(2, str(tmp_path))
    with one.changing_topics(), pytest.raises(StorageError, match="Another node"), other.changing_topics():
        pass
    with other.changing_topics():
        pass


class Slow:
    """Others have everything in force when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.settled = Event()

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        return 0, None

    def settle(self, timeout_s: float, node: int) -> bool:
        self.asked += 1
        assert self.settled.wait(60)
        if self.asked == 2:
            raise StorageError("the catalogue is gone")
        return True


def test_those_who_wait_for_the_other_nodes_do_so_together() -> None:
    shared = Slow()
    [one] = [Nodes(0, 1, 5, "/nowhere", SystemDisk(), shared)]
    called: SimpleQueue[int] = SimpleQueue()
    one.when_settled(lambda: called.put(1))
    wait_for(lambda: shared.asked == 1)
    for number in range(2, 5):  # they have to wait for another answer
        one.when_settled(partial(called.put, number))
    shared.settled.set()
    assert [1, 2, 3, 4] == [called.get(True, 60) for _ in range(4)]
    assert 2 == shared.asked
    one.when_settled(lambda: called.put(5))
    assert 5 == called.get(True, 60)
    assert 3 == shared.asked
