"""The records of share groups: all share partitions of the broker, their sessions, and their rows in the catalogue.

Membership is in ``broker.kafka.groups``; here a group is a name, and a member is an id that has opened a session. A share
partition is in memory while a session fetches from it or a record of it is in flight; otherwise only its row exists in the
catalogue. Of several nodes each has the share partitions of the partitions that it owns (``other_nodes.py``).

Any thread. The lock guards the tables of share partitions; an entry's lock may be taken under it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.groups.share.values import NewPartitions
from broker.kafka.groups.values import SHARE_PARTITION_BYTES, CoordinatorMemory
from broker.kafka.share.other_nodes import UNBEGUN, Order, OtherNodes, add_unbegun, remove_begun
from broker.kafka.share.partition_entry import Link, PartitionEntry, ignore
from broker.kafka.share.share_partition import DEFAULTS, SharePartition, ShareSettings
from broker.kafka.share.share_sessions import MAX_SESSIONS, ShareSession, ShareSessions
from broker.kafka.share.share_store import KIND, Key, decode, delete_now, load, restored, share_store, state_of
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter, Done
from broker.network.service import Connection
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import TopicPartition

log = get_logger("kafka")

# Links that are given up at once; more are given up on the catalogue-writer thread.
_AT_ONCE = 200
# Share partitions that begin in one transaction of the catalogue.
_BEGUN_AT_ONCE = 1_000
# How long the catalogue's writer has for what other nodes' coordinators want.
_WRITTEN_S = 30.0


class ShareOffset(NamedTuple):
    """``start``: the share-partition start offset. ``lag``: number of unfinished offsets from there on; -1 if unknown."""

    start: int
    lag: int


class ShareService:
    """``settings``: returns the settings of a group. ``memory`` counts share partitions, whether they are in use or not;
    ``has_memory_for`` is asked before a group begins with a partition. ``is_group``: whether there is a share group of this id;
    nothing is kept of other groups, because nobody could list or delete it. ``others``: set if there are several nodes."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        writer: CatalogueWriter,
        settings: Callable[[str], ShareSettings] = lambda _: DEFAULTS,
        max_sessions: int = MAX_SESSIONS,
        has_memory_for: Callable[[int], bool] = lambda _: True,
        memory: CoordinatorMemory | None = None,
        is_group: Callable[[str], bool] = lambda _: True,
        others: OtherNodes | None = None,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._timer = timer
        self._catalogue = catalogue
        self._writer = writer
        self.settings = settings
        self._has_memory_for = has_memory_for
        self._is_group = is_group
        self._others = others
        self._memory = CoordinatorMemory(0) if memory is None else memory
        self.store = share_store(writer, clock, timer, delete_now if others is None else remove_begun)
        self.sessions = ShareSessions(max_sessions)
        self._lock = Lock()
        self._beginning = Lock()  # held while the begins of groups are determined
        self._entries: dict[Key, PartitionEntry] = {}
        self._rows: dict[Key, bytes] = {}  # rows of share partitions that are not in memory
        self._initialising: dict[str, list[_Initialise]] = {}  # by group, not yet written
        self.acknowledge_requests = 0
        self._counts = [0] * 5  # of share partitions that have left the memory

    # -- the broker's life --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the rows. Rows of missing topics are deleted: the broker died between the two deletions. Raises StorageError.

        The catalogue is flushed with each acknowledgement, and a log is not: when the machine fails, a log may lose records that
        were acknowledged. Rows forget them here, before other records get their offsets."""
        rows = load(self._catalogue)
        # Another node may have made a topic since this one has looked.
        there = None if self._others is None else {row.topic_id.bytes for row in self._catalogue.topics()}
        gone = [
            key
            for key, row in rows.items()
            if (self.topic_name(key.topic_id) is None if there is None else key.topic_id not in there)
            or (row == UNBEGUN and there is None)  # there are no other nodes any more
        ]
        if gone:
            delete_now(self._catalogue, gone)
        for key in gone:
            del rows[key]
        if self._others is not None:
            rows = {key: row for key, row in rows.items() if row != UNBEGUN and self._is_own(key)}
        if cut := dict(self._beyond_logs(rows)):
            log.warning("share_state_cut", share_partitions=len(cut))
            self._catalogue.alter_documents([(KIND, key.text, row) for key, row in cut.items()])
        self._rows = rows | cut
        self._memory.add(sum(map(_size, rows)))

    def _beyond_logs(self, rows: Mapping[Key, bytes]) -> Iterator[tuple[Key, bytes]]:
        """Rows that have offsets beyond the end of the log, without these offsets."""
        for key, row in rows.items():
            log = self.log((key.topic_id, key.partition))
            if log is None or log.offline is not None:
                continue
            try:
                state = decode(row)
                if state.end > log.log_end_offset:
                    yield key, state_of(restored(state, DEFAULTS, log.log_end_offset)).encode()
            except StorageError:
                pass  # the fetching clients get the error

    def flush(self) -> None:
        """Hand all unsaved states to the catalogue writer."""
        self.store.flush()

    def _is_own(self, key: Key) -> bool:
        """Whether this node has the partition."""
        name = self.topic_name(key.topic_id)
        return name is not None and (self._others is None or not self._others.own(name, key.partition))

    # -- topics -----------------------------------------------------------------------------------------------------------

    def topic_name(self, topic_id: bytes) -> str | None:
        info = self._logs.topics_by_id.get(topic_id)
        return None if info is None else info.name

    def log(self, partition: TopicPartition) -> Log | None:
        return self._logs.partitions_by_id.get(partition)

    def topic_deleted(self, topic_id: UUID) -> None:
        """Forget the share partitions of the topic. Waiting fetches get an error."""
        self._forget([key for key in self._keys() if key.topic_id == topic_id.bytes], ignore)

    # -- share partitions ---------------------------------------------------------------------------------------------------

    def entry(self, group_id: str, partition: TopicPartition) -> PartitionEntry | None:
        """The share partition, if it is in memory."""
        return self._entries.get(Key(group_id, *partition))

    def _get_or_make(self, group_id: str, partition: TopicPartition, log: Log) -> PartitionEntry:
        """The lock is held."""
        key = Key(group_id, *partition)
        entry = self._entries.get(key)
        if entry is None or entry.log is not log:
            self.store.spare(key, even_queued=False)
            stored = self._rows.pop(key, None)
            entry = PartitionEntry(key, log, self._clock, self._timer, self.store, stored, self._unload)
            self._entries[key] = entry
        return entry

    def begin(
        self, entries: Iterable[PartitionEntry], settings: ShareSettings
    ) -> dict[PartitionEntry, Refusal | StorageError]:
        """Find out where the group begins, and make that durable, so that a group that has begun at the end of a log gets all
        later records, whatever happens. For threads that may block. Returns the failures."""
        entries = list(entries)
        failures: dict[PartitionEntry, Refusal | StorageError] = {}
        for start in range(0, len(entries), _BEGUN_AT_ONCE):
            failures.update(self._begin(entries[start : start + _BEGUN_AT_ONCE], settings))
        return failures

    def _begin(
        self, entries: Sequence[PartitionEntry], settings: ShareSettings
    ) -> dict[PartitionEntry, Refusal | StorageError]:
        failures: dict[PartitionEntry, Refusal | StorageError] = {}
        partitions: dict[PartitionEntry, SharePartition] = {}
        new: dict[PartitionEntry, bytes] = {}
        # Of groups that other nodes coordinate: one question for a request, as anybody may name partitions of any group.
        rows: dict[str, dict[str, bytes]] = {}
        with self._beginning:
            for entry in entries:
                if entry.partition is not None or entry in partitions:
                    continue
                try:
                    may_begin = self._look_up(entry, rows)
                    partitions[entry] = self._restored(entry, settings)
                    if entry.stored is None:
                        if not may_begin:
                            # An error of a partition that makes every client try again.
                            raise RequestError(ErrorCode.unknown_topic_or_partition, "There is no such share group.")
                        if self.store.is_being_deleted(entry.key):
                            raise RequestError(
                                ErrorCode.replica_not_available, "What the group has read before is being deleted."
                            )
                        self._take_memory(entry.key)
                        new[entry] = state_of(partitions[entry]).encode()
                except (Refusal, StorageError) as error:
                    failures[entry] = error
            try:
                if new:
                    self._catalogue.alter_documents([(KIND, entry.key.text, state) for entry, state in new.items()])
            except StorageError as error:
                failures.update(dict.fromkeys(new, error))
                self._memory.add(-sum(_size(entry.key) for entry in new))
            for entry, partition in partitions.items():
                state = new.get(entry, entry.stored)
                if entry not in failures and state is not None:
                    entry.begin(partition, state)
            gone = [entry.key for entry in new if entry.forgotten]
            if gone:
                self._memory.add(-sum(map(_size, gone)))
                self.store.delete(gone, ignore)
        return failures

    def _look_up(self, entry: PartitionEntry, rows: dict[str, dict[str, bytes]]) -> bool:
        """Whether the group may begin, if it has not. ``rows``: of other nodes' groups, as far as they were read. Raises
        StorageError, RequestError."""
        group_id = entry.key.group_id
        if entry.stored is not None:
            return True
        if self._others is None or not self._others.coordinate(group_id):
            return self._is_group(group_id)
        if group_id not in rows:
            rows[group_id] = self._others.all_rows(group_id)
        row = rows[group_id].get(entry.key.text)
        if row is not None and row != UNBEGUN:  # the topic was made by another node when this one had just looked
            self._take_memory(entry.key)
            entry.stored = row
        return row is not None

    def _take_memory(self, key: Key) -> None:
        """Raises RequestError if there is no memory left."""
        size = _size(key)
        if not self._has_memory_for(size):
            raise RequestError(
                ErrorCode.coordinator_not_available, "The groups take as much memory as coordinator_max_bytes allows."
            )
        self._memory.add(size)

    def _restored(self, entry: PartitionEntry, settings: ShareSettings) -> SharePartition:
        if entry.stored is None:
            return SharePartition(self._first_offset(entry.log, settings), settings)
        return restored(decode(entry.stored), settings, entry.log.log_end_offset)

    def _first_offset(self, log: Log, settings: ShareSettings) -> int:
        """The start offset according to ``share.auto.offset.reset``."""
        if settings.auto_offset_reset == "earliest":
            return log.log_start_offset
        if settings.auto_offset_reset != "latest":
            result = log.times.offset_for_timestamp(self._clock.time_ms() - settings.reset_duration_ms)
            if result is not None:
                return result[0]
        return log.high_watermark

    def _unload(self, entry: PartitionEntry) -> None:
        """Keep only the row, if the entry is unused."""
        with self._lock, entry.lock:
            if entry.is_unused and self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
                if entry.partition is not None:
                    self._counts = [a + b for a, b in zip(self._counts, entry.partition.counts, strict=True)]
                if entry.stored is not None and not entry.forgotten:
                    self._rows[entry.key] = entry.stored
                entry.forgotten = True  # threads that still have the entry must not store it

    # -- sessions -----------------------------------------------------------------------------------------------------------

    def open_session(self, group_id: str, member_id: str, connection: Connection) -> ShareSession:
        """Raises RequestError."""
        session, old = self.sessions.open(group_id, member_id, connection)
        if old is not None:
            # The member keeps its records.
            session.left = {**old.left, **{link.entry: None for link in old.links.values()}}
            if old.waiter is not None:
                old.waiter.give_up_soon()
            links = list(old.links.values())
            self._in_pieces(len(links), lambda start, end: self._detach(links[start:end]))
        if connection.closed:  # it may have closed before the session existed
            self.close_session(session)
        return session

    def add(self, session: ShareSession, partition: TopicPartition) -> bool:
        """The session begins to fetch from the partition. False if the partition does not exist."""
        log = self.log(partition)
        if log is None:
            return False
        with self._lock:  # so that the entry is not unloaded in between
            link = Link(session, self._get_or_make(session.group_id, partition, log))
            link.entry.attach(link)
        if session.links.setdefault(partition, link) is not link:
            link.entry.detach(link)  # another request of the session was faster
        elif session.closed:  # by another thread, which may not have seen the link
            session.links.pop(partition, None)
            link.entry.detach(link)
            self._unload(link.entry)
        elif link.entry.partition is None:
            session.unbegun.append(link.entry)
        return True

    def drop(self, session: ShareSession, partition: TopicPartition) -> None:
        """The session stops fetching from the partition. The member may still acknowledge its records."""
        link = session.links.pop(partition, None)
        if link is None:
            if session.refused.pop(partition, 0) is None:
                self.sessions.give_back(session)
            return
        self.sessions.give_back(session)
        self.set_aside(session, link)

    def set_aside(self, session: ShareSession, link: Link) -> None:
        """The session does not fetch from the link's partition now."""
        entry = link.entry
        entry.detach(link)
        with entry.lock:
            if entry.partition is not None and entry.partition.holds(session.member_id):
                session.left[entry] = None
        self._unload(entry)

    def close_session(self, session: ShareSession) -> None:
        """Close the session and make the member's records available to others."""
        if not self.sessions.close(session):
            return
        links, left = list(session.links.values()), list(session.left)
        session.links, session.left, session.refused = {}, {}, {}
        session.ready.clear()
        session.unbegun.clear()
        if session.waiter is not None:
            session.waiter.give_up_soon()
        entries = [*(link.entry for link in links), *left]
        self._in_pieces(len(links), lambda start, end: self._detach(links[start:end]))
        self._in_pieces(len(entries), lambda start, end: self._leave(entries[start:end], session.member_id))

    def _in_pieces(self, count: int, work: Callable[[int, int], None]) -> None:
        """``work(start, end)``, here if it is short, and otherwise on the catalogue-writer thread, between writes."""
        if count <= _AT_ONCE:
            work(0, count)
            return
        for start in range(0, count, _AT_ONCE):
            self._writer.call_soon(partial(work, start, start + _AT_ONCE))

    @staticmethod
    def _detach(links: Sequence[Link]) -> None:
        for link in links:
            link.entry.detach(link)

    def _leave(self, entries: Sequence[PartitionEntry], member_id: str) -> None:
        for entry in entries:
            entry.member_left(member_id)
            entry.wake_next()  # if it was this member's turn
            self._unload(entry)

    def connection_closed(self, connection: Connection) -> None:
        """Close the connection's sessions."""
        if self.sessions.has_any(connection):
            self._close_sessions(self.sessions.of_connection(connection))

    def _close_sessions(self, sessions: Sequence[ShareSession]) -> None:
        """Close as many as is cheap here, and the others on the catalogue-writer thread, between writes."""
        left = _AT_ONCE
        for number, session in enumerate(sessions):
            if left <= 0:
                self._writer.call_soon(partial(self._close_sessions, sessions[number:]))
                return
            left -= 1 + len(session.links) + len(session.left)
            self.close_session(session)

    def member_fenced(self, group_id: str, member_id: str) -> None:
        """The session time-out of the member has passed without a heartbeat."""
        session = self.sessions.of_member(group_id, member_id)
        if session is not None:
            self.close_session(session)

    # -- administration -----------------------------------------------------------------------------------------------------

    def _keys(self) -> list[Key]:
        with self._lock:
            return [*self._entries, *self._rows]

    def keys_of(self, group_ids: Collection[str]) -> dict[str, list[Key]]:
        """By group, the share partitions that it has begun with. One pass over all keys, for any number of groups."""
        by_group: dict[str, list[Key]] = {group_id: [] for group_id in group_ids}
        for key in self._keys():
            if key.group_id in by_group:
                by_group[key.group_id].append(key)
        return by_group

    def offsets(self, group_id: str) -> dict[tuple[str, int], ShareOffset]:
        """By topic and partition, of all share partitions that the group has begun with, on any node. May block. Raises
        StorageError."""
        return {**self.offsets_elsewhere(group_id), **self.offsets_of(self.keys_of([group_id])[group_id])}

    def offsets_elsewhere(self, group_id: str) -> dict[tuple[str, int], ShareOffset]:
        """``offsets`` of partitions that other nodes have, as they were stored. Nobody here knows how long their logs are. May
        block. Raises StorageError."""
        offsets = {}
        for key, row in {} if self._others is None else self._others.rows(group_id).items():
            name = self.topic_name(key.topic_id)
            if name is not None and not self._is_own(key):
                try:
                    offsets[name, key.partition] = ShareOffset(decode(row).start, -1)
                except StorageError:
                    offsets[name, key.partition] = ShareOffset(-1, -1)
        return offsets

    def offsets_of(self, keys: Iterable[Key]) -> dict[tuple[str, int], ShareOffset]:
        """``offsets`` of these share partitions of one group."""
        offsets = {}
        for key in keys:
            name = self.topic_name(key.topic_id)
            log = None if name is None else self.log((key.topic_id, key.partition))
            if name is not None and log is not None and (offset := self._offset(key, log)) is not None:
                offsets[name, key.partition] = offset
        return offsets

    def _offset(self, key: Key, log: Log) -> ShareOffset | None:
        entry, row = self._entries.get(key), self._rows.get(key)
        if entry is not None:
            with entry.lock:
                if entry.partition is not None:
                    done = sum(end - first for first, end in entry.partition.done())
                    start = max(entry.partition.start, log.log_start_offset)
                    return ShareOffset(start, max(0, log.high_watermark - start - done))
                row = entry.stored
        if row is None:
            return None
        try:
            state = decode(row)
        except StorageError:
            return ShareOffset(-1, -1)
        start = max(state.start, log.log_start_offset)
        return ShareOffset(start, max(0, log.high_watermark - start - sum(end - first for first, end in state.done)))

    def reset(self, group_id: str, topic_id: UUID, partition: int, offset: int, done: Done) -> bool:
        """Set the group's start offset, whatever was acknowledged. ``done`` is called when that is durable. Returns False if the
        partition does not exist here. May block. Raises StorageError, Refusal."""
        log = self.log((topic_id.bytes, partition))
        if log is None:
            return False
        with self._lock:
            entry = self._get_or_make(group_id, (topic_id.bytes, partition), log)
            with entry.lock:
                entry.pins += 1

        def unpin() -> None:
            with entry.lock:
                entry.pins -= 1
            self._unload(entry)

        def saved(error: StorageError | None) -> None:
            unpin()
            done(error)

        failure = self.begin([entry], self.settings(group_id)).get(entry)
        if failure is not None:
            unpin()
            raise failure
        with entry.lock:
            if entry.partition is not None:
                entry.partition.reset(min(max(offset, log.log_start_offset), log.high_watermark))
        entry.save(saved)
        entry.refill()
        return True

    def reset_elsewhere(self, group_id: str, offsets: Mapping[tuple[bytes, int], int]) -> None:
        """``reset`` for partitions (topic id, partition) of other nodes: durable when this returns, and in force when they have
        heard of it. May block. Raises StorageError."""
        assert self._others is not None
        self._others.set_offsets(group_id, offsets)

    def is_elsewhere(self, topic: str, partition: int) -> bool:
        """Whether another node has the partition."""
        return self._others is not None and self._others.own(topic, partition)

    def forget(self, group_id: str, topic_ids: Iterable[UUID] | None, done: Done) -> None:
        """Forget the group's share partitions of these topics, or all. ``done`` is called when that is durable; other nodes hear
        of it then."""
        wanted = None if topic_ids is None else {topic_id.bytes for topic_id in topic_ids}
        if self._others is not None:
            done = _Both(done).one
            self._writer.change(self._others.forget(group_id, wanted, list(self._logs.topics_by_id)), done)
        self._forget_here(group_id, wanted, done)

    def _forget_here(self, group_id: str, wanted: Collection[bytes] | None, done: Done) -> None:
        with self._lock:  # rows that are being written now are deleted afterwards
            writes = list(self._initialising.get(group_id, ()))
        keys = {key for key in self._keys() if key.group_id == group_id}.union(*(write.keys for write in writes))
        self._forget(keys if wanted is None else {key for key in keys if key.topic_id in wanted}, done)

    def _forget(self, keys: Collection[Key], done: Done) -> None:
        if not keys:
            done(None)
            return
        entries = []
        with self._lock:
            for write in [write for writes in self._initialising.values() for write in writes]:
                write.forgotten |= write.keys.intersection(keys)
            for key in keys:
                known = self._rows.pop(key, None) is not None
                entry = self._entries.pop(key, None)
                if known or (entry is not None and entry.stored is not None):
                    self._memory.add(-_size(key))
                if entry is not None:
                    entries.append(entry)
                    with entry.lock:
                        entry.forgotten = True
        self.store.delete(keys, done)
        for entry in entries:
            entry.refill(always=True)

    def carry_out_orders(self) -> None:
        """What coordinators on other nodes want done with the records here. It is done, and durable, when this returns. Not for
        the writer's thread. Raises StorageError."""
        assert self._others is not None
        for order in self._others.orders():
            if order.offsets is None:
                waiting = _Waiting(1)
                self._forget_here(order.group_id, order.topic_ids, waiting.done)
            else:
                waiting = self._reset_all(order)
            waiting.wait()
            self._others.carried_out(order.document)

    def _reset_all(self, order: Order) -> "_Waiting":
        assert order.offsets is not None
        own = {each: offset for each, offset in order.offsets.items() if self._is_own(Key(order.group_id, *each))}
        waiting = _Waiting(len(own))
        for (topic_id, partition), offset in own.items():
            try:
                if not self.reset(order.group_id, UUID(bytes=topic_id), partition, offset, waiting.done):
                    waiting.done(None)
            except Refusal:  # the group or the topic has gone, or the disk: the order has no object any more
                waiting.done(None)
            except StorageError as error:
                waiting.done(error)
        return waiting

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        """Begin with those of these partitions that the group has not begun with, by its settings and as the log is now. ``done``
        is called when that is durable. May read the disk; the catalogue's writer does not."""
        write = _Initialise(self, group_id, partitions)
        write.look()
        with self._lock:
            self._initialising.setdefault(group_id, []).append(write)
        self._writer.change(write, partial(write.done, done))

    def _is_known(self, key: Key) -> bool:
        with self._lock:
            entry = self._entries.get(key)
            return key in self._rows or (entry is not None and entry.partition is not None)

    def _initialised(self, write: "_Initialise", rows: Mapping[Key, bytes]) -> None:
        """These rows are durable. Share partitions that have begun meanwhile have written rows of their own."""
        late = []
        with self._lock:
            others = self._initialising[write.group_id]
            others.remove(write)
            if not others:
                del self._initialising[write.group_id]
            for key, row in rows.items():
                entry = self._entries.get(key)
                if key in write.forgotten:
                    self._memory.add(-_size(key))
                elif self.log((key.topic_id, key.partition)) is None:
                    late.append(key)
                    self._memory.add(-_size(key))
                elif entry is None and key not in self._rows:
                    self._rows[key] = row
                else:
                    self._memory.add(-_size(key))
                    if entry is not None:
                        entry.changed()
        if late:
            self.store.delete(late, ignore)

    # -- figures ------------------------------------------------------------------------------------------------------------

    def entries(self) -> list[PartitionEntry]:
        with self._lock:
            return list(self._entries.values())

    def acknowledged(self) -> list[int]:
        """By acknowledge type, the number of acknowledged records."""
        counts = self._counts
        for entry in self.entries():
            if (partition := entry.partition) is not None:
                counts = [a + b for a, b in zip(counts, partition.counts, strict=True)]
        return counts


class _Initialise:
    """Partitions that a group begins with, on their way into the catalogue. The writer may call it twice."""

    __slots__ = ("_elsewhere", "_failure", "_partitions", "_rows", "_share", "_starts", "forgotten", "group_id", "keys")

    def __init__(self, share: ShareService, group_id: str, partitions: Sequence[NewPartitions]) -> None:
        self._share = share
        self._partitions = partitions
        self._starts: dict[Key, int] = {}
        self._elsewhere: list[Key] = []
        self._rows: dict[Key, bytes] | None = None
        self._failure: StorageError | None = None
        self.group_id = group_id
        self.keys = frozenset(
            Key(group_id, topic.topic_id.bytes, number)
            for topic in partitions
            for number in range(topic.first, topic.end)
        )
        self.forgotten: set[Key] = set()  # since the request; guarded by the lock of the service

    def look(self) -> None:
        """Find the start offsets of partitions that are new to the group."""
        share, settings = self._share, self._share.settings(self.group_id)
        for topic in self._partitions:
            for number in range(topic.first, topic.end):
                key = Key(self.group_id, topic.topic_id.bytes, number)
                log = share.log((key.topic_id, number))
                name = share.topic_name(key.topic_id)
                if name is not None and share.is_elsewhere(name, number):
                    self._elsewhere.append(key)
                if log is None or share._is_known(key):
                    continue
                try:
                    self._starts[key] = share._first_offset(log, settings)
                except StorageError as error:
                    self._failure = error
                    return
                except Refusal:
                    pass  # the topic is being deleted

    def __call__(self, catalogue: Catalogue) -> None:
        if self._rows is None:
            self._rows = {}
            try:
                if self._failure is None:
                    self._rows.update(self._new_rows())
            except RequestError as error:
                self._failure = StorageError(error.message)
        if self._failure is not None:
            raise self._failure
        if self._elsewhere:
            add_unbegun(catalogue, self._elsewhere)
        if self._rows:
            catalogue.alter_documents([(KIND, key.text, row) for key, row in self._rows.items()])

    def _new_rows(self) -> Iterator[tuple[Key, bytes]]:
        """Rows of partitions that are still new. Raises RequestError if there is no memory left."""
        settings = self._share.settings(self.group_id)
        for key, start in self._starts.items():
            if not self._share._is_known(key):
                self._share._take_memory(key)
                yield key, state_of(SharePartition(start, settings)).encode()

    def done(self, done: Done, error: StorageError | None) -> None:
        rows = self._rows or {}
        if error is not None:
            self._share._memory.add(-sum(map(_size, rows)))
            rows = {}
        self._share._initialised(self, rows)
        done(error)


class _Both:
    """Two changes that one caller waits for. Any thread."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._lock = Lock()
        self._left = 2
        self._failure: StorageError | None = None

    def one(self, error: StorageError | None) -> None:
        with self._lock:
            self._failure = self._failure or error
            self._left -= 1
            if self._left:
                return
        self._done(self._failure)


class _Waiting:
    """A thread waits for ``count`` changes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done: SimpleQueue[StorageError | None] = SimpleQueue()
        self.done = self._done.put

    def wait(self) -> None:
        """Raises StorageError."""
        failures = [self._next() for _ in range(self._count)]
        for failure in failures:
            if failure is not None:
                raise failure

    def _next(self) -> StorageError | None:
        try:
            return self._done.get(True, _WRITTEN_S)
        except QueueEmpty:
            return StorageError("The catalogue's writer has not come so far")


def _size(key: Key) -> int:
    """The memory that is counted for a share partition."""
    return SHARE_PARTITION_BYTES + len(key.group_id)
