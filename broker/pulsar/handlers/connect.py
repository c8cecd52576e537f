"""CONNECT: the first command of every connection. The answer says which version both speak, and how large a message may be."""

from broker.pulsar.command import Call, Command, Type
from protocol.errors import ProtocolError
from protocol.pulsar.pulsar_pb2 import CommandConnected, FeatureFlags

# The newest version of the protocol that Pulsar's brokers have. Clients are told the smaller one of theirs and this.
PROTOCOL_VERSION = 21
SERVER_VERSION = "Pulsar Server"


def handle(call: Call) -> None:
    state, body = call.state, call.body
    if state.connected:
        raise ProtocolError("a second CONNECT")
    flags = body.feature_flags
    state.protocol_version = min(PROTOCOL_VERSION, body.protocol_version)
    state.client_version = body.client_version[:200]
    state.broker_entry_metadata = flags.supports_broker_entry_metadata
    state.auth_refresh = flags.supports_auth_refresh
    state.connected = True
    call.context.keep_alive.watch(state)
    call.reply(
        Type.CONNECTED,
        CommandConnected(
            server_version=SERVER_VERSION,
            protocol_version=state.protocol_version,
            max_message_size=call.context.config.pulsar_max_message_bytes,
            feature_flags=FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True),
        ),
    )


COMMAND = Command(Type.CONNECT, handle, before_connect=True)
