"""ApiVersions: the APIs and versions that this broker serves. It is the first request of every client, and names the client's
software (KIP-511).
"""

from functools import partial

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.sasl_session import LoginEvent, LoginState, SaslSession
from broker.network.service import Outbox
from broker.security import security
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import api_versions

_MAX_VERSION = 4
_FIRST_WITH_SOFTWARE = 3


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    version = request.api_version
    session = request.connection.session
    assert isinstance(session, KafkaSession)
    if isinstance(session, SaslSession) and session.logging_in:  # too late, as in Kafka
        answered = version if 0 <= version <= _MAX_VERSION else 0
        error = api_versions.response(request.correlation_id, answered, ErrorCode.illegal_sasl_state, {})
        outbox.send(request, [error])
        outbox.close(request)
        return
    if not 0 <= version <= _MAX_VERSION:
        # The client is newer than this broker. Every client understands version 0, which tells it a version to try.
        own = {int(ApiKey.API_VERSIONS): context.api_ranges[ApiKey.API_VERSIONS]}
        outbox.send(request, [api_versions.response(request.correlation_id, 0, ErrorCode.unsupported_version, own)])
        return
    software = api_versions.parse_request(request.frame, version, request.body_offset)
    if version >= _FIRST_WITH_SOFTWARE and not security.is_valid(*software):
        outbox.send(request, [api_versions.response(request.correlation_id, version, ErrorCode.invalid_request, {})])
        return
    outbox.call(request.connection, partial(_tell, context, request, session, software, outbox))


def _tell(
    context: KafkaContext,
    request: KafkaRequest,
    session: KafkaSession,
    software: api_versions.ApiVersionsRequest,
    outbox: Outbox,
) -> None:
    """On the connection's processor."""
    if isinstance(session, SaslSession) and session.state is LoginState.INITIAL_REQUEST:
        session.enter(LoginEvent.VERSIONS_TOLD)
    if request.api_version >= _FIRST_WITH_SOFTWARE and session.client_software is None:
        session.client_software = context.client_software.enter(*software)
    session.client_id = request.client_id
    reply = api_versions.response(
        request.correlation_id, request.api_version, ErrorCode.none, context.api_ranges, features=context.features.told
    )
    outbox.send(request, [reply])


API = Api(
    key=ApiKey.API_VERSIONS,
    min_version=0,
    max_version=_MAX_VERSION,
    handle_raw=_handle,
    inline=True,
)
