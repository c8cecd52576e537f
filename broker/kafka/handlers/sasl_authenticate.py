"""SaslAuthenticate (36): one token of a login. After version 0 of SaslHandshake a token comes without a request around it.

A token that takes long to evaluate goes to a handler, in the lane of logins. The session is changed on its processor.
"""

from collections.abc import Mapping
from functools import partial

from broker.kafka import sasl_session
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.sasl_session import SaslSession
from broker.network.service import Handover, Outbox
from broker.network.work import LOGIN
from broker.security.sasl.exchange import AuthenticationFailed, Step
from protocol.frames import LENGTH
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control

_HANDOVER = Handover(LOGIN)
# The longest request of SCRAM is a quarter of this. Longer requests wait with the slow mechanisms'.
_INLINE_MAX_BYTES = 16 * 1024
_ALREADY = "SaslAuthenticate request received after successful authentication"


def _prepare(context: KafkaContext, request: KafkaRequest) -> Handover | None:
    session = request.connection.session
    if isinstance(session, SaslSession) and session.logging_in and session.exchange.slow:
        return _HANDOVER
    return None


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    token = control.parse_request(ApiKey.SASL_AUTHENTICATE, request.api_version, request.body).auth_bytes
    session = request.connection.session
    if isinstance(session, SaslSession) and session.logging_in:
        _evaluate(context, request, session, bytes(token), outbox)
    else:
        fields = {"error_code": ErrorCode.illegal_sasl_state, "error_message": _ALREADY, "auth_bytes": b""}
        outbox.send(request, [_encoded(request, fields)])


def _handle_raw(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    session = request.connection.session
    assert isinstance(session, SaslSession)
    _evaluate(context, request, session, bytes(request.body), outbox)


def _evaluate(context: KafkaContext, request: KafkaRequest, session: SaslSession, token: bytes, outbox: Outbox) -> None:
    """On a handler, or on the processor."""
    request.work(context).checkpoint()  # it may have waited long in its lane
    outcome: Step | AuthenticationFailed
    try:
        outcome = session.exchange.evaluate(token)
    except AuthenticationFailed as error:
        outcome = error
    outbox.call(request.connection, partial(_conclude, context, request, session, outcome, outbox))


def _conclude(
    context: KafkaContext,
    request: KafkaRequest,
    session: SaslSession,
    outcome: Step | AuthenticationFailed,
    outbox: Outbox,
) -> None:
    """On the connection's processor."""
    try:
        if isinstance(outcome, AuthenticationFailed):
            raise outcome
        lifetime_ms = 0
        if outcome.identity is not None:
            lifetime_ms = sasl_session.succeed(context, request.connection, session, outcome.identity, outbox)
    except AuthenticationFailed as error:
        sasl_session.fail(context, request, session, error, outbox, _refusal(request, session))
    else:
        outbox.send(request, [_answer(request, outcome.token, lifetime_ms)])


def _answer(request: KafkaRequest, token: bytes, lifetime_ms: int) -> bytes:
    if request.api is RAW_API:
        return LENGTH.pack(len(token)) + token
    fields = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }
    return _encoded(request, fields)


def _refusal(request: KafkaRequest, session: SaslSession) -> bytes:
    """Empty for a token without a request, for which there is no form of a refusal."""
    if request.api is RAW_API:
        return b""
    fields = {
        "error_code": ErrorCode.sasl_authentication_failed,
        "error_message": sasl_session.failure_message(session),
        "auth_bytes": b"",
    }
    return _encoded(request, fields)


def _encoded(request: KafkaRequest, fields: Mapping[str, object]) -> bytes:
    return bytes(control.encode_response(ApiKey.SASL_AUTHENTICATE, request.api_version, request.correlation_id, fields))


API = Api(
    key=ApiKey.SASL_AUTHENTICATE,
    min_version=0,
    max_version=2,
    handle_raw=_handle,
    prepare=_prepare,
    inline_max_bytes=_INLINE_MAX_BYTES,
    lane=LOGIN,
)
# The token is the whole frame.
RAW_API = Api(
    key=ApiKey.SASL_AUTHENTICATE,
    min_version=0,
    max_version=0,
    handle_raw=_handle_raw,
    prepare=_prepare,
    inline_max_bytes=_INLINE_MAX_BYTES,
    lane=LOGIN,
)
