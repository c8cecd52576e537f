"""When a client may ask for its subscription, and when it may push."""

import uuid

from broker.errors import RequestError
from broker.kafka.client_telemetry import ClientInstance, subscribed
from broker.kafka.configs.client_metrics import Subscription
from protocol.kafka.errors import ErrorCode

INTERVAL_S = 10.0


def instance(*metrics: str) -> ClientInstance:
    return ClientInstance(uuid.UUID(int=7), {}, 1, metrics, int(INTERVAL_S * 1000))


def push(client: ClientInstance, now: float, *, wrong: bool = False, terminating: bool = False) -> int:
    try:
        client.push(now, client.subscription_id + wrong, terminating=terminating)
    except RequestError as error:
        client.last_error = error.code
        return error.code
    return ErrorCode.none


def ask(client: ClientInstance, now: float) -> int:
    try:
        client.ask(now)
    except RequestError as error:
        return error.code
    return ErrorCode.none


def test_client_may_push_after_asking_then_every_interval() -> None:
    client = instance()
    assert ask(client, 100) == ErrorCode.none
    assert push(client, 101) == ErrorCode.none
    assert push(client, 110.9) == ErrorCode.throttling_quota_exceeded
    assert push(client, 111) == ErrorCode.none


def test_a_client_may_ask_once_in_an_interval() -> None:
    client = instance()
    assert ask(client, 100) == ErrorCode.none
    assert ask(client, 109.9) == ErrorCode.throttling_quota_exceeded
    assert ask(client, 110) == ErrorCode.none
    assert push(client, 115) == ErrorCode.none
    assert ask(client, 124.9) == ErrorCode.throttling_quota_exceeded


def test_push_for_another_subscription_permits_asking_at_once() -> None:
    client = instance()
    assert ask(client, 100) == ErrorCode.none
    assert push(client, 101, wrong=True) == ErrorCode.unknown_subscription_id
    assert ask(client, 101) == ErrorCode.none
    assert ask(client, 101) == ErrorCode.throttling_quota_exceeded


def test_terminating_client_may_push_early_once() -> None:
    client = instance()
    assert push(client, 100) == ErrorCode.none
    assert push(client, 101, terminating=True) == ErrorCode.none
    assert push(client, 200) == ErrorCode.invalid_request


def test_client_is_remembered_three_intervals_or_a_minute() -> None:
    client = instance()
    client.seen_at = 100
    assert client.expires_at == 160
    client.interval_ms = 60_000
    assert client.expires_at == 280


def test_subscription_id_depends_on_metrics_and_interval() -> None:
    ids = {instance().subscription_id, instance("a").subscription_id, instance("a", "b").subscription_id}
    other = instance("a")
    other.interval_ms += 1
    assert len(ids | {other.subscription_id}) == 4
    assert all(-(1 << 31) <= each < 1 << 31 for each in ids)
    assert instance("a").subscription_id == instance("a").subscription_id


def test_metrics_are_matched_by_prefixes() -> None:
    assert instance("org.apache.", "x").is_subscribed_to("org.apache.kafka")
    assert not instance("org.apache.").is_subscribed_to("org")
    assert instance("*").is_subscribed_to("anything")
    assert not instance().is_subscribed_to("anything")


def test_client_gets_the_union_of_its_subscriptions() -> None:
    java = (("client_software_name", "java".__eq__),)
    subscriptions = [
        Subscription(("b", "a"), 5_000, ()),
        Subscription(("c", "a"), 2_000, java),
        Subscription(("*",), 1_000, (*java, ("client_id", "x".__eq__))),
    ]
    assert subscribed(subscriptions, {"client_software_name": "go", "client_id": "x"}) == (("a", "b"), 5_000)
    assert subscribed(subscriptions, {"client_software_name": "java", "client_id": ""}) == (("a", "b", "c"), 2_000)
    assert subscribed(subscriptions, {"client_software_name": "java", "client_id": "x"}) == (("*",), 1_000)
    assert subscribed([], {}) == ((), 300_000)
    assert subscribed([Subscription(("a",), 3_600_000, ())], {}) == (("a",), 300_000)
