"""Share groups over two nodes: one has the group, the other its partitions. They have nothing in common but the catalogue."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.cluster.nodes import ORDERS, Nodes
from broker.errors import RequestError
from broker.kafka.groups.share.values import NewPartitions
from broker.kafka.share.other_nodes import UNBEGUN, OtherNodes
from broker.kafka.share.partition_entry import ignore
from broker.kafka.share.share_service import ShareService
from broker.kafka.share.share_store import KIND, Key, delete_now
from broker.metadata.writer import CatalogueWriter
from broker.runtime.threads import run_aside
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from tests.kafka.share.stage import EARLIEST, Catalogue, Connected, Stage, StageMember
from tests.waiting import wait_for

COUNT = 2


class Part:
    """What a node sees of the logs: all topics, and its own partitions."""

    def __init__(self, logs: Any, nodes: Nodes) -> None:
        self._logs = logs
        self.nodes = nodes

    @property
    def topics_by_id(self) -> Any:
        return self._logs.topics_by_id

    @property
    def partitions_by_id(self) -> Any:
        return {
            key: log
            for key, log in self._logs.partitions_by_id.items()
            if self.nodes.has_partition(log.topic, log.partition)
        }


class Node:
    def __init__(self, stage: Stage, place: int) -> None:
        self.stage = stage
        self.nodes = Nodes(place, COUNT, 1, "", None, None)  # type: ignore[arg-type]
        self.numbers = itertools.count(1)
        self.start()

    def start(self) -> None:
        """As after kill -9."""
        catalogue: Any = Catalogue(self.stage.tables)
        catalogue.topics = lambda: list(self.stage.logs.topics())
        catalogue.add_documents = catalogue.inner.add_documents
        catalogue.delete_documents = catalogue.inner.delete_documents
        catalogue.delete_other_documents = catalogue.inner.delete_other_documents
        self.catalogue = catalogue
        self.writer = CatalogueWriter(catalogue)
        self.share = ShareService(
            Part(self.stage.logs, self.nodes),  # type: ignore[arg-type]
            self.stage.clock,
            self.stage.timer,
            catalogue,
            self.writer,
            lambda _: self.stage.settings,
            others=OtherNodes(self.nodes, catalogue, self.stage.clock),
        )
        # As ``Topics`` of the catalogue has them: with the id as a UUID.
        self.share.open()

    def carry_out(self) -> None:
        """What the watch does when it hears of orders; the writer runs beside it."""
        done: list[bool] = []

        def run() -> None:
            self.share.carry_out_orders()
            done.append(True)

        run_aside("watch", run)

        def finished() -> bool:
            self.writer.flush()
            return bool(done)

        wait_for(finished)

    def fetch(self, group: str, partition: int) -> list[tuple[int, int, int]]:
        """What a new member gets. Raises RequestError."""
        return self.member(group, partition).fetch()

    def member(self, group: str, partition: int) -> "Member":
        return Member(self, group, partition)


class Member:
    def __init__(self, node: Node, group: str, partition: int) -> None:
        self.node = node
        member = StageMember.__new__(StageMember)
        member.stage, member.name, member.group = node, f"m{next(node.numbers)}", group  # type: ignore[assignment]
        member.connection = Connected()
        member.session = node.share.open_session(group, member.name, member.connection)
        key = node.stage.topic_id.bytes, partition
        assert node.share.add(member.session, key)
        failures = node.share.begin(member.session.unbegun, node.stage.settings)
        member.session.unbegun.clear()
        self.member, self.key = member, key
        for failure in failures.values():
            self.leave()
            raise failure

    def fetch(self) -> list[tuple[int, int, int]]:
        stage = self.member.stage
        self.member.stage = self.node.stage
        try:
            return self.member.fetch()
        finally:
            self.member.stage = stage

    def accept(self, first: int, last: int) -> None:
        """Acknowledge these, and wait until that is durable."""
        entry = self.node.share.entry(self.member.group, self.key)
        assert entry is not None
        answers: list[Any] = []
        batch = AcknowledgementBatch(first, last, b"\1")
        assert entry.acknowledge(self.member.name, [batch], answers.append, may_renew=False)
        self.node.writer.flush()
        assert [None] == answers

    def leave(self) -> None:
        self.node.share.close_session(self.member.session)
        self.node.writer.flush()


class Two:
    """``coordinator`` has ``group``, and ``owner`` its partition ``theirs``."""

    def __init__(self, directory: Path) -> None:
        self.stage = Stage(directory)
        self.group = "group"
        self.places = [Node(self.stage, place) for place in range(COUNT)]
        [self.coordinator] = [node for node in self.places if node.nodes.coordinates(self.group)]
        [self.owner] = [node for node in self.places if node is not self.coordinator]
        [self.theirs] = [number for number in range(2) if self.owner.nodes.has_partition("topic", number)]
        self.key = Key(self.group, self.stage.topic_id.bytes, self.theirs)

    def initialise(self) -> None:
        answers: list[Any] = []
        self.coordinator.share.initialise(
            self.group, [NewPartitions("topic", self.stage.topic_id, 0, 2)], answers.append
        )
        self.coordinator.writer.flush()
        assert [None] == answers

    def reset(self, offset: int) -> None:
        self.coordinator.share.reset_elsewhere(self.group, {self.key[1:]: offset})

    def forget(self) -> None:
        answers: list[Any] = []
        self.coordinator.share.forget(self.group, None, answers.append)
        self.coordinator.writer.flush()
        assert [None] == answers

    def row(self) -> bytes | None:
        return self.stage.tables.documents.get((KIND, self.key.text))

    def orders(self) -> int:
        return sum(kind == ORDERS for kind, _ in self.stage.tables.documents)


@pytest.fixture
def two(tmp_path: Path) -> Any:
    made = Two(tmp_path)
    yield made
    made.stage.storage.stop()


def test_a_request_about_many_partitions_asks_the_catalogue_once(two: Two) -> None:
    share, questions = two.owner.share, []
    load = two.owner.catalogue.load_documents

    def counted(kind: str, prefix: str = "") -> Any:
        questions.append(prefix)
        return load(kind, prefix)

    two.owner.catalogue.load_documents = counted
    topic_id = two.stage.logs.create_topic("more", 6).topic_id.bytes
    session = share.open_session(two.group, "stranger", Connected())
    added = [share.add(session, (topic_id, number)) for number in range(6)]
    failures = share.begin(session.unbegun, two.stage.settings)
    assert 3 == added.count(True) == len(failures)
    assert [f"{two.group}\0"] == questions
    share.close_session(session)
    two.owner.writer.flush()


def test_group_begins_where_its_owner_says_when_its_coordinator_has_assigned_it(two: Two) -> None:
    two.stage.write(3, two.theirs)
    with pytest.raises(RequestError) as refused:
        two.owner.fetch(two.group, two.theirs)
    assert ErrorCode.unknown_topic_or_partition == refused.value.code
    two.initialise()
    assert UNBEGUN == two.row()
    assert [(0, 2, 1)] == two.owner.fetch(two.group, two.theirs)
    two.initialise()  # another member comes
    assert UNBEGUN != two.row()


def test_coordinator_sees_offsets_as_they_are_stored(two: Two) -> None:
    two.stage.write(3, two.theirs)
    two.initialise()
    assert {("topic", 1 - two.theirs)} == two.coordinator.share.offsets(two.group).keys()
    member = two.owner.member(two.group, two.theirs)
    member.fetch()
    member.accept(0, 1)
    assert (2, -1) == two.coordinator.share.offsets(two.group)["topic", two.theirs]


def test_owner_hears_of_offsets_that_were_set(two: Two) -> None:
    two.stage.write(5, two.theirs)
    two.initialise()
    member = two.owner.member(two.group, two.theirs)
    member.fetch()
    member.accept(0, 4)
    member.leave()
    two.reset(1)
    two.owner.carry_out()
    assert 0 == two.orders()
    assert [(1, 4, 1)] == two.owner.fetch(two.group, two.theirs)


def test_owner_that_was_not_there_finds_its_orders(two: Two) -> None:
    two.stage.write(5, two.theirs)
    two.reset(3)
    assert 1 == two.orders()
    two.owner.start()
    two.owner.carry_out()
    assert [(3, 4, 1)] == two.owner.fetch(two.group, two.theirs)


def test_group_that_begins_anew_before_the_owner_has_forgotten_it_can_go_on(two: Two) -> None:
    two.stage.write(2, two.theirs)
    two.initialise()
    member = two.owner.member(two.group, two.theirs)
    member.fetch()
    member.accept(0, 1)
    member.leave()
    two.forget()
    assert two.row() is None
    two.initialise()
    two.owner.carry_out()
    assert UNBEGUN == two.row()
    assert [(0, 1, 1)] == two.owner.fetch(two.group, two.theirs)


def test_deleted_group_leaves_nothing(two: Two) -> None:
    two.stage.write(2, two.theirs)
    two.initialise()
    two.owner.fetch(two.group, two.theirs)
    two.forget()
    two.owner.carry_out()
    two.owner.writer.flush()
    assert [] == [key for key in two.stage.tables.documents if key[0] in (KIND, ORDERS)]
    with pytest.raises(RequestError):
        two.owner.fetch(two.group, two.theirs)


def test_one_node_alone_has_no_use_for_rows_without_an_offset(two: Two) -> None:
    two.initialise()
    two.stage.start()  # one broker, with all partitions
    assert UNBEGUN not in two.stage.tables.documents.values()
    delete_now(two.coordinator.catalogue, [])
    two.stage.share.forget(two.group, None, ignore)


class Orders(RuleBasedStateMachine):
    """Whatever the coordinator does and whenever the owner hears of it: what was acknowledged does not come again, and what was
    not does, unless an administrator wants it otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.two = Two(Path(self._directory.name))
        self.two.stage.settings = attrs.evolve(EARLIEST, delivery_count_limit=1000)
        self.written = 0
        self.may_fetch = False  # the group has been given the partition
        self.ready: set[int] | None = None  # what has to come; None: it has not begun
        self.orders: list[int | None] = []  # not heard of yet: offsets that were set; None: forgotten

    def teardown(self) -> None:
        self.two.stage.storage.stop()
        self._directory.cleanup()

    @initialize()
    def begin(self) -> None:
        self.write(3)

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        self.two.stage.write(count, self.two.theirs)
        new = range(self.written, self.written + count)
        if self.ready is not None:
            self.ready.update(new)
        self.written += count

    @rule()
    def assign(self) -> None:
        self.two.initialise()
        self.may_fetch = True

    @rule(offset=st.integers(0, 12))
    def set_offset(self, offset: int) -> None:
        self.two.reset(offset)
        self.may_fetch = True
        self.orders.append(offset)

    @rule()
    def forget(self) -> None:
        self.two.forget()
        self.may_fetch = False
        self.orders.append(None)

    @rule()
    def hear(self) -> None:
        self.two.owner.carry_out()
        for order in self.orders:
            if order is None:
                self.ready = None
            else:
                self.ready = set(range(min(order, self.written), self.written))
        self.orders.clear()
        assert 0 == self.two.orders()

    @rule(accepted=st.integers(0, 3))
    def fetch(self, accepted: int) -> None:
        """A member takes what there is, accepts some, and leaves. The group is empty while an administrator works, so it comes
        only when all orders were heard of."""
        if self.orders:
            return
        if not self.may_fetch:
            with pytest.raises(RequestError):
                self.two.owner.member(self.two.group, self.two.theirs)
            return
        if self.ready is None:
            self.ready = set(range(self.written))
        member = self.two.owner.member(self.two.group, self.two.theirs)
        came = [offset for first, last, _ in member.fetch() for offset in range(first, last + 1)]
        first_run = sorted(self.ready)
        assert first_run[: len(came)] == came
        assert bool(first_run) == bool(came)
        for offset in came[:accepted]:
            member.accept(offset, offset)
            self.ready.discard(offset)
        member.leave()

    @rule()
    def kill_the_owner(self) -> None:
        self.two.owner.start()

    @rule()
    def kill_the_coordinator(self) -> None:
        self.two.coordinator.start()

    @invariant()
    def rows_are_of_what_there_is(self) -> None:
        if not self.orders:
            assert self.may_fetch == (self.two.row() is not None)


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
