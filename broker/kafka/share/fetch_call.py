"""A ShareFetch, from its session to its answer, with its acknowledgements.

Its acknowledgements come first, and when they are durable it fetches: it takes records of the session's queue
(``partition_entry.py``) until it has enough. It is answered when there are records or an error. Otherwise it is *parked* until
there may be records or its time is over. Work that has to wait for the disk is handed over to a handler.

| state | event | next |
|---|---|---|
| BEGUN | the acknowledgements are durable | FETCHING |
| BEGUN | it closes the session | ANSWERED |
| FETCHING | records, an error, or no time to wait | ANSWERED |
| FETCHING | nothing yet | PARKED |
| FETCHING | cold | HANDED_OVER |
| PARKED | there may be records | FETCHING |
| PARKED | the deadline | FETCHING |
| HANDED_OVER | a handler has it | FETCHING |

The connection may close in any state: ABANDONED. Only one thread at a time changes the state: the connection's processor, or
the handler that has the call; ``wake``, the timer and the acknowledgements get there through the outbox.

``Acknowledging`` acknowledges the records of one request in each share partition, and then waits until all of that is durable.
``run`` is called on the thread that handles the request; ``then`` is called on that thread if there is nothing to wait for, and
otherwise on the catalogue writer's.

Tests: tests/kafka/handlers/test_share_fetch.py,
tests/kafka/handlers/test_share_waiting.py,
tests/kafka/handlers/test_share_acknowledge.py.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka import leader_hints
from broker.kafka.api import KafkaRequest
from broker.kafka.authorization import may
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.leader_hints import TELLING
from broker.kafka.metering import Metered
from broker.kafka.share.partition_entry import Link, PartitionEntry
from broker.kafka.share.reading import Cold, Taken, Wanted, available_bytes, take
from broker.kafka.share.share_sessions import CLOSE_EPOCH, OPEN_EPOCH, ShareSession
from broker.network.service import Connection, Handover, Outbox, Part
from broker.network.work import INLINE_ENTRIES, Work
from broker.runtime.threads import Lock, get_ident
from broker.runtime.timers import TimerHandle
from broker.security.acl import Operation, ResourceType
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.leaders import NONE
from protocol.kafka.messages.share_fetch import (
    FetchedPartition,
    ShareFetchRequest,
    SharePartitionRequest,
    TopicPartition,
    fetch_parts,
)

Result = tuple[int, str | None]  # error code and message
_DONE: Result = (0, None)


class Acknowledging:
    """``results`` are complete when ``then`` is called."""

    __slots__ = ("_context", "_lock", "_pending", "_session", "_then", "results")

    def __init__(self, context: KafkaContext, session: ShareSession, then: Callable[[], None]) -> None:
        self._context = context
        self._session = session
        self._then = then
        self._lock = Lock()
        self._pending = 1  # ``run`` itself
        self.results: dict[TopicPartition, Result] = {}

    def run(
        self, connection: Connection, partitions: Sequence[SharePartitionRequest], work: Work, *, may_renew: bool
    ) -> None:
        """Raises Abandoned."""
        share = self._context.share
        allowed: dict[bytes, bool] = {}
        share.acknowledge_requests += 1
        for partition, batches in work.each(partitions):
            if not batches or partition in self.results:
                continue
            name = share.topic_name(partition[0])
            if name is None:
                self.results[partition] = ErrorCode.unknown_topic_id, None
                continue
            if self._context.authorizer is not None:
                if partition[0] not in allowed:
                    allowed[partition[0]] = may(self._context, connection, Operation.READ, ResourceType.TOPIC, name)
                if not allowed[partition[0]]:
                    self.results[partition] = ErrorCode.topic_authorization_failed, "Not authorized."
                    continue
            entry = share.entry(self._session.group_id, partition)
            if entry is None:
                self.results[partition] = self._context.why_absent(*partition), None
                continue
            self.results[partition] = _DONE
            with self._lock:
                self._pending += 1
            try:
                waits = entry.acknowledge(
                    self._session.member_id, batches, partial(self._saved, partition), may_renew=may_renew
                )
            except RequestError as error:
                self.results[partition] = error.code, error.message
                waits = False
            if not waits:
                self._one_done()
        self._one_done()

    @property
    def errors(self) -> Mapping[TopicPartition, Result]:
        return {partition: result for partition, result in self.results.items() if result[0]}

    def _saved(self, partition: TopicPartition, error: StorageError | None) -> None:
        if error is not None:
            self.results[partition] = ErrorCode.kafka_storage_error, "The acknowledgements could not be stored."
        self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._pending -= 1
            last = not self._pending
        if last:
            self._then()


LABEL = "ShareFetch"

# Partition errors that Java's share consumer handles. Any other error makes the application's ``poll`` raise an exception.
_TOLD: Final = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.topic_authorization_failed,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_id,
    }
)


class State(Enum):
    BEGUN = "BEGUN"
    FETCHING = "FETCHING"
    PARKED = "PARKED"
    HANDED_OVER = "HANDED_OVER"
    ANSWERED = "ANSWERED"
    ABANDONED = "ABANDONED"


# The table in the module's docstring.
NEXT: Final = {
    State.BEGUN: {State.FETCHING, State.ANSWERED},
    State.FETCHING: {State.ANSWERED, State.PARKED, State.HANDED_OVER},
    State.PARKED: {State.FETCHING},
    State.HANDED_OVER: {State.FETCHING},
    State.ANSWERED: set(),
}


class FetchCall:
    def __init__(
        self, context: KafkaContext, request: KafkaRequest, outbox: Outbox, parsed: ShareFetchRequest, *, blocking: bool
    ) -> None:
        """``blocking``: the call begins on a handler's thread."""
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._may_block = blocking
        self._settings = context.share.settings(parsed.group_id)
        self._wanted = Wanted(
            parsed.member_id,
            self._settings,
            min(parsed.max_bytes, context.config.fetch_max_bytes),
            0 if parsed.is_renew else parsed.max_records,
            parsed.batch_size,
            parsed.acquire_mode,
        )
        self._session: ShareSession | None = None
        self._acknowledging: Acknowledging | None = None
        self._timer: TimerHandle | None = None
        self._over = False  # the wait is over
        self._taken: list[Taken] = []
        self._errors: dict[TopicPartition, tuple[int, str | None]] = {}
        self._asked: dict[PartitionEntry, None] = {}  # entries that woke this call, or that it has looked at
        self._woken = False
        self.state = State.BEGUN

    def _to(self, state: State) -> bool:
        """False if the connection has closed meanwhile: there is nothing more to do."""
        before = self.state
        if before is State.ABANDONED:
            return False
        assert state in NEXT[before], f"{before.name} to {state.name}"
        self.state = state
        return True

    # -- the session, and acknowledgements ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Raises RequestError for an answer with that error alone; Abandoned."""
        parsed, share = self._parsed, self._context.share
        connection = self._request.connection
        has_acknowledgements = any(partition.acknowledgements for partition in parsed.partitions)
        if parsed.epoch == OPEN_EPOCH:
            if has_acknowledgements:
                raise RequestError(
                    ErrorCode.invalid_request, "A request that opens a share session acknowledges nothing."
                )
            session = share.open_session(parsed.group_id, parsed.member_id, connection)
        else:
            session = share.sessions.use(parsed.group_id, parsed.member_id, parsed.epoch)
            if session.waiter is not None:
                session.waiter.give_up_soon()  # on another connection
        self._session = session
        if parsed.epoch != CLOSE_EPOCH:
            self._update(session)
        if not has_acknowledgements:
            self._acknowledged()
            return
        self._acknowledging = Acknowledging(self._context, session, self._acknowledged_on_any_thread)
        self._acknowledging.run(
            connection,
            parsed.partitions,
            self._request.work(self._context),
            may_renew=parsed.is_renew and self._settings.renew_acknowledge_enable,
        )

    def _update(self, session: ShareSession) -> None:
        """Add partitions to the session, and remove others."""
        share = self._context.share
        new = {
            partition.partition: None
            for partition in self._parsed.partitions
            if partition.partition not in session.links and partition.partition not in session.refused
        }
        if new:
            share.sessions.make_room(session, len(new))
            session.refused.update(new)
        for partition in self._parsed.forgotten:
            share.drop(session, partition)

    def _acknowledged_on_any_thread(self) -> None:
        self._may_block = False
        self._outbox.call(self._request.connection, self._acknowledged)

    def _acknowledged(self) -> None:
        if self.state is not State.BEGUN:
            return
        if self._parsed.epoch == CLOSE_EPOCH:
            assert self._session is not None
            self._context.share.close_session(self._session)
            self._answer()
        else:
            self._go_on()

    # -- fetching -----------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Fetch, and answer or wait."""
        if not self._to(State.FETCHING):
            return
        if not may(self._context, self._request.connection, Operation.READ, ResourceType.GROUP, self._parsed.group_id):
            self._answer(
                ErrorCode.group_authorization_failed
            )  # the client has lost the right while the call was parked
            return
        try:
            self._fetch()
        except Cold as cold:
            if self._to(State.HANDED_OVER):
                self._outbox.hand_over(self._request, Handover(cold.lane, self))
            return
        if self._taken or self._errors or self._has_no_time:
            self._answer()
        else:
            self._outbox.call(self._request.connection, self._park)

    @property
    def _has_no_time(self) -> bool:
        """The call is answered with the records so far."""
        session = self._session
        return (
            self._over
            or self._parsed.max_wait_ms <= 0
            or self._wanted.has_enough
            or session is None
            or session.closed
            or bool(self._acknowledging is not None and self._acknowledging.errors)
            or (not session.links and not session.refused)
        )

    def handed_over(self) -> None:
        """Runs on a handler's thread."""
        if self.state is State.HANDED_OVER:
            self._may_block = True
            self._go_on()

    def _fetch(self) -> None:
        """Raises Cold."""
        session = self._session
        assert session is not None
        if not self._may_block and max(len(session.refused), len(session.ready)) > INLINE_ENTRIES:
            raise Cold
        self._look_at_refused(session)
        self._begin(session)
        wanted = self._wanted
        if wanted.has_enough or (self._parsed.min_bytes > 1 and not self._has_no_time and not self._is_enough(session)):
            return
        now = self._context.clock.monotonic()
        first_seen: set[Link] = set()
        while not wanted.has_enough:
            try:
                link = session.ready.popleft()
            except IndexError:
                return
            if link in first_seen:  # each link has had its turn
                session.ready.appendleft(link)
                return
            first_seen.add(link)
            self._take(session, link, now)

    def _take(self, session: ShareSession, link: Link, now: float) -> None:
        """Take records of one share partition."""
        entry = link.entry
        if link.closed:
            return
        try:
            if entry.forgotten:
                self._refuse(session, link)
                return
            if self._context.authorizer is not None and not self._may_read(entry.log.topic):
                self._refuse(session, link)
                return
            if entry.log.offline is not None:
                raise entry.log.state.why_unavailable()
            self._asked[entry] = None
            taken = take(link, self._wanted, now, first=not self._taken, may_block=self._may_block)
            if taken is not None:
                self._taken.append(taken)
        except Cold:
            session.ready.appendleft(link)
            raise
        except Refusal as error:
            self._failed(session, link, code_of(error))
        except StorageError as error:
            self._context.complain("read_failed", entry.log.topic, entry.log.partition, error)
            self._failed(session, link, ErrorCode.kafka_storage_error)

    def _begin(self, session: ShareSession) -> None:
        """Begin with partitions that have just come to the session. Raises Cold."""
        if not session.unbegun:
            return
        if not self._may_block:
            raise Cold
        entries, session.unbegun = session.unbegun, []
        for entry, error in self._context.share.begin(entries, self._settings).items():
            link = session.links.get((entry.key.topic_id, entry.key.partition))
            if isinstance(error, StorageError):
                self._context.complain("read_failed", entry.log.topic, entry.log.partition, error)
            if link is not None:
                code = code_of(error) if isinstance(error, Refusal) else ErrorCode.kafka_storage_error
                self._failed(session, link, code)

    def _failed(self, session: ShareSession, link: Link, code: int) -> None:
        """Answer with the error, and try the partition again with the next fetch."""
        partition = link.entry.key.topic_id, link.entry.key.partition
        self._set_aside(session, link)
        if self._context.share.topic_name(partition[0]) is None:
            code = ErrorCode.unknown_topic_id
        self._errors[partition] = code if code in _TOLD else ErrorCode.replica_not_available, None

    def _refuse(self, session: ShareSession, link: Link) -> None:
        """The share partition was replaced, or may not be read."""
        self._set_aside(session, link)
        self._look_at(session, (link.entry.key.topic_id, link.entry.key.partition))

    def _set_aside(self, session: ShareSession, link: Link) -> None:
        partition = link.entry.key.topic_id, link.entry.key.partition
        if session.links.get(partition) is link:
            session.links.pop(partition, None)
            session.refused[partition] = None
            self._context.share.set_aside(session, link)

    def _look_at_refused(self, session: ShareSession) -> None:
        """Look at new partitions, and at those that could not be fetched before."""
        if session.refused:
            for partition in self._request.work(self._context).each(list(session.refused)):
                self._look_at(session, partition)

    def _look_at(self, session: ShareSession, partition: TopicPartition) -> None:
        if partition in self._errors:
            return
        name = self._context.share.topic_name(partition[0])
        if name is None:
            self._errors[partition] = ErrorCode.unknown_topic_id, None
        elif not self._may_read(name):
            self._errors[partition] = ErrorCode.topic_authorization_failed, "Not authorized."
        elif (log := self._context.share.log(partition)) is None:
            self._errors[partition] = self._context.why_absent(*partition), None
        elif log.offline is not None:
            self._errors[partition] = ErrorCode.kafka_storage_error, None
        elif partition in session.refused and self._context.share.add(session, partition):
            session.refused.pop(partition, None)

    def _may_read(self, topic: str) -> bool:
        return may(self._context, self._request.connection, Operation.READ, ResourceType.TOPIC, topic)

    def _is_enough(self, session: ShareSession) -> bool:
        """Whether ``min_bytes`` can be acquired. If not, the share partitions may ask others."""
        left = self._parsed.min_bytes
        looked_at: list[tuple[Link, int]] = []
        while left > 0 and session.ready and len(looked_at) < len(session.links):
            link = session.ready.popleft()
            looked_at.append((link, link.entry.readable_end))
            try:
                if link.closed:
                    continue
                left -= available_bytes(link, self._wanted)
            except (Refusal, StorageError):
                left = 0
        if left <= 0:
            session.ready.extendleft(link for link, _ in reversed(looked_at))
            return True
        for link, end in looked_at:
            self._asked[link.entry] = None
            link.entry.unwanted(link, end)
        return False

    # -- waiting ------------------------------------------------------------------------------------------------------------

    def _park(self) -> None:
        """Runs on the connection's processor."""
        session = self._session
        assert session is not None
        if not self._to(State.PARKED):
            return
        self._may_block = False
        self._request.connection.data = self
        session.waiter = self
        if self._timer is None:
            deadline = self._request.received_at + self._parsed.max_wait_ms / 1000
            self._timer = self._context.timer.at(deadline, self.give_up_soon)
        self._pass_on()
        # Events between the fetch and this point have woken nobody.
        if self._over or self._context.stopping or self._request.connection.finished or session.closed:
            self.give_up()
        elif session.ready and (self._parsed.min_bytes <= 1 or session.has_unseen):
            self._look()

    def wake(self, entry: PartitionEntry) -> None:
        """For any thread."""
        self._asked[entry] = None
        if not self._woken:
            self._woken = True
            self._outbox.call(self._request.connection, self._look)

    def _look(self) -> None:
        self._woken = False
        if self.state is State.PARKED:
            self._stop_waiting()
            self._go_on()

    def give_up_soon(self) -> None:
        """For any thread: the time is over."""
        self._outbox.call(self._request.connection, self.give_up)

    def give_up(self) -> None:
        """Answer with the records so far. Runs on the processor."""
        self._over = True
        if self.state is State.PARKED:
            self._stop_waiting()
            self._go_on()

    def _stop_waiting(self) -> None:
        if self._session is not None and self._session.waiter is self:
            self._session.waiter = None

    def _pass_on(self) -> None:
        """Let other calls that wait for the same share partitions have the rest."""
        while self._asked:
            try:
                entry = self._asked.popitem()[0]
            except KeyError:
                return
            entry.wake_next()

    # -- the end ------------------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The connection is closed. Runs on its processor. The service closes its sessions, which releases acquired records."""
        self.state = State.ABANDONED
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
        self._pass_on()

    def _answer(self, refusal: int = ErrorCode.none) -> None:
        if not self._to(State.ANSWERED):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._request.connection.data = None
        partitions = self._partitions()
        parts = self._parts(partitions, refusal)
        size = sum(map(len, parts))
        if self._taken and (refusal or (type(self._outbox) is Metered and not self._outbox.fetched(size - 4))):
            # The client gets the records later, because it has used up its quota, or it may not have them.
            for taken in self._taken:
                taken.entry.undo(self._parsed.member_id, taken.acquired)
            parts = self._parts(
                [partition._replace(acquired=(), size=0, parts=()) for partition in partitions], refusal
            )
        else:
            thread = get_ident()
            for taken in self._taken:
                taken.entry.log.state.sent_bytes[thread] += taken.size
        errors = self._context.errors
        if refusal:
            errors.add(LABEL, refusal)
        for partition in partitions:
            for code in (partition.error, partition.acknowledge_error):
                if code:
                    errors.add(LABEL, code)
        self._outbox.send(self._request, parts)
        self._pass_on()

    def _parts(self, partitions: list[FetchedPartition], refusal: int = ErrorCode.none) -> list[Part]:
        lock_ms = self._settings.record_lock_duration_ms
        failed = [each.partition for each in partitions if not TELLING.isdisjoint((each.error, each.acknowledge_error))]
        hints = leader_hints.hints(self._context, self._request.connection.peer, failed) if failed else None
        return fetch_parts(self._request.correlation_id, refusal, None, lock_ms, partitions, hints or NONE)

    def _partitions(self) -> list[FetchedPartition]:
        fetched = {
            (taken.entry.key.topic_id, taken.entry.key.partition): FetchedPartition(
                (taken.entry.key.topic_id, taken.entry.key.partition),
                acquired=taken.acquired,
                size=taken.size,
                parts=taken.parts,
            )
            for taken in self._taken
        }
        for partition, (code, message) in self._errors.items():
            fetched[partition] = FetchedPartition(partition, code, message)
        if self._acknowledging is not None:
            for partition, (code, message) in self._acknowledging.results.items():
                before = fetched.get(partition, FetchedPartition(partition))
                fetched[partition] = before._replace(acknowledge_error=code, acknowledge_message=message)
        return list(fetched.values())
