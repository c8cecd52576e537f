"""Watches of topics (PIP-145): clients are told which topics of a namespace that match an expression are made and deleted.

A *watch* knows which topics its client has been told of. When topics or rights change, the names to check are noted in the watch,
and the watch is queued. The waker's thread takes watches out of the queue, determines for each of these names which topics exist
and are visible to the client, and sends the difference. It does so for at most ``_TURN_S`` at a time, and then pauses four times
as long as that took, so that a client that makes topics or watches without end gets a fifth of the thread.

A watch with a full connection stays out of the queue until the connection takes more. Meanwhile names are noted, or, if there
are many, that all names must be checked.

As in Pulsar, watches are told of persistent topics only, with each partition listed. Expressions are RE2's. They are matched as a
whole, with the names of topics without domain and partition.

Handlers begin and end watches; any thread reports changes. ``_lock`` guards the tables, the queue and the watches' ``unseen``
names; all other state of a watch belongs to its handler until it is ready, and then to the waker's thread.

Tests: tests/pulsar/topics/test_watches.py.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import attrs

from broker.errors import Refusal
from broker.expressions import compile_expression
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.refusals import NotAllowed, ServiceNotReady, TooManyRequests
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topic_names import TopicName, pulsar_name, topics_hash
from broker.pulsar.topics.registry import TopicRegistry
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandWatchTopicUpdate

# Characters of an expression, which is compiled anew each time, so that no watch holds on to automata. Pulsar allows 50.
PATTERN_MAX: Final = 1000
# Watches of a connection, and of all connections: about 1 KB each. A client has a watch for each consumer of a pattern.
_OF_CONNECTION_MAX: Final = 1000
_MAX: Final = 5000
# Topics that all watches together have told their clients, checked when a watch begins: about 60 bytes each.
_TOLD_MAX: Final = 2_000_000
# Names that are checked without a break, and for how long (s) watches are served before the pause.
_SLICE: Final = 500
_TURN_S: Final = 0.002
# The shortest pause (s), so that topics that are made together are told together.
_PAUSE_S: Final = 0.05
_PAUSE_FACTOR: Final = 4
# Names that a watch notes before all names have to be checked.
_UNSEEN_MAX: Final = 200
# Topics in an update.
_UPDATE_MAX: Final = 1000


@attrs.define(eq=False)
class TopicWatch:
    id: int  # the client's
    state: PulsarConnection
    namespace: str
    pattern: str
    may_see: Callable[[str], bool]  # by the name in Kafka
    told: dict[str, Sequence[str]] = attrs.Factory(dict)  # name in Kafka -> the topic, or its partitions
    unseen: set[str] | None = attrs.Factory(set)  # names in Kafka to be looked at; None: all
    ready: bool = False  # the client knows that it watches
    queued: bool = False
    ended: bool = False
    # The check that is under way: names in Kafka that remain, and the topics for the next update.
    left: list[str] = attrs.Factory(list)
    new: list[str] = attrs.Factory(list)
    deleted: list[str] = attrs.Factory(list)

    @property
    def topics(self) -> list[str]:
        """The topics that the client has been told of."""
        return list(chain.from_iterable(self.told.values()))


class TopicWatches:
    def __init__(self, topics: TopicRegistry, line: Line, clock: Clock, timer: Timer) -> None:
        self._topics = topics
        self._line = line
        self._clock = clock
        self._timer = timer
        self._watches: dict[PulsarConnection, dict[int, TopicWatch]] = {}
        # Name in Kafka -> number of partitions, and the names in Pulsar. Shared by all watches.
        self._texts: dict[str, tuple[int, Sequence[str]]] = {}
        self._queue: deque[TopicWatch] = deque()
        self._working = False  # a turn is under way, or its time is set
        self._not_before = 0.0
        self._lock = Lock()

    def begin(
        self, state: PulsarConnection, number: int, namespace: str, pattern: str, may_see: Callable[[str], bool]
    ) -> TopicWatch:
        """A new watch, which has seen all present topics and replaces an earlier watch with this number. The caller tells the
        client, then calls ``ready``. Takes some 10 us for each topic. Raises NotAllowed, TooManyRequests, ServiceNotReady."""
        if len(pattern) > PATTERN_MAX:
            raise NotAllowed(f"The expression has {len(pattern)} characters, and {PATTERN_MAX} are allowed.")
        pattern = without_domain(pattern)
        try:
            compile_expression(pattern)
        except Refusal as error:
            raise NotAllowed(f"{pattern[:200]} cannot be watched: {error.message}") from None
        watch = TopicWatch(number, state, namespace, pattern, may_see)
        self.end(state, number)
        with self._lock:
            own = self._watches.setdefault(state, {})
            own[number] = watch
            full = len(own) > _OF_CONNECTION_MAX or sum(map(len, self._watches.values())) > _MAX
        try:
            if full:
                raise TooManyRequests(f"There may be {_OF_CONNECTION_MAX} watches of a connection, {_MAX} of all.")
            if state.closed:  # ``forget`` may have been called before the watch was added
                raise ServiceNotReady("The connection is closed.")
            self._look(watch, self._topics.kafka_names())
            watch.deleted, watch.new = [], []
            if sum(len(other.told) for other in self._all()) > _TOLD_MAX:
                raise TooManyRequests("The topics that are watched are too many.")
        except BaseException:
            self.end(state, number)
            raise
        return watch

    def ready(self, watch: TopicWatch) -> None:
        """The client has been told the present topics, and is told of changes from now on."""
        with self._lock:
            watch.ready = True
            self._enqueue(watch)

    def end(self, state: PulsarConnection, number: int) -> None:
        """An unknown watch is ignored."""
        with self._lock:
            own = self._watches.get(state, {})
            watch = own.pop(number, None)
            if watch is not None:
                watch.ended = True
            if not own:
                self._remove(state)

    def forget(self, state: PulsarConnection) -> None:
        """The connection is closed."""
        with self._lock:
            for watch in self._watches.get(state, {}).values():
                watch.ended = True
            self._remove(state)

    def _remove(self, state: PulsarConnection) -> None:
        self._watches.pop(state, None)
        if not self._watches:
            self._texts = {}

    # -- events: any thread, never blocks ---------------------------------------------------------------------------------

    def changed(self, topic: str) -> None:
        """The topic of this name in Kafka was made or deleted, or has got more partitions."""
        namespace = pulsar_name(topic).namespace if self._watches else None
        for watch in self._all():
            if watch.namespace != namespace:
                continue
            with self._lock:
                if watch.unseen is not None:
                    watch.unseen.add(topic)
                    if len(watch.unseen) > _UNSEEN_MAX:
                        watch.unseen = None
                self._enqueue(watch)

    def rights_changed(self) -> None:
        for watch in self._all():
            with self._lock:
                watch.unseen = None
                self._enqueue(watch)

    def writable(self, state: PulsarConnection) -> None:
        """The connection takes more bytes again."""
        if self._watches:
            with self._lock:
                for watch in self._watches.get(state, {}).values():
                    self._enqueue(watch)

    def _all(self) -> Iterator[TopicWatch]:
        if not self._watches:
            return iter(())
        with self._lock:
            return iter([watch for own in self._watches.values() for watch in own.values()])

    def _enqueue(self, watch: TopicWatch) -> None:
        """Queue the watch if it has names to check. The lock is held."""
        if watch.unseen == set() or not watch.ready or watch.queued or watch.ended:
            return
        watch.queued = True
        self._queue.append(watch)
        if not self._working:
            self._working = True
            self._timer.at(max(self._not_before, self._clock.monotonic()), self._soon)

    def _soon(self) -> None:
        self._line.call(self._turn)

    # -- checking names: the waker's thread -------------------------------------------------------------------------------

    def _turn(self) -> None:
        began = now = self._clock.monotonic()
        try:
            while now < began + _TURN_S and self._queue:
                self._serve()
                now = self._clock.monotonic()
        finally:  # a failure of one watch must not stop the others
            with self._lock:
                self._not_before = now + max(_PAUSE_S, _PAUSE_FACTOR * (now - began))
                self._working = bool(self._queue)
            if self._working:
                self._timer.at(self._not_before, self._soon)

    def _serve(self) -> None:
        """The next slice of the watch whose turn it is."""
        unseen: set[str] | None = set()
        with self._lock:
            watch = self._queue.popleft()
            if watch.ended or not (watch.left or watch.state.connection.writable):
                watch.queued = False  # `writable` queues it again
                return
            if not watch.left:
                unseen, watch.unseen = watch.unseen, unseen
        try:
            if not watch.left:
                watch.left = sorted(self._topics.kafka_names() | watch.told.keys() if unseen is None else unseen)
            part = watch.left[-_SLICE:]
            del watch.left[-_SLICE:]
            self._look(watch, part)
            if not watch.left:
                self._tell(watch)
        finally:
            with self._lock:
                if watch.left:
                    self._queue.appendleft(watch)  # first, so that only one watch has a list of all names in memory
                else:
                    watch.queued = False
                    self._enqueue(watch)

    def _look(self, watch: TopicWatch, topics: Iterable[str]) -> None:
        """Note the changes of these topics."""
        matches = compile_expression(watch.pattern).fullmatch
        for topic in topics:
            name = pulsar_name(topic)
            if name.namespace != watch.namespace:
                continue
            now: Sequence[str] = ()
            if matches(f"{name.namespace}/{name.local}") and watch.may_see(topic):
                now = self._texts_of(topic, name)
            before = watch.told.pop(topic, ())
            if now:
                watch.told[topic] = now
            if now != before:
                was, there_is = set(before), set(now)
                watch.deleted += [text for text in before if text not in there_is]
                watch.new += [text for text in now if text not in was]

    def _texts_of(self, topic: str, name: TopicName) -> Sequence[str]:
        """The names of the topic or its partitions; empty if it does not exist."""
        count = self._topics.partitions(name)
        if count is None:
            self._texts.pop(topic, None)
            return ()
        known = self._texts.get(topic)
        if known is None or known[0] != count:
            known = self._texts[topic] = count, tuple(map(str, name.partitions(count)))
        return known[1]

    def _tell(self, watch: TopicWatch) -> None:
        new, deleted = watch.new, watch.deleted
        if not new and not deleted:
            return
        watch.new, watch.deleted = [], []
        hash = topics_hash(watch.topics)
        for start in range(0, max(len(new), len(deleted)), _UPDATE_MAX):
            update = CommandWatchTopicUpdate(watcher_id=watch.id, topics_hash=hash)
            update.new_topics.extend(new[start : start + _UPDATE_MAX])
            update.deleted_topics.extend(deleted[start : start + _UPDATE_MAX])
            watch.state.push(write_command(BaseCommand.Type.WATCH_TOPIC_UPDATE, update))


def without_domain(pattern: str) -> str:
    """Pulsar's TopicList.removeTopicDomainScheme: expressions may begin with ``persistent://``, and ``^`` before that. Raises
    NotAllowed for another domain."""
    prefix, separator, rest = pattern.partition("://")
    if not separator:
        return pattern
    for domain in ("non-persistent", "persistent"):
        if prefix.endswith(domain):
            return prefix.removesuffix(domain) + rest
    raise NotAllowed(f"There are no topics of the domain {prefix[:100]!r}.")
