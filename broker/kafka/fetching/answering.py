"""Answers a Fetch request with what a reading has found. Records leave by sendfile.

On any thread.

Tests: tests/kafka/handlers/test_fetch.py, tests/kafka/test_metering.py.
"""

from collections.abc import Sequence

from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.fetching.reading import Reading
from broker.kafka.metering import Metered
from broker.network.service import Outbox
from broker.runtime.threads import get_ident
from protocol.kafka.messages import fetch


def send(
    request: KafkaRequest,
    outbox: Outbox,
    topics: Sequence[tuple[str | bytes, list[fetch.PartitionData]]],
    error: int = 0,
) -> None:
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, error, 0, topics)
    outbox.send(request, parts)


def send_records(context: KafkaContext, request: KafkaRequest, outbox: Outbox, reading: Reading, *, warm: bool) -> None:
    """Send what there is, or nothing if the client has used up its quota. ``warm``: first read what is not in the page cache,
    which blocks; a reading with entries needs it."""
    if reading.entries:
        reading.translate(context)
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, 0, 0, reading.results)
    if type(outbox) is Metered and not outbox.fetched(sum(map(len, parts)) - 4):
        send(request, outbox, ())
        return
    if warm and not reading.resident:
        reading.warm(context)
    if reading.failed:
        for _, partitions in reading.results:
            for data in partitions:
                if data.error:
                    context.errors.add(request.api.label, data.error)
    if reading.size:
        thread = get_ident()
        for log, _, _, size in reading.logs:
            if size:
                log.state.sent_bytes[thread] += size
    if context.traces is not None:
        request.log_calls = reading.log_calls
    outbox.send(request, parts)
