"""ShareAcknowledge (KIP-932): acknowledgements without a fetch. Answered when they are durable."""

from broker.errors import RequestError
from broker.kafka import leader_hints
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.handlers.share_fetch import check, has_many_acknowledgements
from broker.kafka.leader_hints import TELLING
from broker.kafka.share.fetch_call import Acknowledging
from broker.kafka.share.share_sessions import CLOSE_EPOCH, OPEN_EPOCH, ShareSession
from broker.network.service import Handover, Outbox
from broker.network.work import INLINE_ENTRIES, REQUEST_ENTRIES_MAX
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.leaders import NONE
from protocol.kafka.messages.share_fetch import (
    MAX_VERSION,
    MIN_VERSION,
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    acknowledge_response,
    parse_acknowledge,
)


def _prepare(context: KafkaContext, request: KafkaRequest) -> ShareAcknowledgeRequest | Handover:
    parsed = parse_acknowledge(request.frame, request.api_version, request.body_offset, INLINE_ENTRIES)
    return Handover() if has_many_acknowledgements(parsed) else parsed


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: ShareAcknowledgeRequest | None
) -> None:
    parsed = prepared or parse_acknowledge(request.frame, request.api_version, request.body_offset, REQUEST_ENTRIES_MAX)
    try:
        check(context, request, parsed)
        if parsed.epoch == OPEN_EPOCH:
            raise RequestError(ErrorCode.invalid_share_session_epoch, "ShareFetch opens a share session.")
        session = context.share.sessions.use(parsed.group_id, parsed.member_id, parsed.epoch)
    except RequestError as error:
        context.errors.add(API.label, error.code)
        outbox.send(
            request,
            [acknowledge_response(request.correlation_id, request.api_version, error.code, error.message, 0, [])],
        )
        return
    _Call(context, request, outbox, parsed, session).run()


class _Call:
    """A request, until its acknowledgements are durable."""

    __slots__ = ("_acknowledging", "_context", "_outbox", "_parsed", "_request", "_session", "_settings")

    def __init__(
        self,
        context: KafkaContext,
        request: KafkaRequest,
        outbox: Outbox,
        parsed: ShareAcknowledgeRequest,
        session: ShareSession,
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._session = session
        self._settings = context.share.settings(parsed.group_id)
        self._acknowledging = Acknowledging(context, session, self._done)

    def run(self) -> None:
        self._acknowledging.run(
            self._request.connection,
            self._parsed.partitions,
            self._request.work(self._context),
            may_renew=self._parsed.is_renew and self._settings.renew_acknowledge_enable,
        )

    def _done(self) -> None:
        """On any thread."""
        if self._parsed.epoch == CLOSE_EPOCH:
            self._context.share.close_session(self._session)
        request = self._request
        partitions = [
            AcknowledgedPartition(partition, code, message)
            for partition, (code, message) in self._acknowledging.results.items()
        ]
        for acknowledged in partitions:
            if acknowledged.error:
                self._context.errors.add(API.label, acknowledged.error)
        lock_ms = self._settings.record_lock_duration_ms
        failed = [each.partition for each in partitions if each.error in TELLING]
        hints = leader_hints.hints(self._context, request.connection.peer, failed) if failed else None
        response = acknowledge_response(
            request.correlation_id, request.api_version, 0, None, lock_ms, partitions, hints or NONE
        )
        self._outbox.send(request, [response])


API = Api(
    key=ApiKey.SHARE_ACKNOWLEDGE,
    min_version=MIN_VERSION,
    max_version=MAX_VERSION,
    handle_raw=_handle,
    prepare=_prepare,
)
