"""GetTelemetrySubscriptions (71): which metrics a client should push, and how often (KIP-714). As in Kafka, it needs no right.

``facts_of`` gives the facts about a client that subscriptions may match (``configs.client_metrics.FACTS``), from the connection
of its request, on any thread.

Tests: tests/kafka/handlers/test_telemetry.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.checks import error_alone
from broker.kafka.client_telemetry import CODECS
from broker.kafka.context import KafkaContext
from broker.kafka.kafka_session import KafkaSession
from broker.network.work import ADMIN
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Kafka's value for a client that did not name its software.
_UNKNOWN = "unknown"
# Remembered characters of a client id.
_CLIENT_ID_MAX = 200


def facts_of(call: Call) -> dict[str, str]:
    """The facts but for the client instance id."""
    session = call.connection.session
    assert isinstance(session, KafkaSession)
    software = session.client_software
    name, version = (_UNKNOWN, _UNKNOWN) if software is None else software
    return {
        "client_id": (call.client_id or "")[:_CLIENT_ID_MAX],
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": call.peer.host,
        "client_source_port": str(call.peer.port),
    }


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
