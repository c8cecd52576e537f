"""Fetches that wait for bytes or for their deadline.

A fetch that must wait is *parked*: it watches its logs, and a thread that appends to one of them has the fetch's own processor
look at that log again. When there are enough bytes, a handler answers a fetch of many partitions.

Answers a Fetch request with what a reading has found. Records leave by sendfile.

On any thread.

Tests: tests/kafka/handlers/test_fetch_waiting.py,
tests/kafka/handlers/test_fetch.py,
tests/kafka/test_metering.py.
"""

from collections.abc import Sequence
from functools import partial

from broker.errors import Refusal, StorageError
from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.fetching.reading import Reading, Seen
from broker.kafka.metering import Metered
from broker.network.service import Handover, Outbox
from broker.network.work import BULK, INLINE_ENTRIES, WATCHED_ALWAYS
from broker.runtime.threads import get_ident
from broker.runtime.timers import TimerHandle
from broker.storage.log.log import Log
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


_new = tuple.__new__  # faster than a named tuple's own __new__


class ParkedFetch:
    """A fetch that waits for bytes or for its deadline. From ``park`` on, everything but ``answer`` runs on the connection's
    processor.

    Most fetches can be answered as soon as one of their logs has grown: they are read again as a whole. Those that wait for more
    than that, or whose logs are many, count what their logs have, and only logs that were appended to are looked at.
    """

    def __init__(
        self,
        context: KafkaContext,
        request: KafkaRequest,
        outbox: Outbox,
        parsed: fetch.FetchRequest,
        reading: Reading,
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._logs = reading.logs
        self._limit = reading.limit
        self._committed = reading.committed
        self._size = reading.size  # bytes to send, the sum of the sizes in `_logs`
        self._watches: list[tuple[Log, int]] = []  # each with its token; empty if there was no room for watches
        # Indexes of logs that were appended to since they were read. A dict instead of a set: its operations are atomic.
        self._changed: dict[int, None] = {}
        self._timer: TimerHandle | None = None
        self._looking = False  # `_look` was submitted to the processor and has not run yet
        self._done = False
        count = len(parsed.partitions)
        # Of a transaction that is open, what was appended is no reason for an answer.
        self._accounts = count > INLINE_ENTRIES or (count > 1 and (parsed.min_bytes > 1 or self._committed))

    def park(self) -> None:
        connection = self._request.connection
        connection.data = self
        deadline = self._request.received_at + self._parsed.max_wait_ms / 1000
        count = len(self._logs)
        if self._context.watches.take(count, force=count <= WATCHED_ALWAYS):
            if self._accounts:
                self._watches = [
                    (seen.log, seen.log.watch(partial(self._appended, number)))
                    for number, seen in enumerate(self._logs)
                ]
            else:
                woken = self._woken
                self._watches = [(seen.log, seen.log.watch(woken)) for seen in self._logs]
        self._timer = self._context.timer.at(deadline, self._expired)
        # Appends between the reading and the watching have called nobody.
        for number, seen in enumerate(self._logs):
            if seen.log.high_watermark != seen.end:
                self._appended(number)
        # When the broker began to stop, or the peer finished, those that were parked were told. This one was not.
        if self._context.stopping or connection.finished:
            self._expired()

    def _appended(self, number: int) -> None:
        """Called by the thread that appended, or that deleted the topic."""
        self._changed[number] = None
        self._woken()

    def _woken(self) -> None:
        if self._done:
            return  # answered, or handed over to a handler
        if not self._looking:
            self._looking = True
            self._outbox.call(self._request.connection, self._look)

    def _expired(self) -> None:
        """Called on the timer's thread."""
        self._outbox.call(self._request.connection, self.give_up)

    def _look(self) -> None:
        self._looking = False  # cleared before the logs are read: an append after that submits another look
        if self._done or (self._accounts and not self._has_enough()):
            return
        if self._is_long:
            self._hand_over()
        else:
            reading = Reading(self._context, self._request.connection, self._parsed)
            if reading.enough(self._parsed):
                self._finish(reading)

    def _has_enough(self) -> bool:
        changed, failed = self._changed, False
        while changed:
            failed = not self._account(changed.popitem()[0]) or failed
        return failed or self._size >= self._parsed.min_bytes

    def _account(self, number: int) -> bool:
        """Count what one log has to send now. False: it cannot be read, so the fetch is answered.

        The count may be higher than what the response has room for. Then a fetch of many partitions is answered sooner than
        necessary, and one of few partitions is read again and goes on waiting.
        """
        log, wanted, _, before = self._logs[number]
        try:
            read = log.read(
                wanted.fetch_offset,
                max(0, min(self._limit, wanted.max_bytes)),
                at_least_one=True,
                up_to=log.last_stable_offset if self._committed else None,
            )
        except (Refusal, StorageError):
            return False
        self._logs[number] = _new(Seen, (log, wanted, read.high_watermark, read.size))
        self._size += read.size - before
        return True

    @property
    def _is_long(self) -> bool:
        return len(self._parsed.partitions) > INLINE_ENTRIES

    def give_up(self) -> None:
        """Answer with what there is to send."""
        if self._done:
            return
        if self._is_long:
            self._hand_over()
        else:
            self._finish(Reading(self._context, self._request.connection, self._parsed))

    def _finish(self, reading: Reading) -> None:
        if reading.entries:
            self._hand_over()
            return
        self.abandon()
        self._request.connection.data = None
        send_records(self._context, self._request, self._outbox, reading, warm=False)

    def _hand_over(self) -> None:
        # The handler ends the watches: for 10,000 logs that takes milliseconds.
        self._done = True
        self._outbox.hand_over(self._request, Handover(BULK, self))

    def answer(self) -> None:
        """Called on a handler thread."""
        self.abandon()
        self._request.connection.data = None
        reading = Reading(self._context, self._request.connection, self._parsed, self._request.work(self._context))
        send_records(self._context, self._request, self._outbox, reading, warm=True)

    def abandon(self) -> None:
        """Stop waiting without an answer. Called on the processor when the connection has closed, and on a handler for a fetch
        that was handed over, perhaps at the same time: each watch is popped, and ended, by one of the two."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        ended = 0
        try:
            while True:
                log, token = self._watches.pop()
                log.unwatch(token)
                ended += 1
        except IndexError:  # all watches are ended
            pass
        if ended:
            self._context.watches.give_back(ended)
