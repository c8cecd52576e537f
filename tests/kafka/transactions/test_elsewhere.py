"""Questions, guards and markers between two nodes, in any order, with losses and crashes: a read_committed consumer sees exactly
what was acknowledged in transactions that were committed."""

import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FIRST_VERSION
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.nodes_harness import COUNT, TwoNodes, Written, name_at
from tests.kafka.transactions.transaction_harness import Answer
from tests.storage.log.test_transactions import committed

PARTITIONS = 2


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoNodes]:
    nodes = TwoNodes(tmp_path)
    yield nodes
    nodes.close()


class Producer:
    """A client that does one thing after the other: writes, and when all of that is answered, ends its transaction.
    ``committed``: by partition, what it was told is stored in transactions that it was told are committed. ``doubtful``: the
    same of transactions of whose commit it was told nothing."""

    def __init__(self, two: TwoNodes, place: int, version: int) -> None:
        self.two = two
        self.place = place
        self.version = version
        self.name = name_at(place, "x")
        self.claim: Claim | None = None
        self.committed: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.doubtful: list[dict[int, list[bytes]]] = []
        self.commits = False
        self._number = 0
        self._forget()

    def _forget(self) -> None:
        self.stored: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        self.added: set[int] = set()
        self.asked: Answer | None = None
        self.what: Callable[[Answer], None] | None = None
        self.written: tuple[int, bytes, Written] | None = None

    @property
    def coordinator(self):  # type: ignore[no-untyped-def]
        return self.two.nodes[self.place].transactions

    def crashed(self, place: int) -> None:
        """The answers of this node do not come any more."""
        if self.asked is not None and place == self.place:
            self.start_again()
        if self.written is not None:
            owner = self.two.owner("t", self.written[0]).place
            if place == owner:
                self.start_again()

    def start_again(self) -> None:
        """As another instance, that fences this one."""
        if self.commits:
            self.doubtful.append(self.stored)
        self.claim, self.commits = None, False
        self._forget()

    def take_answers(self) -> None:
        if self.written is not None and self.written[2].error is not None:
            partition, value, answer = self.written
            self.written = None
            if answer.error == ErrorCode.none:
                self.stored[partition].append(value)
                self.sequences[partition] += 1
            elif answer.error not in (ErrorCode.not_enough_replicas, ErrorCode.concurrent_transactions):
                self.start_again()
        if self.asked is not None and not self.asked.is_awaited:
            asked, what = self.asked, self.what
            self.asked = self.what = None
            assert what is not None
            what(asked)

    def actions(self) -> list[Callable[[], None]]:
        if self.asked is not None or self.written is not None:
            return []
        if self.claim is None:
            return [self.init]
        found: list[Callable[[], None]] = [partial(self.write, number) for number in range(PARTITIONS)]
        if any(self.stored.values()):
            found += [partial(self.end, True), partial(self.end, True), partial(self.end, False)]
        return found

    def init(self) -> None:
        def taken(answer: Answer) -> None:
            error, producer_id, epoch = answer.given[0]
            if not error:
                self.claim = Claim(producer_id, epoch)

        self.asked, self.what = Answer(), taken
        self.coordinator.init(self.name, 60_000, None, self.asked)

    def write(self, partition: int) -> None:
        assert self.claim is not None
        if self.version < FIRST_VERSION and partition not in self.added:

            def added(answer: Answer) -> None:
                if answer.error == ErrorCode.none:
                    self.added.add(partition)
                elif answer.error != ErrorCode.concurrent_transactions:
                    self.start_again()

            self.asked, self.what = Answer(), added
            self.coordinator.add_partitions(self.name, self.claim, [("t", partition)], self.asked)
            return
        self._number += 1
        value = str(self._number).encode()
        node = self.two.owner("t", partition)
        sequence = self._sequence(partition)
        written = node.write(self.name, self.claim, "t", partition, value, sequence, self.version)
        self.written = (partition, value, written)

    def _sequence(self, partition: int) -> int:
        assert self.claim is not None
        known = self.two.owner("t", partition).log("t", partition).producers.get(self.claim.producer_id)
        return known.next_sequence if known is not None and known.epoch == self.claim.epoch else 0

    def end(self, commit: bool) -> None:
        assert self.claim is not None

        self.commits = commit

        def ended(answer: Answer) -> None:
            error, *rest = answer.given[0]
            self.commits = False
            if error == ErrorCode.concurrent_transactions:
                return
            if error:
                self.start_again()
                return
            if commit:
                for number, values in self.stored.items():
                    self.committed[number] += values
            if rest:
                self.claim = Claim(*rest)
            self._forget()

        self.asked, self.what = Answer(), ended
        if self.version < FIRST_VERSION:
            self.coordinator.end(self.name, self.claim, commit, self.asked)
        else:
            self.coordinator.version_2.end(self.name, self.claim, commit, self.asked)


def usual(two: TwoNodes, producer: Producer) -> list[Callable[[], object]]:
    """What may happen next."""
    found: list[Callable[[], object]] = list(producer.actions())
    for road in two.roads():
        if road.awaited is None:
            found += [road.send] * bool(road.waiting)
        elif not road.awaited.is_handled:
            found.append(partial(road.handle, road.awaited))
        elif road.awaited.answer is not None:
            found.append(road.answer)
    return [*found, two.run_timers]


def rare(two: TwoNodes, producer: Producer, crashes: bool) -> list[Callable[[], object]]:
    found: list[Callable[[], object]] = [producer.start_again]
    for road in two.roads():
        found += [partial(road.handle, late) for late in road.late if not late.is_handled]
        found += [road.lose] * (road.awaited is not None)
    if crashes:
        found += [partial(_crash, two, producer, place) for place in range(COUNT)]
    return found


def _crash(two: TwoNodes, producer: Producer, place: int) -> None:
    two.nodes[place].crash()
    producer.crashed(place)


def run(two: TwoNodes, producer: Producer, choices: list[int], crashes: bool) -> None:
    for choice in choices:
        possible = rare(two, producer, crashes) if choice % 7 == 0 else usual(two, producer)
        possible[(choice >> 5) % len(possible)]()
        for place, node in enumerate(two.nodes):  # its threads work, or are slow
            while choice >> 3 + place & 1 and node.turn():
                pass
        producer.take_answers()


def come_to_rest(two: TwoNodes, producer: Producer) -> None:
    """Everything arrives; the producer ends what it has begun, and late copies change nothing."""
    for _ in range(8):
        two.settle()
        producer.take_answers()
        two.run_timers()
    while producer.claim is None or any(producer.stored.values()):
        if producer.claim is None:
            producer.init()
        else:
            producer.end(False)
        for _ in range(3):
            two.settle()
            two.run_timers()
        producer.take_answers()
    for road in two.roads():
        for late in road.late:
            if not late.is_handled:
                road.handle(late)
    two.settle()


def begin(two: TwoNodes, name: str, *partitions: int) -> Claim:
    """A transaction that the first node coordinates, with these partitions."""
    asked = Answer()
    coordinator = two.nodes[0].transactions
    coordinator.init(name, 60_000, None, asked)
    two.settle()
    added = Answer()
    coordinator.add_partitions(name, asked.claim, [("t", number) for number in partitions], added)
    two.settle()
    assert ErrorCode.none == added.error
    return asked.claim


def far_partition(two: TwoNodes) -> int:
    """That of the second node."""
    return next(number for number in range(PARTITIONS) if two.owner("t", number) is two.nodes[1])


def test_an_answer_that_is_older_than_a_marker_allows_nothing(two: TwoNodes) -> None:
    name, far = name_at(0, "x"), far_partition(two)
    claim = begin(two, name, far)
    there, back = two.nodes[1].road, two.nodes[0].road
    written = two.nodes[1].write(name, claim, "t", far, b"v", 0, 9)
    there.send()
    assert there.awaited is not None
    there.handle(there.awaited)  # it takes part, says the coordinator
    two.nodes[0].transactions.time_out(name, Answer())
    while two.nodes[0].turn():
        pass
    back.send()
    assert back.awaited is not None
    back.handle(back.awaited)  # the marker
    while two.nodes[1].turn():
        pass
    there.answer()
    assert ErrorCode.not_enough_replicas == written.error
    log = two.nodes[1].log("t", far)
    assert 0 == len(log.producers.open)
    assert 0 == log.log_end_offset
    two.settle()
    again = two.nodes[1].write(name, claim, "t", far, b"v", 0, 9)
    two.settle()
    assert ErrorCode.invalid_producer_epoch == again.error


def test_a_late_copy_of_a_decision_does_not_end_the_next_transaction(two: TwoNodes) -> None:
    name, far = name_at(0, "x"), far_partition(two)
    claim = begin(two, name, far)
    node, road, coordinator = two.nodes[1], two.nodes[0].road, two.nodes[0].transactions
    written = node.write(name, claim, "t", far, b"1", 0, 9)
    two.settle()
    assert ErrorCode.none == written.error
    ended = Answer()
    coordinator.end(name, claim, True, ended)
    while two.nodes[0].turn():
        pass
    road.send()
    road.lose()
    [late] = road.late
    two.run_timers()
    two.settle()
    assert ErrorCode.none == ended.error
    added = Answer()
    coordinator.add_partitions(name, claim, [("t", far)], added)
    two.settle()
    assert ErrorCode.none == added.error
    written = node.write(name, claim, "t", far, b"2", 1, 9)
    two.settle()
    assert ErrorCode.none == written.error
    road.handle(late)
    two.settle()
    assert [claim.producer_id] == list(node.log("t", far).producers.open)
    coordinator.end(name, claim, False, Answer())
    two.settle()
    assert [b"1"] == committed(node.log("t", far))


def test_a_process_whose_node_another_one_has_decides_nothing_any_more(two: TwoNodes) -> None:
    name, far = name_at(0, "x"), far_partition(two)
    claim = begin(two, name, far)
    node, road, coordinator = two.nodes[1], two.nodes[0].road, two.nodes[0].transactions
    node.write(name, claim, "t", far, b"1", 0, 9)
    two.settle()
    coordinator.end(name, claim, True, Answer())
    while two.nodes[0].turn():
        pass
    road.send()
    road.lose()
    [late] = road.late
    two.nodes[0].nodes.epoch += 1  # from here on it is the process that has taken over
    two.run_timers()
    two.settle()
    coordinator.add_partitions(name, claim, [("t", far)], Answer())
    two.settle()
    node.write(name, claim, "t", far, b"2", 1, 9)
    two.settle()
    late.connection = road.connection + 1  # the earlier process has connected again
    road.handle(late)
    two.settle()
    assert [claim.producer_id] == list(node.log("t", far).producers.open)


def test_a_batch_that_comes_after_the_marker_is_asked_about_again(two: TwoNodes) -> None:
    name, far = name_at(0, "x"), far_partition(two)
    claim = begin(two, name, far)
    written = two.nodes[1].write(name, claim, "t", far, b"1", 0, 9)
    two.settle()
    assert ErrorCode.none == written.error
    two.nodes[0].transactions.end(name, claim, True, Answer())
    two.settle()
    late = two.nodes[1].write(name, claim, "t", far, b"2", 1, 9)
    assert late.error is None
    two.settle()
    assert ErrorCode.invalid_txn_state == late.error


def test_without_an_answer_the_producer_is_told_to_send_the_batch_again(two: TwoNodes) -> None:
    name, far = name_at(0, "x"), far_partition(two)
    claim = begin(two, name, far)
    written = two.nodes[1].write(name, claim, "t", far, b"1", 0, 9)
    two.nodes[1].road.send()
    two.nodes[1].road.lose()
    assert ErrorCode.not_enough_replicas == written.error
    written = two.nodes[1].write(name, claim, "t", far, b"1", 0, 9)
    two.settle()
    assert ErrorCode.none == written.error


def check(two: TwoNodes, producer: Producer) -> None:
    seen = {}
    for number in range(PARTITIONS):
        log = two.owner("t", number).log("t", number)
        assert not log.producers.open
        seen[number] = committed(log)
        assert producer.committed[number] == [value for value in seen[number] if value in producer.committed[number]]
    doubtful = {number: set(seen[number]) - set(producer.committed[number]) for number in range(PARTITIONS)}
    for stored in producer.doubtful:
        is_seen = {value in seen[number] for number, values in stored.items() for value in values}
        assert 1 == len(is_seen)  # all of it, or nothing
        for number, values in stored.items():
            doubtful[number] -= set(values)
    assert not any(doubtful.values())


@pytest.mark.parametrize("version", [9, FIRST_VERSION])
@pytest.mark.parametrize("crashes", [False, True])
@settings(max_examples=10, deadline=None)
@given(place=st.integers(0, COUNT - 1), seed=st.integers(0, 2**32))
def test_consumers_see_what_was_committed_whatever_is_lost(version: int, crashes: bool, place: int, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        two = TwoNodes(Path(directory))
        try:
            producer = Producer(two, place, version)
            run(two, producer, [chance.randrange(2**20) for _ in range(300)], crashes)
            come_to_rest(two, producer)
            check(two, producer)
        finally:
            two.close()
