"""SaslHandshake (17): the client chooses the mechanism by which it logs in, for the first time or again (KIP-368)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from broker.kafka import sasl_session
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.sasl_session import SaslSession
from broker.network.service import Outbox
from broker.security.sasl.exchange import AuthenticationFailed
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    mechanism = control.parse_request(ApiKey.SASL_HANDSHAKE, request.api_version, request.body).mechanism
    session = request.connection.session
    if isinstance(session, SaslSession):
        outbox.call(request.connection, partial(_choose, context, request, session, mechanism, outbox))
    else:
        outbox.send(request, [_response(request, ErrorCode.illegal_sasl_state)])


def _choose(context: KafkaContext, request: KafkaRequest, session: SaslSession, mechanism: str, outbox: Outbox) -> None:
    """On the connection's processor."""
    now = context.clock.monotonic()
    if not session.may_choose(now):
        outbox.send(request, [_response(request, ErrorCode.illegal_sasl_state)])
        return
    mechanisms = list(session.rules.mechanisms)
    if session.choose(mechanism, request.api_version, now, request.connection.principal):
        outbox.send(request, [_response(request, ErrorCode.none, mechanisms)])
    else:
        answer = _response(request, ErrorCode.unsupported_sasl_mechanism, mechanisms)
        sasl_session.fail(context, request, session, AuthenticationFailed("unknown mechanism"), outbox, answer)


def _response(request: KafkaRequest, error: ErrorCode, mechanisms: list[str] | None = None) -> bytes:
    fields: Mapping[str, Any] = {"error_code": error, "mechanisms": mechanisms or []}
    return bytes(control.encode_response(ApiKey.SASL_HANDSHAKE, request.api_version, request.correlation_id, fields))


API = Api(key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=1, handle_raw=_handle, inline=True)
