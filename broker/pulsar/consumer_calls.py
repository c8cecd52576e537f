"""Helpers shared by the handlers of consumer commands.

Tests: tests/pulsar/subscriptions/test_consuming.py.
"""

from collections.abc import Callable
from typing import ParamSpec

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.pulsar.command import Call
from broker.pulsar.context import PulsarContext
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.refusals import AuthorizationError, ConsumerNotFound, NotAllowed
from broker.pulsar.rights import may_consume
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.subscription import Subscription

log = get_logger("pulsar")
P = ParamSpec("P")


def find_consumer(call: Call, consumer_id: int) -> ConnectedConsumer | None:
    """The connection's consumer with this number."""
    connected = call.state.consumers.get(consumer_id)
    assert connected is None or isinstance(connected, ConnectedConsumer)
    return connected


def find_entitled(call: Call, consumer_id: int) -> ConnectedConsumer | None:
    """The same, if it may still consume. Otherwise it is closed; when its client subscribes again, that is refused."""
    connected = find_consumer(call, consumer_id)
    return None if connected is None or not _keep(call.context, connected) else connected


def consumer_of(call: Call) -> ConnectedConsumer:
    """The consumer that the command names. Raises ConsumerNotFound, and AuthorizationError if it may no longer consume."""
    connected = find_consumer(call, call.body.consumer_id)
    if connected is None:
        raise ConsumerNotFound(f"Consumer {call.body.consumer_id} not found")
    if not _keep(call.context, connected):
        raise AuthorizationError(f"Not authorized to consume {connected.subscription.topic.name} any more")
    return connected


def close_unentitled(context: PulsarContext) -> None:
    """Rights have changed: close the consumers that may no longer consume. Takes a few microseconds for each consumer."""
    if context.authorizer is None:
        return
    subscriptions: list[object] = []
    for topic in context.topics.loaded():
        subscriptions += list(topic.subscriptions.values())
    for passing in context.nonpersistent.loaded():
        subscriptions += list(passing.subscriptions.values())
    for subscription in subscriptions:
        assert isinstance(subscription, Subscription | NonPersistentSubscription)
        for connected in list(subscription.connected):
            _keep(context, connected)


def _keep(context: PulsarContext, connected: ConnectedConsumer) -> bool:
    subscription = connected.subscription
    if context.authorizer is None or may_consume(
        context, connected.connection.connection, subscription.topic, subscription.name
    ):
        return True
    connected.close()
    subscription.leave(connected)
    return False


def subscription_of(connected: ConnectedConsumer) -> Subscription:
    """Raises NotAllowed for non-persistent topics."""
    subscription = connected.subscription
    if not isinstance(subscription, Subscription):
        raise NotAllowed("Unsupported operation on non-persistent topic")
    return subscription


def answering(call: Call, work: Callable[P, None]) -> Callable[P, None]:
    """``work`` as the later part of a handler, on another thread: its errors are answered like errors of the handler."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(*args, **kwargs)
        except (Refusal, StorageError) as error:
            call.fail(error)
        except Exception as error:
            log.error("request_failed", exc_info=error)
            if not call.answered:
                call.close()

    return run


def success_when_saved(call: Call, error: StorageError | None) -> None:
    """On the thread that has written a cursor."""
    if error is None:
        call.success()
    else:
        call.fail(error)
