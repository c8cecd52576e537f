"""PushTelemetry (72): the metrics of a client, which become series of ``/metrics`` (KIP-714). As in Kafka, it needs no right.

Tests: tests/kafka/handlers/test_telemetry.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.kafka.handlers.get_telemetry_subscriptions import facts_of
from broker.network.work import INSPECTION
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    body = call.body
    context.telemetry.push(
        body.client_instance_id,
        facts_of(call),
        body.subscription_id,
        body.compression_type,
        body.metrics,
        terminating=body.terminating,
    )
    return {"error_code": ErrorCode.none}


API = Api(
    key=ApiKey.PUSH_TELEMETRY,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=error_alone,
    lane=INSPECTION,
    condition="while there are subscriptions",
)
