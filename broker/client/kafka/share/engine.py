"""The engine of a share consumer: decides which broker to ask next, and for what, and handles the answers.

A caller that needs something from a broker takes a turn (``turns``) and does the work on its own thread; records wait
in ``buffer`` until they are taken. ``lock`` guards the buffer, the holdings of all links and the membership, and is
never held during I/O. ``Turns`` is a fair lock: threads get it in the order of arrival. A plain lock may go again and
again to a thread that releases it only for a moment, as a polling loop does.

One broker is asked at a time, so that no more records are locked than were requested. If several brokers lead
partitions, fetches that do not wait find those with records; if none has any, the waiting time is divided among them.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from math import inf
from uuid import UUID

from broker.client.kafka.config import Address, ClientConfig
from broker.client.kafka.errors import (
    RETRIABLE,
    BrokerAnswerError,
    CorruptRecordError,
    KafkaClientError,
    LinkError,
    RetriableError,
    TimedOutError,
    UnsupportedVersionError,
    code_name,
)
from broker.client.kafka.routing import Routing
from broker.client.kafka.share.acquired import AcquiredRange, Settled, TopicIdPartition
from broker.client.kafka.share.broker_link import BrokerLink, Received, RecordReader
from broker.client.kafka.share.membership import Membership
from broker.client.kafka.share.record import RecordOwner, ShareRecord, switched_off
from broker.client.kafka.share.requests import FetchLimits, Heartbeats, PartitionAnswer
from broker.errors import BrokerError
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, Lock
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode


class Turns:
    """``with turns:``"""

    def __init__(self) -> None:
        self._condition = Condition()
        self._next_ticket = 0
        self._serving = 0
        self._given_up: set[int] = set()

    def __enter__(self) -> None:
        with self._condition:
            ticket = self._next_ticket
            self._next_ticket += 1
            try:
                while self._serving != ticket:
                    self._condition.wait()
            except BaseException:  # Ctrl-C
                self._given_up.add(ticket)
                self._skip()
                raise

    def __exit__(self, *_error: object) -> None:
        with self._condition:
            self._serving += 1
            self._skip()

    def _skip(self) -> None:
        while self._serving in self._given_up:
            self._given_up.remove(self._serving)
            self._serving += 1
        self._condition.notify_all()


# How much longer than its caller wants a fetch may take: the broker answers at that time, and the answer needs time to
# arrive.
_GRACE_S = 0.1

# How often to look for work without a notification.
_LOOK_S = 0.5

# Records that are held and not settled; at this number, no more are fetched.
_HELD_MAX = 100_000

_MAX_BYTES = 50 << 20


class Engine:
    """``failure``: the error that ended the consumer. ``results``: outcomes of acknowledgements, for the consumer's
    callback."""

    def __init__(self, config: ClientConfig, membership: Membership, owner: RecordOwner, clock: Clock) -> None:
        self.lock = Lock()
        self.condition = Condition(self.lock)
        self.turns = Turns()
        self.buffer: deque[ShareRecord] = deque()
        self.results: deque[Settled] = deque()
        self.membership = membership
        self.heartbeats = Heartbeats(config, membership, self.condition, clock)
        self.links: dict[Address, BrokerLink] = {}
        self._config = config
        self._clock = clock
        self._reader = RecordReader(owner)
        self._routing = Routing(config, clock)
        self._names: dict[TopicIdPartition, str] = {}
        self._wanted: dict[BrokerLink, tuple[TopicIdPartition, ...]] = {}
        self._planned_for: frozenset[TopicIdPartition] | None = None
        self._plan_not_before = 0.0
        self._next_link = 0
        self._empty_answers = 0
        self._failing_since: float | None = None
        self._is_closed = False
        self.has_fetched = False

    # For consumers ----------------------------------------------------------------------------------------------------

    def fill(self, deadline: float, max_records: int, strict: bool) -> None:
        """Have at least one record in the buffer, or return at about ``deadline`` (monotonic, s); an answer may come
        later.

        ``strict``: lock no more than ``max_records``; otherwise the rest of a batch may come with them.

        Raises the error that ended the membership, or that lasted for ``default.api.timeout.ms`` with every broker.
        """
        while True:
            self.raise_failure()
            with self.turns:
                if self._is_closed or self._has_buffered():
                    return
                idle_until = self._round(deadline, max_records, strict)
                if self._has_buffered():
                    return
            now = self._clock.monotonic()
            if now >= deadline:
                return
            if idle_until > now:
                with self.condition:  # notified of each assignment
                    if self._planned_for is self.membership.assigned or idle_until != inf:
                        self.condition.wait(min(idle_until, deadline, now + _LOOK_S) - now)

    def take(self, count: int) -> list[ShareRecord]:
        """Up to ``count`` records of the buffer, which count as delivered from now on."""
        taken: list[ShareRecord] = []
        now = self._clock.monotonic()
        with self.lock:
            buffer = self.buffer
            while buffer and len(taken) < count:
                record = buffer.popleft()
                acquired = record.acquired
                if acquired.expires_at > now and acquired.deliver(record.offset):
                    taken.append(record)
        return taken

    def flush(self) -> list[Settled]:
        """Send all decisions and wait for the answers. Returns those that did not count."""
        settled: list[Settled] = []
        with self.turns:
            for link in list(self.links.values()):
                try:
                    settled += self._flush(link)
                except (LinkError, TimedOutError) as error:
                    settled += self._lost(link, error)
        return [outcome for outcome in settled if outcome.error]

    def renew(self, automatic: bool) -> float:
        """Renew the locks that the user has requested, and with ``automatic`` all that are due. Returns when to call
        again (monotonic, s)."""
        with self.turns:
            for link in list(self.links.values()):
                with self.lock:
                    renewals = link.holdings.renewals(self._clock.monotonic(), automatic)
                if not renewals or not link.session.state:
                    continue
                try:
                    self._finish(link)
                    if link.session.is_open and link.renews:
                        link.renew(renewals)
                        self._finish(link)
                except (LinkError, TimedOutError) as error:
                    self._lost(link, error)
        with self.lock:
            if not automatic:
                return inf
            return min((link.holdings.next_renewal_at() for link in self.links.values()), default=inf)

    def check_renewals(self) -> None:
        """Raises UnsupportedVersionError if a broker that delivers records cannot renew locks."""
        for link in self.links.values():
            if link.session.is_open and not link.renews:
                raise UnsupportedVersionError(
                    f"The broker at {link.address[0]}:{link.address[1]} cannot renew locks: that needs Apache Kafka 4.2."
                )

    def raise_failure(self) -> None:
        if self.heartbeats.failure is not None:
            raise self.heartbeats.failure

    def close(self, timeout_s: float) -> list[Settled]:
        """Send the last decisions, release all records, leave the group. Returns the decisions that did not count."""
        settled: list[Settled] = []
        with self.turns, self._routing.limit.within(timeout_s * 1000):
            self._is_closed = True
            for link in list(self.links.values()):
                try:
                    if link.is_waiting or link.session.is_open:
                        self._finish(link)
                    if link.session.is_open:
                        link.acknowledge(ends_session=True)
                        settled += self._finish(link)
                except (BrokerError, OSError):
                    pass  # the broker gives the records to others when it misses this consumer
                with self.lock:
                    link.holdings.send()  # decisions that could not be sent are reported as lost
                settled += self._lost(link, None)
            self._routing.close()
        self.heartbeats.stop(timeout_s)
        return [outcome for outcome in settled if outcome.error]

    # Rounds -----------------------------------------------------------------------------------------------------------

    def _has_buffered(self) -> bool:
        """Drop records with expired locks at the head of the buffer. Returns whether any record is left."""
        now = self._clock.monotonic()
        with self.lock:
            while self.buffer and self.buffer[0].acquired.expires_at <= now:
                self.buffer.popleft()
            return bool(self.buffer)

    def _round(self, deadline: float, max_records: int, strict: bool) -> float:
        """Ask one broker for records, or take its answer. Returns the time before which another round would be
        useless."""
        now = self._clock.monotonic()
        self._plan(now)
        with self.lock:
            for link in self.links.values():
                link.holdings.expire(now)
            held = sum(link.holdings.count() for link in self.links.values())
            orphaned = [link for link in self.links.values() if self._has_orphans(link)]
        for other in orphaned:
            if other.not_before <= now:
                self._guarded(other, partial(self._flush, other))
        chosen, idle_until = self._choose(now)
        if chosen is None:
            return idle_until
        if held >= _HELD_MAX and not chosen.is_fetching:
            return now + 0.05
        self._guarded(chosen, partial(self._fetch, chosen, deadline, max_records, strict))
        return chosen.not_before if len(self._wanted) == 1 else 0.0

    def _has_orphans(self, link: BrokerLink) -> bool:
        """Whether there are decisions about partitions that this consumer no longer reads from this broker."""
        wanted = self._wanted.get(link, ())
        return any(partition not in wanted for partition in link.holdings.partitions_with_pending())

    def _choose(self, now: float) -> tuple[BrokerLink | None, float]:
        """The next broker to ask, or the time (monotonic, s) until which there is none."""
        links = list(self._wanted)
        for link in links:
            if link.is_fetching:
                return link, 0.0
        for index in range(len(links)):
            link = links[(self._next_link + index) % len(links)]
            if link.not_before <= now:
                self._next_link = (self._next_link + index + 1) % len(links)
                return link, 0.0
        earliest = min((link.not_before for link in links), default=inf)
        return None, min(earliest, max(now + 0.01, self._plan_not_before)) if self.membership.assigned else inf

    def _fetch(self, link: BrokerLink, deadline: float, max_records: int, strict: bool) -> None:
        now = self._clock.monotonic()
        if not link.is_fetching:
            brokers = len(self._wanted)
            wait_ms = min(self._config.fetch_max_wait_ms, max(0, int((deadline - now) * 1000)))
            if brokers > 1:
                wait_ms = wait_ms // brokers if self._empty_answers >= brokers else 0
            limits = FetchLimits(wait_ms, self._config.fetch_min_bytes, _MAX_BYTES, max_records, strict)
            link.fetch(self._wanted[link], limits)
        if link.answer_begins(deadline + _GRACE_S):
            self._take(link, link.receive())

    def _flush(self, link: BrokerLink) -> list[Settled]:
        settled = self._finish(link)
        with self.lock:
            if not link.holdings.partitions_with_pending():
                return settled
        if not link.session.is_open:  # it was lost; only a fetch opens a session
            link.fetch((), FetchLimits(0, 0, 1, 1, strict=True))
            settled += self._finish(link)
        if link.session.is_open and link.acknowledge():
            settled += self._finish(link)
        return settled

    def _finish(self, link: BrokerLink) -> list[Settled]:
        """Take the answer to the request in flight, if there is one."""
        if not link.is_waiting:
            return []
        return self._take(link, link.receive())

    def _guarded(self, link: BrokerLink, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except (LinkError, TimedOutError) as error:
            self._lost(link, error)
            self._note_failure(error)
        except BaseException:  # Ctrl-C: an answer may have been received in part
            if link.is_waiting:
                self._lost(link, None)
            raise

    def _lost(self, link: BrokerLink, error: KafkaClientError | None) -> list[Settled]:
        settled = link.lost(error, self._clock.monotonic())
        self.results += settled
        for partition in self._wanted.get(link, ()):
            self._routing.forget_leader(self._names[partition], partition[1])
        self._planned_for = None
        return settled

    def _note_failure(self, error: KafkaClientError) -> None:
        """Raise ``error`` if every call has failed for as long as a call may take."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self._config.api_timeout_ms / 1000:
            self._failing_since = None
            raise error

    # Answers ----------------------------------------------------------------------------------------------------------

    def _take(self, link: BrokerLink, received: Received) -> list[Settled]:
        """Return the settled acknowledgements. Raises errors that another try would not cure."""
        answer = received.answer
        self.results += received.settled
        self._failing_since = None
        failures: list[KafkaClientError] = []
        now = self._clock.monotonic()
        if answer.error in RETRIABLE or (answer.error and not link.session.state):  # the session is lost
            link.not_before = now + self._config.retry_backoff_ms / 1000
        elif answer.error:
            raise self._refused(answer.error, answer.message, f"the share group {self.membership.group!r}")
        count = 0
        for data in answer.partitions:
            if data.acquired:
                try:
                    count += self._take_records(link, data, received.locked_from)
                except ProtocolError as error:
                    where = f"{self._names.get(data.partition, data.partition[0])}-{data.partition[1]}"
                    failures.append(CorruptRecordError(f"Records of {where} cannot be read: {error}."))
            elif data.error:
                failure = self._partition_failed(data, now)
                if failure is not None:
                    failures.append(failure)
        if received.kind == "fetch":
            self.has_fetched = count > 0 or 0 < len(self._wanted) <= self._empty_answers + 1
            self._empty_answers = 0 if count else self._empty_answers + 1
        if failures:
            raise failures[0]
        return list(received.settled)

    def _take_records(self, link: BrokerLink, data: PartitionAnswer, locked_from: float) -> int:
        until = locked_from + link.holdings.lock_s if link.holdings.lock_s else inf
        name = self._names.get(data.partition, str(data.partition[0]))
        ranges = [AcquiredRange(name, data.partition, first, last, n, until) for first, last, n in data.acquired]
        try:
            records = self._reader.read(data.records, ranges)
        except ProtocolError:
            for acquired in ranges:
                acquired.release_all()  # another try may succeed; unreadable records end at the limit of deliveries
            with self.lock:
                link.holdings.add(ranges)
            raise
        with self.lock:
            link.holdings.add(ranges)
            self.buffer += records
        return len(records)

    def _partition_failed(self, data: PartitionAnswer, now: float) -> KafkaClientError | None:
        name = self._names.get(data.partition)
        if data.error in RETRIABLE:
            if name is not None:
                self._routing.forget_leader(name, data.partition[1])
            self._planned_for = None
            self._plan_not_before = now + self._config.retry_backoff_ms / 1000
            return None
        return self._refused(data.error, data.message, f"{name or data.partition[0]}-{data.partition[1]}")

    def _refused(self, code: int, message: str, what: str) -> KafkaClientError:
        if code == ErrorCode.unsupported_version:
            return switched_off("the group's coordinator")
        reason = message.strip().rstrip(".") or code_name(code)
        return BrokerAnswerError(f"The broker refuses to share {what}: {reason}.", code)

    # Leaders ----------------------------------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Find the leaders of the assigned partitions, if the assignment has changed or a leader has moved."""
        assigned = self.membership.assigned
        if assigned is self._planned_for or now < self._plan_not_before:
            return
        try:
            with self._routing.limit.within(self._config.request_timeout_ms):
                leaders = self._leaders(assigned)
        except (LinkError, TimedOutError, RetriableError) as error:
            self._plan_not_before = now + self._config.retry_backoff_ms / 1000
            self._note_failure(error)
            return
        wanted: dict[BrokerLink, list[TopicIdPartition]] = {}
        for partition, address in sorted(leaders.items()):
            link = self.links.get(address)
            if link is None:
                link = self.links[address] = BrokerLink(
                    address, self._routing, self.membership.group, self.membership.member_id, self.lock
                )
            wanted.setdefault(link, []).append(partition)
        self.has_fetched = False
        self._wanted = {link: tuple(partitions) for link, partitions in wanted.items()}
        if len(leaders) == len(assigned):
            self._planned_for = assigned
        else:
            self._plan_not_before = now + self._config.retry_backoff_ms / 1000

    def _leaders(self, assigned: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Address]:
        """The known leaders; others are asked for soon."""
        names = self._topic_names()
        if any(topic_id not in names for topic_id, _ in assigned):
            self._routing.refresh(self.membership.topics)
            names = self._topic_names()
        self._names = {(topic_id, index): names[topic_id] for topic_id, index in assigned if topic_id in names}
        self._routing.learn_leaders((name, index) for (_, index), name in self._names.items())
        leaders: dict[TopicIdPartition, Address] = {}
        for partition, name in self._names.items():
            with suppress(RetriableError):
                leaders[partition] = self._routing.leader(name, partition[1])
        return leaders

    def _topic_names(self) -> dict[UUID, str]:
        known = [self._routing.known_topic(name) for name in self.membership.topics]
        return {topic.topic_id: topic.name for topic in known if topic is not None and topic.topic_id is not None}
