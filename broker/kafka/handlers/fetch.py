"""Fetch: read record batches, and wait for enough of them.

A request of few partitions is handled inline while its records are in the page cache. A cold read goes to the handler pool,
which reads the records from the disk first, so that no processor waits for the disk. A read of segments in the object store goes
through a lane of its own, so that the handlers do not all wait for the store. ``broker/kafka/fetches.py`` reads, waits and
answers.
"""

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.fetches import ParkedFetch, Reading, send, send_records
from broker.network.service import Handover, Outbox
from broker.network.work import BULK, INLINE_ENTRIES, REMOTE, REQUEST_ENTRIES_MAX
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch


def _parse(context: KafkaContext, request: KafkaRequest, max_entries: int) -> fetch.FetchRequest:
    parsed = fetch.parse_request(request.frame, request.api_version, request.body_offset, max_entries)
    if context.metering is not None:
        most = context.metering.fetch_max_bytes(request)
        parsed = parsed._replace(max_bytes=min(parsed.max_bytes, most), min_bytes=min(parsed.min_bytes, most))
    if len(parsed.partitions) > 1:
        # A repeated partition is answered once, as in Kafka: for the last of its entries.
        distinct = {(wanted.topic, wanted.partition): wanted for wanted in parsed.partitions}
        if len(distinct) < len(parsed.partitions):
            return parsed._replace(partitions=list(distinct.values()))
    return parsed


_Prepared = tuple[fetch.FetchRequest, Reading]


def _prepare(context: KafkaContext, request: KafkaRequest) -> _Prepared | Handover:
    parsed = _parse(context, request, INLINE_ENTRIES)
    reading = Reading(context, request.connection, parsed)
    prepared = parsed, reading
    if reading.resident:
        return prepared
    if reading.elsewhere:
        return Handover(REMOTE)
    return Handover(BULK if reading.entries else None, prepared)


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: "_Prepared | ParkedFetch | None"
) -> None:
    if isinstance(prepared, ParkedFetch):
        prepared.answer()
        return
    if prepared is None:  # the request is long, or in the lane of those that wait for the object store
        parsed = _parse(context, request, REQUEST_ENTRIES_MAX)
        may_wait = request.lane == REMOTE
        reading = Reading(context, request.connection, parsed, request.work(context), may_wait=may_wait)
        if reading.elsewhere:
            outbox.hand_over(request, Handover(REMOTE))
            return
    else:
        parsed, reading = prepared
    if parsed.session_id != 0:
        # Fetch sessions are not served: every full fetch is answered with session 0, which means "none" to clients.
        context.errors.add(API.label, ErrorCode.fetch_session_id_not_found)
        send(request, outbox, (), ErrorCode.fetch_session_id_not_found)
        return
    if parsed.session_epoch > 0:
        context.errors.add(API.label, ErrorCode.invalid_fetch_session_epoch)
        send(request, outbox, (), ErrorCode.invalid_fetch_session_epoch)
        return
    if reading.enough(parsed):
        send_records(context, request, outbox, reading, warm=True)  # inline, all records are resident
    else:
        if not reading.resident and not reading.entries:
            reading.warm(context)
        # Parked on the connection's processor, also from a handler: if the connection has closed, the call is dropped.
        outbox.call(request.connection, ParkedFetch(context, request, outbox, parsed, reading).park)


API = Api(
    key=ApiKey.FETCH,
    min_version=4,
    max_version=fetch.MAX_VERSION,
    handle_raw=_handle,
    prepare=_prepare,
)
