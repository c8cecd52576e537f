import uuid

import pytest

from broker.errors import StorageError
from broker.metadata.writer import CatalogueWriter
from broker.pulsar.topics.registry import KIND, TopicDocuments, decode, encode
from broker.pulsar.topics.topic import TopicRecord
from tests.pulsar.subscriptions.stage import FaultyCatalogue
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
