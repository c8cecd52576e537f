import uuid
from pathlib import Path

import attrs
import pytest

from broker.errors import StorageError
from broker.metadata.writer import CatalogueWriter
from broker.pulsar.topics.registry import EPOCH_KIND, KIND, TopicDocuments, decode, encode
from broker.pulsar.topics.topic import TopicRecord
from tests.pulsar.subscriptions.stage import FaultyCatalogue
from tests.pulsar.two_nodes import TwoNodes
from tests.sim.catalogue import Tables

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


class World:
    def __init__(self) -> None:
        self.tables = Tables()
        self.start()

    def start(self) -> None:
        """A broker, with what an earlier one has left."""
        self.catalogue = FaultyCatalogue(None, self.tables)
        self.writer = CatalogueWriter(self.catalogue)
        self.documents = TopicDocuments(self.catalogue, self.writer)
        self.documents.load({ONE, OTHER}.__contains__)

    def stored(self, topic_id: uuid.UUID) -> TopicRecord:
        return decode(self.tables.documents[KIND, str(topic_id)])


def test_record_round_trips() -> None:
    record = TopicRecord(7, True, {"key": "value"}, True, {0: 3, 12: 1})
    assert record == decode(encode(record))


def test_a_ledger_is_given_once_whatever_happens() -> None:
    world, given = World(), []
    for round in range(3):
        for number in range(100):
            topic_id = uuid.UUID(int=1000 * round + number)
            given.append(world.documents.ensure(topic_id).ledger)
            world.documents.forget(topic_id)
        world.start()
    assert len(given) == len(set(given))
    assert given == sorted(given)


def test_document_exists_before_record_is_used() -> None:
    world = World()
    record = world.documents.ensure(ONE)
    assert record == world.stored(ONE) == world.documents.ensure(ONE)
    world.catalogue.broken = True
    with pytest.raises(StorageError):
        world.documents.ensure(OTHER)
    assert world.documents.get(OTHER) is None
    world.catalogue.broken = False
    assert record.ledger < world.documents.ensure(OTHER).ledger


def test_new_topic_gets_document_in_same_step() -> None:
    world = World()
    record = world.documents.new_record(partitioned=True, properties={"a": "b"})
    world.catalogue.together([world.documents.adding(ONE, record)])
    assert record == world.stored(ONE)
    assert world.documents.is_partitioned(ONE)
    assert not world.documents.is_partitioned(OTHER)


def test_changes_are_written_in_order_and_reported_durable() -> None:
    world, told = World(), []
    world.documents.ensure(ONE)
    for epoch in (1, 2):
        record = world.documents.change(
            ONE, lambda old, epoch=epoch: TopicRecord(old.ledger, epochs={0: epoch}), told.append
        )
        assert record is not None
        assert {0: epoch} == record.epochs
    assert [] == told
    world.writer.step(0)
    assert [None, None] == told
    assert {0: 2} == world.stored(ONE).epochs


def test_a_change_that_cannot_be_written_is_told() -> None:
    world, told = World(), []
    world.documents.ensure(ONE)
    world.catalogue.broken = True
    world.documents.change(ONE, lambda old: old, told.append)
    world.writer.step(0)
    assert [StorageError] == [type(error) for error in told]


def test_deleted_topic_is_not_changed_and_leaves_nothing() -> None:
    world, told = World(), []
    world.documents.ensure(ONE)
    world.documents.change(ONE, lambda old: old, told.append)
    world.documents.forget(ONE)
    assert world.documents.change(ONE, lambda old: old, told.append) is None
    world.writer.step(0)
    assert (KIND, str(ONE)) not in world.tables.documents
    assert 2 == len(told)


def test_documents_of_deleted_topics_are_removed_at_start() -> None:
    world = World()
    gone = uuid.UUID(int=9)
    for topic_id in (ONE, gone):
        world.documents.ensure(topic_id)
    world.start()
    assert [(KIND, str(ONE))] == list(world.tables.documents)
    assert world.documents.get(ONE) is not None


class Shared:
    """Two nodes with one catalogue."""

    def __init__(self, directory: Path) -> None:
        self.catalogue = FaultyCatalogue(None, Tables())
        self.writers = [CatalogueWriter(self.catalogue) for _ in range(2)]
        nodes = TwoNodes(directory).nodes
        self.documents = [
            TopicDocuments(self.catalogue, writer, node) for writer, node in zip(self.writers, nodes, strict=True)
        ]

    def written(self) -> None:
        for writer in self.writers:
            writer.step(0)


def ignored(_error: StorageError | None) -> None: ...


def test_two_nodes_never_give_the_same_ledger(tmp_path: Path) -> None:
    documents, given = Shared(tmp_path).documents, []
    for number in range(200):
        given.append(documents[number % 2].new_record(partitioned=True).ledger)
    assert 200 == len(set(given))


def test_two_nodes_that_use_a_topic_first_make_one_document(tmp_path: Path) -> None:
    one, other = Shared(tmp_path).documents
    assert one.ensure(ONE) == other.ensure(ONE)


def test_what_one_node_changes_is_read_by_the_other(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    one, other = shared.documents
    one.ensure(ONE)
    assert {ONE: one.get(ONE)} == other.reload(lambda _: False)
    one.change(ONE, lambda record: attrs.evolve(record, properties={"a": "b"}), ignored)
    shared.written()
    assert {ONE: {"a": "b"}} == {key: each.properties for key, each in other.reload(lambda _: False).items()}
    assert {} == other.reload(lambda _: False)  # nothing new


def test_a_node_does_not_take_back_what_it_has_not_written_yet(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    one, _ = shared.documents
    one.ensure(ONE)
    one.change(ONE, lambda record: attrs.evolve(record, properties={"new": "er"}), ignored)
    assert {} == one.reload(lambda _: True)
    assert {"new": "er"} == one.ensure(ONE).properties


def test_epochs_of_partitions_on_two_nodes_are_all_kept(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    one, other = shared.documents
    one.ensure(ONE)
    other.reload(lambda _: False)
    one.save_epoch(ONE, 0, 3, ignored)
    other.save_epoch(ONE, 1, 5, ignored)
    other.save_epoch(ONE, 1, 4, ignored)  # an older one
    shared.written()
    for nodes in (None, TwoNodes(tmp_path).nodes[0]):
        again = TopicDocuments(shared.catalogue, CatalogueWriter(shared.catalogue), nodes)
        again.load({ONE}.__contains__)
        assert {0: 3, 1: 5} == again.ensure(ONE).epochs
    one.forget(ONE)
    assert [] == list(shared.catalogue.load_documents(EPOCH_KIND))
