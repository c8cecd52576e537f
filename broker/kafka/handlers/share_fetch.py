"""ShareFetch (KIP-932): records for a member of a share group, and its acknowledgements of others.

Inline if the request is short and nothing has to be read from the disk. ``broker/kafka/share/fetch_call.py`` does the rest.
"""

from broker.errors import RequestError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.kafka.features import SHARE_VERSION
from broker.kafka.groups.share.values import GROUP_ID_MAX
from broker.kafka.share.fetch_call import FetchCall
from broker.kafka.share.reading import BATCH_OPTIMIZED, RECORD_LIMIT
from broker.network.service import Handover, Outbox
from broker.network.work import INLINE_ENTRIES, REQUEST_ENTRIES_MAX
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import (
    MAX_VERSION,
    MIN_VERSION,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    fetch_parts,
    parse_fetch,
)

# Characters of a member's id.
_MEMBER_ID_MAX = 255

# The most single acknowledgements that a processor carries out: some 10 us each.
_INLINE_ACKNOWLEDGEMENTS = 500
# The most offsets with equal acknowledgements. Usually these are few ranges, but a member that has renewed the lock of every
# other record has as many ranges as offsets, each of which takes 1 or 2 us.
_INLINE_OFFSETS = 5_000


def _prepare(context: KafkaContext, request: KafkaRequest) -> ShareFetchRequest | Handover:
    parsed = parse_fetch(request.frame, request.api_version, request.body_offset, INLINE_ENTRIES)
    return Handover() if has_many_acknowledgements(parsed) else parsed


def has_many_acknowledgements(parsed: ShareFetchRequest | ShareAcknowledgeRequest) -> bool:
    """Whether they have to be carried out by a handler."""
    single = offsets = 0
    for _, batches in parsed.partitions:
        for first, last, types in batches:
            if len(types) > 1:
                single += len(types)
            elif last >= first:
                offsets += last - first + 1
    return single > _INLINE_ACKNOWLEDGEMENTS or offsets > _INLINE_OFFSETS


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: ShareFetchRequest | FetchCall | None
) -> None:
    if isinstance(prepared, FetchCall):
        prepared.handed_over()
        return
    blocking = prepared is None  # on a handler
    parsed = prepared or parse_fetch(request.frame, request.api_version, request.body_offset, REQUEST_ENTRIES_MAX)
    call = None
    try:
        check(context, request, parsed)
        if parsed.acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
            raise RequestError(ErrorCode.invalid_request, "There is no such acquire mode.")
        call = FetchCall(context, request, outbox, parsed, blocking=blocking)
        call.begin()
    except RequestError as error:
        context.errors.add(API.label, error.code)
        outbox.send(request, fetch_parts(request.correlation_id, error.code, error.message, 0, []))


def check(context: KafkaContext, request: KafkaRequest, parsed: ShareFetchRequest | ShareAcknowledgeRequest) -> None:
    """Checks the group, the member and its rights. Raises RequestError."""
    if not context.features.level(SHARE_VERSION):
        raise RequestError(ErrorCode.unsupported_version, "The feature share.version is at level 0.")
    require(context, request.connection, Operation.READ, ResourceType.GROUP, parsed.group_id)
    if not parsed.group_id or not parsed.member_id:
        raise RequestError(ErrorCode.invalid_request, "A group id and a member id are needed.")
    check_group_id(parsed.group_id)
    if len(parsed.member_id) > _MEMBER_ID_MAX:
        raise RequestError(ErrorCode.invalid_request, f"A member id has at most {_MEMBER_ID_MAX} characters.")


def check_group_id(group_id: str) -> None:
    """Raises RequestError if it is too long."""
    if len(group_id) > GROUP_ID_MAX:
        raise RequestError(
            ErrorCode.invalid_request, f"The group id of a share group has at most {GROUP_ID_MAX} characters."
        )


API = Api(
    key=ApiKey.SHARE_FETCH,
    min_version=MIN_VERSION,
    max_version=MAX_VERSION,
    handle_raw=_handle,
    prepare=_prepare,
)
