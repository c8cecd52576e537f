"""Produce: append record batches to partitions.

Every request comes here, alone or in a run, whose batches ``RunFinder`` (``broker/kafka/kafka_session.py``) has found. Both are
given to ``broker/kafka/producing/appending.py`` in one form, ``Batches``.

Requests are handled on the connection's processor as long as appends to the page cache are fast. With ``acks=all`` a request then
waits for the flusher without occupying a thread. Batches are not decompressed, unless the topic asks for it: then a handler does,
one request after the other (``work.VALIDATION``).

From version 12 on, a batch of a transaction adds its partition to the transaction (``broker.kafka.transactions.version_2``).
From version 13 on a request names topics by their ids.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import denied, denied_ids, may
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import Batches, Group, Refusals, RunRequest, is_transactional, produce
from broker.kafka.transactions import version_2
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FirstBatches
from broker.network.service import Handover, Outbox
from broker.network.work import BULK, INLINE_ENTRIES, REQUEST_ENTRIES_MAX, VALIDATION
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID, MAX_VERSION, parse_request

# The longest request (bytes) that a processor handles: about 1 ms of writing. Enough for a batch of 1 MiB, the default maximum.
_INLINE_MAX_BYTES = 2 * 1024 * 1024
_HANDOVER = Handover()
_VALIDATED = Handover(VALIDATION)
# While a write does not return, most handlers are kept for other requests: appends to that log, and those to others, which may be
# on the same disk, are in lanes.
_STUCK = Handover(BULK)
_DOUBTFUL = Handover(VALIDATION)
_FirstBatches = Mapping[Any, tuple[Claim, Log]]
# Looking up a member of an enumeration costs as much as an authorizer's answer.
_WRITE, _TOPIC, _TRANSACTIONAL_ID = Operation.WRITE, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
_NONE: Refusals = {}
_EMPTY = memoryview(b"")
_new = tuple.__new__


def _prepare(context: KafkaContext, request: KafkaRequest) -> Batches | Handover:
    if type(request) is RunRequest:
        batches, request.batches = request.batches, None
        assert batches is not None
        return batches
    batches = _parse(context, request, INLINE_ENTRIES)
    if _decompresses(batches):
        return _VALIDATED
    if request.received_at < context.appends_slow_until:
        if request.received_at < context.appends_stuck_until:
            return (
                _STUCK if any(group.log is not None and group.log.is_stuck for group in batches.groups) else _DOUBTFUL
            )
        return _HANDOVER
    if batches.transactional_id is not None and _missing(context, request, batches, _NONE):
        return _HANDOVER
    return batches


def _parse(context: KafkaContext, request: KafkaRequest, max_entries: int) -> Batches:
    """The batches of a request that is not a run: a group for each batch; one response has all their results."""
    version, logs = request.api_version, context.logs
    acks, timeout_ms, transactional_id, topics = parse_request(request.frame, version, request.body_offset, max_entries)
    partitions: Any = logs.partitions if version < FIRST_WITH_TOPIC_ID else logs.partitions_by_id
    groups = [
        _new(
            Group,
            (topic, partition, partitions.get((topic, partition)), (index,), (records or _EMPTY,), None, ()),
        )
        for index, (topic, partition, records) in enumerate(topics)
    ]
    return Batches(groups, acks, timeout_ms, transactional_id)


def _decompresses(batches: Batches) -> bool:
    """Whether any batch has to be decompressed before it is stored."""
    for group in batches.groups:  # noqa: SIM110 - a generator takes 0.4 us of 20
        if group.log is not None and group.log.decompresses:
            return True
    return False


def _missing(context: KafkaContext, request: KafkaRequest, batches: Batches, refused: Refusals) -> _FirstBatches:
    """The batches that have to be added to their transaction first, or of which the node that coordinates it has to be asked;
    without the ``refused`` ones."""
    transactional_id, elsewhere = batches.transactional_id, context.transactions.elsewhere
    if transactional_id is None:
        return {}
    of_other = elsewhere is not None and elsewhere.has(transactional_id)
    if not of_other and request.api_version < version_2.FIRST_VERSION:
        return {}
    asked = (
        ((group.topic, group.partition), group.log, group.records[0])
        for group in batches.groups
        if (group.topic, group.partition) not in refused
    )
    if of_other:
        assert elsewhere is not None
        return elsewhere.missing(transactional_id, asked)
    return version_2.missing(asked)


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: Batches | FirstBatches | None
) -> None:
    if type(prepared) is Batches:
        refused = _NONE if context.authorizer is None else _unauthorized(context, request, prepared)
        produce(context, request, outbox, prepared, refused)
        return
    # On a handler.
    batches = _parse(context, request, REQUEST_ENTRIES_MAX)
    if request.lane is None and _decompresses(batches):  # the processor has not looked
        outbox.hand_over(request, _VALIDATED)
        return
    refused = _NONE if context.authorizer is None else _unauthorized(context, request, batches)
    if isinstance(prepared, FirstBatches):
        refused = {**prepared.errors, **refused}
    else:
        missing = _missing(context, request, batches, refused)
        if missing:
            assert batches.transactional_id is not None
            first = FirstBatches()
            go_on = partial(outbox.hand_over, request, Handover(request.lane, first))
            elsewhere = context.transactions.elsewhere
            if elsewhere is not None and elsewhere.has(batches.transactional_id):
                elsewhere.ask(batches.transactional_id, request.api_version, missing, first, go_on)
            else:
                first.add(context.transactions.version_2, batches.transactional_id, missing, go_on)
            return
    produce(context, request, outbox, batches, refused)


def _unauthorized(context: KafkaContext, request: KafkaRequest, batches: Batches) -> Refusals:
    """The partitions to which the client may not write, each with its error: all, if it may not use the transactional id.

    A run has no transactional id. The append refuses batches that need one.
    """
    connection, groups, transactional_id = request.connection, batches.groups, batches.transactional_id
    if (
        type(request) is not RunRequest
        and any(is_transactional(group.records[0]) for group in groups)
        and (transactional_id is None or not may(context, connection, _WRITE, _TRANSACTIONAL_ID, transactional_id))
    ):
        error = ErrorCode.transactional_id_authorization_failed
        return {(group.topic, group.partition): error for group in groups}
    topics: list[Any] = [group.topic for group in groups]  # all names, or all ids
    refused: Collection[str | bytes]
    if request.api_version < FIRST_WITH_TOPIC_ID:
        refused = denied(context, connection, _WRITE, _TOPIC, topics)
    else:
        refused = denied_ids(context, connection, _WRITE, topics)
    if not refused:
        return _NONE
    error = ErrorCode.topic_authorization_failed
    return {(group.topic, group.partition): error for group in groups if group.topic in refused}


API = Api(
    key=ApiKey.PRODUCE,
    min_version=3,
    max_version=MAX_VERSION,
    # librdkafka before 2.11 takes a minimum above 0 for "no compression here".
    advertised_min=0,
    handle_raw=_handle,
    prepare=_prepare,
    inline_max_bytes=_INLINE_MAX_BYTES,
    sized_by_bytes=False,
)
