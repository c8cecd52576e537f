"""What a ``Routing`` remembers and when it asks again, on a real broker."""

import pytest

from broker.client.kafka import Cluster
from broker.client.kafka.errors import BrokerAnswerError, RetriableError, UnknownTopicError
from broker.client.kafka.routing import GROUP, Routing
from broker.runtime.clock import SystemClock
from protocol.kafka.errors import ErrorCode


@pytest.fixture
def routing(cluster: Cluster) -> Routing:
    cluster.make_topics(["orders"])
    return cluster.routing


def test_control_requests_to_a_broker_share_one_connection(routing: Routing) -> None:
    connection = routing.any_connection()
    assert connection is routing.any_connection()
    assert connection is routing.connection(routing.leader("orders", 0))
    assert [connection] == routing.every_broker()


def test_dial_opens_a_connection_for_the_caller(routing: Routing) -> None:
    address = routing.leader("orders", 0)
    connection = routing.dial(address)
    assert connection is not routing.connection(address)
    connection.close()
    assert routing.connection(address).is_open


def test_closed_routing_connects_again(routing: Routing) -> None:
    before = routing.any_connection()
    routing.close()
    assert not before.is_open
    assert routing.any_connection().is_open


def test_forgotten_leader_is_asked_for_again(routing: Routing) -> None:
    leader = routing.leader("orders", 0)
    routing.forget_leader("orders", 0)
    assert leader == routing.leader("orders", 0)
    routing.forget_leader("orders", 0)
    routing.learn_leaders([("orders", 0)])
    assert leader == routing.leader("orders", 0)


def test_missing_topic_has_no_leader(routing: Routing) -> None:
    with pytest.raises(RetriableError, match="There is no topic 'nothing'") as caught:
        routing.leader("nothing", 0)
    assert ErrorCode.unknown_topic_or_partition == caught.value.code
    with pytest.raises(RetriableError, match="no partition 99"):
        routing.leader("orders", 99)


def test_topic_counts_as_deleted_after_five_answers(routing: Routing) -> None:
    attempts = []

    def look() -> None:
        attempts.append(1)
        routing.leader("nothing", 0)

    with pytest.raises(UnknownTopicError, match="There is no topic 'nothing'"):
        routing.retrying(look)
    assert 5 == len(attempts)


def test_metadata_replaces_knowledge_of_a_topic(routing: Routing) -> None:
    assert {"orders"} == routing.refresh(["orders"]).keys()
    known = routing.known_topic("orders")
    assert known is not None
    assert routing.refresh(["orders"])["orders"] == known
    assert routing.known_topic("nothing") is None


def test_coordinator_is_asked_for_again_after_move(routing: Routing) -> None:
    connection = routing.coordinator(GROUP, "g")
    assert connection is routing.coordinator(GROUP, "g")
    with pytest.raises(RetriableError, match=r"No answer for the test: NOT_COORDINATOR \(16\)"):
        routing.check_coordinator_answer(ErrorCode.not_coordinator, "the test", GROUP, "g")
    assert (GROUP, "g") not in routing._coordinators
    assert connection is routing.coordinator(GROUP, "g")


def test_permanent_error_is_raised_as_such(routing: Routing) -> None:
    routing.check_coordinator_answer(ErrorCode.none, "the test", GROUP, "g")
    with pytest.raises(BrokerAnswerError, match="The broker refuses the test"):
        routing.check_coordinator_answer(ErrorCode.group_authorization_failed, "the test", GROUP, "g")


def test_unused_routing_needs_no_broker(cluster: Cluster) -> None:
    routing = Routing(cluster.config, SystemClock())
    assert routing.known_topic("orders") is None
    routing.close()
