"""What a subscription may ask of a client (``configs.client_metrics.FACTS``), from the connection of its request. Any thread.

Tests: tests/kafka/handlers/test_telemetry.py.
"""

from broker.kafka.api import Call
from broker.kafka.kafka_session import KafkaSession

# What Kafka takes a client for that did not say what software it is.
_UNKNOWN = "unknown"
# Characters of a client id that are remembered.
_CLIENT_ID_MAX = 200


def facts_of(call: Call) -> dict[str, str]:
    """Without the client instance id."""
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
