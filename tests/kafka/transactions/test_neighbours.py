"""The thread that asks another node, with a link that answers, or does not, as the test says."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from broker.cluster.nodes import Link
from broker.errors import BrokerError
from broker.kafka.transactions.neighbours import (
    NAME_MAX,
    PARTITIONS_MAX,
    QUEUE_MAX,
    UNKNOWN,
    Answer,
    Decision,
    Neighbour,
    Question,
)
from broker.kafka.transactions.transaction import GROUP, Claim, Partition
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


class Far:
    """The other node, in the place of ``Nodes``. ``loses``: so many requests get no answer."""

    first_id = 1
    epoch = 3

    def __init__(self) -> None:
        self.is_there = True
        self.loses = 0
        self.opened = self.closed = 0
        self.asked: list[tuple[ApiKey, Mapping[str, Any]]] = []
        self.errors: dict[Partition, ErrorCode] = {}

    def address(self, place: int) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if self.is_there else None

    def link(self, place: int) -> tuple[tuple[str, int], Link] | None:
        address = self.address(place)
        return None if address is None else (address, _Link(self))

    def answer(self, key: ApiKey, fields: Mapping[str, Any]) -> Any:
        self.asked.append((key, fields))
        if self.loses:
            self.loses -= 1
            raise BrokerError("lost")
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            results = [
                SimpleNamespace(
                    transactional_id=each["transactional_id"],
                    topic_results=[
                        SimpleNamespace(name=topic["name"], results_by_partition=self._each(topic, "partitions"))
                        for topic in each["topics"]
                    ],
                )
                for each in fields["transactions"]
            ]
            return SimpleNamespace(error_code=0, results_by_transaction=results)
        markers = [
            SimpleNamespace(
                topics=[
                    SimpleNamespace(name=topic["name"], partitions=self._each(topic, "partition_indexes"))
                    for topic in each["topics"]
                ]
            )
            for each in fields["markers"]
        ]
        return SimpleNamespace(markers=markers)

    def _each(self, topic: Mapping[str, Any], numbers: str) -> list[Any]:
        found = []
        for number in topic[numbers]:
            error = self.errors.get((topic["name"], number), ErrorCode.none)
            found.append(SimpleNamespace(partition_index=number, partition_error_code=error, error_code=error))
        return found


class _Link:
    def __init__(self, far: Far) -> None:
        self._far = far

    def open(self) -> None:
        self._far.opened += 1

    def ask(self, key: ApiKey, version: int, fields: Mapping[str, Any], /) -> Any:
        return self._far.answer(key, fields)

    def close(self) -> None:
        self._far.closed += 1


@pytest.fixture
def far() -> Far:
    return Far()


def neighbour(far: Far, topic_exists: Callable[[str], bool] = lambda _topic: True) -> Neighbour:
    return Neighbour(far, 1, topic_exists)  # type: ignore[arg-type]


def question(answers: list[Answer], name: str = "x", *participants: Partition, adds: bool = False) -> Question:
    return Question(name, Claim(7, 3), participants or [("t", 0)], adds, answers.append)


def decision(errors: list[Mapping[Partition, ErrorCode]], *participants: Partition) -> Decision:
    return Decision(7, 3, True, participants or [("t", 0)], errors.append)


def test_questions_that_wait_go_out_together_and_each_gets_its_answer(far: Far) -> None:
    body, answers, errors = neighbour(far), [], []  # type: ignore[var-annotated]
    far.errors = {("t", 1): ErrorCode.concurrent_transactions}
    body.submit(question(answers, "x", ("t", 0), ("t", 1)))
    body.submit(question(answers, "y", ("g", GROUP), adds=True))
    body.submit(decision(errors, ("t", 0), ("g", GROUP)))
    assert body.step(0)
    assert [{("t", 0): 0, ("t", 1): ErrorCode.concurrent_transactions}, {("g", GROUP): 0}] == answers
    assert [{}] == errors
    assert [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS] == [key for key, _ in far.asked]
    assert [True, False] == [each["verify_only"] for each in far.asked[0][1]["transactions"]]
    assert 1 == far.opened
    assert not body.step(0)


def test_a_connection_that_has_ended_meanwhile_is_replaced_once(far: Far) -> None:
    body, answers = neighbour(far), []  # type: ignore[var-annotated]
    body.submit(question(answers))
    body.step(0)
    far.loses = 1
    body.submit(question(answers))
    body.step(0)
    assert [{("t", 0): 0}] * 2 == answers
    assert 2 == far.opened
    far.loses = 2
    body.submit(question(answers))
    body.step(0)
    assert answers[2] is None


def test_what_waits_while_a_node_does_not_answer_fails_with_it(far: Far) -> None:
    body, answers, errors = neighbour(far), [], []  # type: ignore[var-annotated]

    def more(answer: Answer) -> None:
        answers.append(answer)

    far.loses = 1

    def ask_more(key: ApiKey, fields: Mapping[str, Any]) -> Any:
        body.submit(question(answers, "later"))
        body.submit(decision(errors))
        raise BrokerError("lost")

    far.answer = ask_more  # type: ignore[method-assign]
    body.submit(Question("x", Claim(7, 3), [("t", 0)], False, more))
    body.step(0)
    assert [None, None] == answers
    assert [{("t", 0): UNKNOWN}] == errors
    assert not body.step(0)


def test_a_decision_that_was_refused_is_sent_again_by_a_later_connection(far: Far) -> None:
    body, errors = neighbour(far), []  # type: ignore[var-annotated]
    far.errors = {("t", 0): ErrorCode.not_leader_or_follower}
    body.submit(decision(errors))
    body.step(0)
    far.errors = {}
    for _ in range(2):
        body.submit(decision(errors))
        body.step(0)
    assert [{("t", 0): ErrorCode.not_leader_or_follower}, {}, {}] == errors
    assert (2, 1) == (far.opened, far.closed)


def test_a_node_that_is_not_there_is_not_waited_for(far: Far) -> None:
    body, answers, errors = neighbour(far), [], []  # type: ignore[var-annotated]
    far.is_there = False
    body.submit(question(answers))
    body.submit(decision(errors))
    body.step(0)
    assert [None] == answers
    assert [{("t", 0): UNKNOWN}] == errors
    assert [] == far.asked


def test_a_decision_about_many_partitions_takes_several_requests(far: Far) -> None:
    body, errors = neighbour(far), []  # type: ignore[var-annotated]
    partitions = [("t", number) for number in range(2 * PARTITIONS_MAX + 1)]
    far.errors = {("t", 5): ErrorCode.kafka_storage_error, ("t", 2 * PARTITIONS_MAX): ErrorCode.not_leader_or_follower}
    body.submit(decision(errors, *partitions))
    body.submit(decision(errors, ("u", 0)))
    body.step(0)
    assert [far.errors, {}] == errors
    sizes = [
        sum(len(topic["partition_indexes"]) for each in fields["markers"] for topic in each["topics"])
        for _, fields in far.asked
    ]
    assert [PARTITIONS_MAX, PARTITIONS_MAX, 2] == sizes


@pytest.mark.parametrize("exists", [True, False])
def test_a_partition_counts_as_deleted_only_if_this_node_does_not_know_the_topic_either(far: Far, exists: bool) -> None:
    body, errors = neighbour(far, lambda _topic: exists), []  # type: ignore[var-annotated]
    far.errors = {("t", 0): ErrorCode.unknown_topic_or_partition}
    body.submit(decision(errors))
    body.step(0)
    assert [far.errors if exists else {}] == errors


def test_the_queue_is_bounded_and_after_the_end_nobody_waits(far: Far) -> None:
    body, answers = neighbour(far), []  # type: ignore[var-annotated]
    for _ in range(QUEUE_MAX):
        body.submit(question(answers))
    assert [] == answers
    body.submit(question(answers))
    assert [None] == answers
    body.shut_down()
    body.submit(question(answers))
    assert [None] * 2 == answers
    while body.step(0):
        pass
    assert [None] * (QUEUE_MAX + 2) == answers
    assert [] == far.asked


def test_a_decision_is_never_answered_on_the_thread_that_submits_it(far: Far) -> None:
    body, errors = neighbour(far), []  # type: ignore[var-annotated]
    body.submit(decision(errors, ("g" * (NAME_MAX + 1), GROUP)))
    body.shut_down()
    body.submit(decision(errors, ("t", 0)))
    assert [] == errors
    while body.step(0):
        pass
    assert 2 == len(errors)


def test_a_node_that_stops_closes_its_links(far: Far) -> None:
    body, answers = neighbour(far), []  # type: ignore[var-annotated]
    body.submit(question(answers))
    body.step(0)
    assert (1, 0) == (far.opened, far.closed)
    body.shut_down()
    body.step(0)
    assert (1, 1) == (far.opened, far.closed)


def test_long_names_go_out_in_several_requests_and_longer_ones_than_kafkas_not_at_all(far: Far) -> None:
    body, answers, errors = neighbour(far), [], []  # type: ignore[var-annotated]
    groups = [(f"{number}" * NAME_MAX, GROUP) for number in range(7)]
    for group in groups:
        body.submit(question(answers, "x", group))
    body.submit(decision(errors, *groups))
    body.submit(question(answers, "x", ("g" * (NAME_MAX + 1), GROUP)))
    assert [None] == answers
    body.step(0)
    assert [{group: 0} for group in groups] == answers[1:]
    assert [{}] == errors
    assert [3, 3, 1] == [len(fields["transactions"]) for _, fields in far.asked[:3]]
    assert [3, 3, 1] == [len(fields["markers"][0]["topics"]) for _, fields in far.asked[3:]]
