"""What this node asks the other nodes about transactions: a thread for each of them, with a connection and a queue.

- *Questions*: the node that coordinates a transactional id says whether a producer may append to a partition, or commit offsets
  of a group, in its transaction (AddPartitionsToTxn 5, to verify or to add).
- *Decisions*: the nodes that have the partitions write the markers, and those that coordinate the groups end the transaction in
  them (WriteTxnMarkers). A group stands in the place of a topic there, with the partition ``GROUP``: so what takes part does
  not depend on the number of nodes.

What waits for a node goes out in one request of each kind. If a node does not answer, its outcome is unknown: a question has no
answer, and a decision's partitions have failed. Whoever has asked tells clients to try again, or sends the decision again; both
requests may be handled any number of times. The queue is bounded, and what has waited while a node did not answer fails with it.

``Neighbours`` may be called from any thread; the results come on the neighbour's thread, or the caller's.

Tests: tests/kafka/transactions/test_neighbours.py, tests/process/test_nodes_transactions.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from broker.cluster.nodes import Link, Nodes
from broker.errors import BrokerError
from broker.kafka.transactions.marker_writer import Markers, MarkerWriter
from broker.kafka.transactions.transaction import GROUP, Claim, Partition
from broker.log import get_logger
from broker.runtime.threads import Lock
from broker.runtime.worker import Inbox
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

T = TypeVar("T")

log = get_logger("transactions")

# What may wait for a node. Each question is a parked request of a client, each decision a transaction that has ended.
QUEUE_MAX = 20_000
# What goes out together. A request about more would be answered late.
_TOGETHER_MAX = 500
# Characters of all names in a request, if there is more than one: far less than a request may have.
_NAMES_MAX = 100_000
# Kafka's longest string. Some versions of requests can carry more.
NAME_MAX = 32_767
# Partitions of a request with decisions, as many as its handler takes.
PARTITIONS_MAX = 1000
_QUESTIONS_VERSION = 5
_DECISIONS_VERSION = 1

# The answer's error codes, by participant; None: there is no answer, and the outcome is unknown.
Answer = Mapping[Partition, ErrorCode] | None


@attrs.frozen(eq=False)
class Question:
    transactional_id: str
    claim: Claim
    participants: Sequence[Partition]
    adds: bool
    done: Callable[[Answer], None]


@attrs.frozen(eq=False)
class Decision:
    """``done`` gets the errors of those that have no marker, as far as is known."""

    producer_id: int
    epoch: int
    commit: bool
    participants: Sequence[Partition]
    done: Callable[[Mapping[Partition, ErrorCode]], None]


_Item = Question | Decision

# The error of a participant whose node has not answered: it may have a marker or not.
UNKNOWN = ErrorCode.broker_not_available


class Neighbours:
    """The other nodes, and ``write`` for decisions about partitions of any node."""

    def __init__(self, nodes: Nodes, own: MarkerWriter, topic_exists: Callable[[str], bool]) -> None:
        """``topic_exists``: as far as this node knows."""
        self._nodes = nodes
        self._own = own
        self.by_place = {
            place: Neighbour(nodes, place, topic_exists) for place in range(nodes.count) if place != nodes.place
        }

    def ask(self, place: int, item: Question | Decision) -> None:
        self.by_place[place].submit(item)

    def write(self, markers: Markers) -> None:
        """As ``MarkerWriter.write``, for partitions and groups of all nodes."""
        nodes = self._nodes
        by_place: dict[int, list[Partition]] = {}
        for key in sorted(markers.partitions):
            place = nodes.place_of(key[0]) if key[1] == GROUP else nodes.place_of_owner(*key)
            by_place.setdefault(place, []).append(key)
        own = by_place.pop(nodes.place, [])
        # With no partitions at all, too: the marker writer's thread says that it is done.
        asks_own = bool(own) or not by_place
        collected = _Collected(len(by_place) + asks_own, markers.done)
        for place, participants in by_place.items():
            decision = Decision(markers.producer_id, markers.epoch, markers.commit, participants, collected.add)
            self.by_place[place].submit(decision)
        if asks_own:
            self._own.write(attrs.evolve(markers, partitions=frozenset(own), done=collected.add))

    def shut_down(self) -> None:
        for neighbour in self.by_place.values():
            neighbour.shut_down()


class _Collected:
    """The failures of all nodes, when the last of them has answered."""

    def __init__(self, left: int, done: Callable[[frozenset[Partition]], None]) -> None:
        self._left = left
        self._done = done
        self._failed: frozenset[Partition] = frozenset()
        self._lock = Lock()

    def add(self, failed: Iterable[Partition]) -> None:
        with self._lock:
            self._failed |= frozenset(failed)
            self._left -= 1
            if self._left:
                return
        self._done(self._failed)


class Neighbour:
    """The body of a thread that asks one other node. Any thread may call ``submit``."""

    def __init__(self, nodes: Nodes, place: int, topic_exists: Callable[[str], bool]) -> None:
        self._nodes = nodes
        self._place = place
        self._topic_exists = topic_exists
        self._inbox: Inbox[_Item] = Inbox()
        self._link: Link | None = None
        self._address: tuple[str, int] | None = None
        self._stopping = False
        self._complained = False

    def submit(self, item: _Item) -> None:
        """A question may be answered at once, a decision only on the neighbour's thread: whoever submits it holds a lock that its
        ``done`` takes. A decision is here once, as it is sent again only when it has failed."""
        is_refused = self._stopping or len(self._inbox) >= QUEUE_MAX or _longest(item) > NAME_MAX
        if is_refused and isinstance(item, Question):
            _fail([item])
        else:
            self._inbox.put(item)

    def step(self, timeout: float | None) -> bool:
        try:
            return self._step(timeout)
        finally:
            if self._stopping:
                self._close()

    def _step(self, timeout: float | None) -> bool:
        items = self._inbox.take_all(timeout, _TOGETHER_MAX)
        if not items:
            return False
        if self._stopping:
            _fail(items)
            return True
        questions = [item for item in items if isinstance(item, Question)]
        decisions = []
        for item in items:
            if isinstance(item, Decision):
                if _longest(item) > NAME_MAX:
                    _fail([item])
                else:
                    decisions.append(item)
        for together in _within(questions, _names_size):
            self._ask(together)
        for part in _parts(decisions):
            self._decide(part)
        return True

    def wakeup(self) -> None:
        self._inbox.wakeup()

    def shut_down(self) -> None:
        """Whoever waits gets no answer, now or when the present request is over."""
        self._stopping = True
        self._inbox.wakeup()

    # Requests -------------------------------------------------------------------------------------------------------

    def _ask(self, questions: list[Question]) -> None:
        asked = [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.claim.producer_id,
                "producer_epoch": each.claim.epoch,
                "verify_only": not each.adds,
                "topics": [
                    {"name": name, "partitions": numbers} for name, numbers in _by_name(each.participants).items()
                ],
            }
            for each in questions
        ]
        answers: list[Answer] = [None] * len(questions)
        answer = self._exchange(ApiKey.ADD_PARTITIONS_TO_TXN, _QUESTIONS_VERSION, {"transactions": asked})
        if answer is not None and not answer.error_code:
            results = answer.results_by_transaction
            if [each.transactional_id for each in results] == [each.transactional_id for each in questions]:
                answers = [_errors_of_question(each) for each in results]
        for question, errors in zip(questions, answers, strict=True):
            question.done(errors)

    def _decide(self, part: "list[tuple[Decision, _Progress, Sequence[Partition]]]") -> None:
        markers = [
            {
                "producer_id": decision.producer_id,
                "producer_epoch": decision.epoch,
                "transaction_result": decision.commit,
                "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in _by_name(keys).items()],
                "coordinator_epoch": self._nodes.epoch,
            }
            for decision, _, keys in part
        ]
        answer = self._exchange(ApiKey.WRITE_TXN_MARKERS, _DECISIONS_VERSION, {"markers": markers})
        results: Iterable[Any] = [None] * len(part)
        if answer is not None and len(answer.markers) == len(part):
            results = answer.markers
        for (_, progress, keys), result in zip(part, results, strict=True):
            errors = {} if result is None else _errors_of_decision(result)
            failed = {key: errors.get(key, UNKNOWN) for key in keys if not self._is_done(key, errors.get(key))}
            if failed:
                self._close()  # the node may take this connection for one that was given up: the next try has a later one
            progress.add(failed)

    def _is_done(self, key: Partition, error: ErrorCode | None) -> bool:
        """A partition that its node does not know counts as deleted only if this node does not know the topic either."""
        if error == ErrorCode.unknown_topic_or_partition:
            return not self._topic_exists(key[0])
        return error == ErrorCode.none

    def _exchange(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The answer, or None. A connection that was not used for a while may have ended: then by another one, once."""
        for _ in range(2):
            was_open = self._link is not None
            try:
                link = self._open()
                if link is None:
                    break
                answer = link.ask(key, version, fields)
                self._complained = False
                return answer
            except BrokerError as error:
                self._close()
                if not was_open:
                    self._complain(error)
                    break
        # What has waited meanwhile would wait as long again.
        waiting = len(self._inbox)
        if waiting:
            _fail(self._inbox.take_all(0, waiting))
        return None

    def _open(self) -> Link | None:
        address = self._nodes.address(self._place)
        if self._link is not None and self._address == address:
            return self._link
        self._close()
        found = self._nodes.link(self._place)
        if found is None:
            return None
        self._address, link = found
        link.open()
        self._link = link
        return link

    def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _complain(self, error: BrokerError) -> None:
        """Once, until the node answers again."""
        if not self._complained:
            self._complained = True
            log.warning("node_does_not_answer", node=self._nodes.first_id + self._place, error=str(error))


class _Progress:
    """Counts the requests that a decision takes."""

    def __init__(self, decision: Decision, left: int) -> None:
        self._decision = decision
        self._left = left
        self._errors: dict[Partition, ErrorCode] = {}

    def add(self, errors: Mapping[Partition, ErrorCode]) -> None:
        self._errors.update(errors)
        self._left -= 1
        if not self._left:
            self._decision.done(self._errors)


def _parts(decisions: Iterable[Decision]) -> Iterator[list[tuple[Decision, _Progress, Sequence[Partition]]]]:
    """The same decisions, in requests of ``PARTITIONS_MAX`` partitions at most."""
    part: list[tuple[Decision, _Progress, Sequence[Partition]]] = []
    room = PARTITIONS_MAX
    names_room = _NAMES_MAX
    for decision in decisions:
        pieces = [
            piece
            for names in _within(decision.participants, lambda key: len(key[0]))
            for piece in (names[start : start + PARTITIONS_MAX] for start in range(0, len(names), PARTITIONS_MAX))
        ]
        progress = _Progress(decision, len(pieces))
        for piece in pieces:
            size = sum(len(name) for name, _ in piece)
            if part and (len(piece) > room or size > names_room):
                yield part
                part, room, names_room = [], PARTITIONS_MAX, _NAMES_MAX
            part.append((decision, progress, piece))
            room -= len(piece)
            names_room -= size
    if part:
        yield part


def _within(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The same items, in lists whose sizes are ``_NAMES_MAX`` together, or of one item."""
    together: list[T] = []
    room = _NAMES_MAX
    for item in items:
        if together and size(item) > room:
            yield together
            together, room = [], _NAMES_MAX
        together.append(item)
        room -= size(item)
    if together:
        yield together


def _names_size(question: Question) -> int:
    return len(question.transactional_id) + sum(len(name) for name, _ in question.participants)


def _longest(item: _Item) -> int:
    own = len(item.transactional_id) if isinstance(item, Question) else 0
    return max([own, *(len(name) for name, _ in item.participants)])


def _fail(items: Iterable[_Item]) -> None:
    for item in items:
        if isinstance(item, Question):
            item.done(None)
        else:
            item.done(dict.fromkeys(item.participants, UNKNOWN))


def _by_name(participants: Iterable[Partition]) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for name, number in participants:
        names.setdefault(name, []).append(number)
    return names


def _errors_of_question(result: Any) -> Mapping[Partition, ErrorCode]:
    return {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }


def _errors_of_decision(result: Any) -> Mapping[Partition, ErrorCode]:
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in result.topics
        for each in topic.partitions
    }
