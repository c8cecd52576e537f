"""GetTelemetrySubscriptions (71): which metrics a client should push, and how often (KIP-714). As in Kafka, it needs no right.

Tests: tests/kafka/handlers/test_telemetry.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.kafka.telemetry.client_telemetry import CODECS
from broker.kafka.telemetry.facts import facts_of
from broker.network.work import ADMIN
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    instance = context.telemetry.ask(call.body.client_instance_id, facts_of(call))
    return {
        "error_code": ErrorCode.none,
        "client_instance_id": instance.instance_id,
        "subscription_id": instance.subscription_id,
        "accepted_compression_types": CODECS,
        "push_interval": instance.interval_ms,
        "telemetry_max_bytes": context.telemetry.max_bytes,
        "delta_temporality": False,
        "requested_metrics": instance.metrics,
    }


API = Api(
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=error_alone,
    lane=ADMIN,
    condition="while there are subscriptions",
)
