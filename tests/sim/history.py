"""What was sent, promised and seen: against this every answer of the broker is held.

One ``PartitionHistory`` for each partition of the topics that live through the whole simulation. All of it is known in one
order, because the world has only one thread: "before" and "after" need no guessing.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from protocol.kafka.records import records
from protocol.kafka.records.batch import HEADER_SIZE, batches, check_crc
from tests.sim.world import Violation, World


@attrs.define(eq=False)
class Sent:
    """A record that some producer has sent at least once."""

    producer: str
    number: int  # in the order in which its producer meant it for this partition
    idempotent: bool
    attempts: int = 0


class PartitionHistory:
    def __init__(self, world: World, topic: str, partition: int) -> None:
        self.world = world
        self.topic = topic
        self.partition = partition
        self.sent: dict[bytes, Sent] = {}
        self.acked: dict[int, bytes] = {}
        self.seen: dict[int, bytes] = {}
        self.places: dict[bytes, list[int]] = {}  # of every record in `acked` or `seen`
        self.durable_end = 0  # earlier records were promised to survive a power loss
        self.known_end = 0  # the log end is at least this
        self.start_least = 0  # DeleteRecords was answered up to here
        self.start_most = 0  # ... and asked for up to here
        self.acks: list[tuple[float, int]] = []  # when, and the end of the log by then at the latest
        # The broker's last life that ended in a power loss: records of earlier lives may be gone as well.
        self.lost_life = 0
        self.rotten = False  # a bit was flipped in its files: it may go offline, and it may not lie
        self.lies = False  # ... unless it was among the records: nobody looks at those on their way to the clients
        self.shows_durable = False  # visible=durable
        self.would_survive: Callable[[bytes], bool] | None = None  # these bytes, a power loss now

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _place(self, offset: int, value: bytes) -> None:
        places = self.places.setdefault(value, [])
        if offset in places:
            return
        places.append(offset)
        sent = self.sent.get(value)
        if sent is None:
            raise Violation(f"{self}: nobody ever sent what is at {offset}: {value[:60]!r}")
        if sent.idempotent and len(places) > 1:
            raise Violation(f"{self}: {value[:60]!r} of an idempotent producer is there twice, at {places}")
        if len(places) > sent.attempts:
            raise Violation(f"{self}: {value[:60]!r} was sent {sent.attempts} times and is there at {places}")

    def _agree(self, offset: int, value: bytes, how: str) -> None:
        for known, what in ((self.acked, "acknowledged"), (self.seen, "read")):
            other = known.get(offset)
            if other is not None and other != value:
                raise Violation(
                    f"{self}: at {offset} there was {other[:60]!r} ({what}) and now there is {value[:60]!r} ({how})"
                )

    def rot(self, *, records: bool) -> None:
        self.rotten = True
        self.lies = self.lies or records

    # -- produce ----------------------------------------------------------------------------------------------------------

    def sending(self, producer: str, values: Sequence[bytes], first_number: int, idempotent: bool) -> None:
        for number, value in enumerate(values, first_number):
            sent = self.sent.get(value)
            if sent is None:
                sent = self.sent[value] = Sent(producer, number, idempotent)
            sent.attempts += 1

    def acknowledged(self, base_offset: int, values: Sequence[bytes], acks: int, life: int) -> None:
        if self.lies or (life <= self.lost_life and acks != -1):
            return  # the answer was on its way when the record was lost
        end = base_offset + len(values)
        for offset, value in enumerate(values, base_offset):
            self._agree(offset, value, "acknowledged")
            self.acked[offset] = value
            self._place(offset, value)
        if acks == -1 or not self.shows_durable:  # else it may be seen later
            self.known_end = max(self.known_end, end)
            self.acks.append((self.world.now, end))
        if acks == -1:  # an fsync covers all earlier writes
            self.durable_end = max(self.durable_end, end)

    def first_ack(self, after: float, beyond: int) -> float | None:
        """When it was first known, after that moment, that the log goes on beyond that offset."""
        return next((at for at, end in self.acks if at > after and end > beyond), None)

    # -- fetch ------------------------------------------------------------------------------------------------------------

    def fetched(self, offset: int, least_end: int, high_watermark: int, log_start: int, data: bytes, life: int) -> int:
        """Records that came for a fetch from ``offset``; the next offset to fetch. ``least_end`` was known when it was sent."""
        if self.lies:
            return high_watermark
        if life <= self.lost_life:
            return offset  # a request in flight at a power loss may never have reached the disk
        if high_watermark < least_end:
            raise Violation(f"{self}: the high watermark is {high_watermark}, and {least_end} was acknowledged before")
        if not log_start <= high_watermark:
            raise Violation(f"{self}: the log starts at {log_start} and ends at {high_watermark}")
        self.known_end = max(self.known_end, high_watermark)
        view = memoryview(data)
        position = None
        for at, header in batches(view):
            check_crc(view, at, header)
            if position is None:
                if not header.base_offset <= offset <= header.last_offset:
                    raise Violation(
                        f"{self}: a fetch from {offset} begins with {header.base_offset}-{header.last_offset}"
                    )
            elif header.base_offset != position:
                raise Violation(f"{self}: offsets are not dense: {header.base_offset} follows {position - 1}")
            if header.last_offset >= high_watermark:
                raise Violation(
                    f"{self}: offset {header.last_offset} was read past the high watermark {high_watermark}"
                )
            if self.shows_durable and header.last_offset >= self.durable_end and not self.start_most:
                data_of_it = bytes(view[at + HEADER_SIZE : at + header.size])
                if not self.rotten and self.would_survive is not None and not self.would_survive(data_of_it):
                    raise Violation(f"{self}: offset {header.last_offset} was read and is not on the disk")
                self.durable_end = header.next_offset
            if header.record_count != header.last_offset_delta + 1:
                raise Violation(f"{self}: {header.record_count} records in {header.base_offset}-{header.last_offset}")
            for record in records.records(view, at):
                assert record.value is not None
                self._agree(record.offset, record.value, "read")
                self.seen[record.offset] = record.value
                self._place(record.offset, record.value)
            position = header.next_offset
        return offset if position is None else max(offset, position)

    # -- the machine ----------------------------------------------------------------------------------------------------

    def power_lost(self, life: int) -> None:
        """Records without a promise of durability may be gone, and their offsets may be reused."""
        self.lost_life = life
        self.acks.clear()
        keep = self.durable_end
        for known in (self.acked, self.seen):
            for offset in [offset for offset in known if offset >= keep]:
                del known[offset]
        for value in list(self.places):
            places = [offset for offset in self.places[value] if offset < keep]
            if places:
                self.places[value] = places
            else:
                del self.places[value]
        self.known_end = keep

    def synced(self) -> None:
        """The broker has stopped in order: all there is is durable."""
        self.durable_end = max(self.durable_end, self.known_end)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def audit(self, log_start: int, end: int) -> None:
        """After reading the whole log from ``log_start`` to ``end``."""
        if self.rotten:
            return
        if not self.start_least <= log_start <= max(self.start_most, self.start_least):
            raise Violation(
                f"{self}: the log starts at {log_start}; deleted up to {self.start_least}..{self.start_most}"
            )
        for offset, value in sorted(self.acked.items()):
            if offset >= log_start and self.seen.get(offset) != value:
                raise Violation(
                    f"{self}: {value[:60]!r}, acknowledged at {offset}, is not there (log {log_start}..{end})"
                )
        last: dict[str, int] = {}
        for offset in range(log_start, end):
            value = self.seen.get(offset)
            if value is None:
                raise Violation(f"{self}: there is nothing at {offset} (log {log_start}..{end})")
            sent = self.sent[value]
            if sent.idempotent:
                if sent.number <= last.get(sent.producer, -1):
                    raise Violation(f"{self}: {value[:60]!r} at {offset} comes after number {last[sent.producer]}")
                last[sent.producer] = sent.number


class Commit:
    """An offset commit: taken effect somewhere between ``began`` and ``ended`` (None: perhaps later, perhaps never)."""

    def __init__(self, offset: int, began: int) -> None:
        self.offset = offset
        self.began = began
        self.ended: int | None = None
        self.failed = False


class GroupHistory:
    """A consumer group: the owners of its partitions in each generation, and the committed offsets."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.stored: Callable[[str, int], int] | None = None  # the offset in the catalogue, -1 for none
        self.dead_lives: set[int] = set()  # of the broker
        self.clock = 0  # orders the events of this group
        self.owners: dict[tuple[int, int, str, int], str] = {}  # life, generation, topic, partition
        self.leaders: dict[tuple[int, int], str] = {}
        self.newest: int = -1  # generation that anybody was told of
        self.newest_synced: int = -1  # ... and that is stable, thus durable
        self.commits: dict[tuple[str, int], list[Commit]] = {}

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def joined(self, member: str, generation: int, leader: str, life: int) -> None:
        if life in self.dead_lives:
            return
        known = self.leaders.setdefault((life, generation), leader)
        if known != leader:
            if self.any_commit:
                raise Violation(f"group {self.name}: generation {generation} has the leaders {known} and {leader}")
            # Without members and offsets nothing is left of a group: its generations begin again.
            self.owners.clear()
            self.leaders = {(life, generation): leader}
            self.newest = self.newest_synced = -1
        self.newest = max(self.newest, generation)

    @property
    def any_commit(self) -> bool:
        return any(not commit.failed for commits in self.commits.values() for commit in commits)

    def crashed(self, life: int) -> None:
        """A generation of which no member had its assignment yet may never have been."""
        self.dead_lives.add(life)
        self.newest = self.newest_synced

    def assigned(self, member: str, generation: int, life: int, partitions: Iterable[tuple[str, int]]) -> None:
        self.newest_synced = max(self.newest_synced, generation)
        self.newest = max(self.newest, generation)
        for topic, partition in partitions:
            owner = self.owners.setdefault((life, generation, topic, partition), member)
            if owner != member:
                raise Violation(
                    f"group {self.name}: {topic}-{partition} belongs to {owner} and {member} in generation {generation}"
                )

    def committing(self, topic: str, partition: int, offset: int) -> Commit:
        commit = Commit(offset, self.tick())
        self.commits.setdefault((topic, partition), []).append(commit)
        return commit

    def committed(self, commit: Commit, topic: str, partition: int) -> None:
        commit.ended = self.tick()
        if self.stored is not None:  # the state that the broker would find if it were killed now
            self.fetched(topic, partition, self.stored(topic, partition), self.tick())

    def refused(self, commit: Commit) -> None:
        commit.failed = True
        commit.ended = self.tick()

    def settled(self, topic: str, partition: int) -> int:
        """The offset of the last commit that was answered; -1 if there is none."""
        commits = [c for c in self.commits.get((topic, partition), []) if c.ended is not None and not c.failed]
        return max(commits, key=lambda commit: commit.began).offset if commits else -1

    def possible(self, topic: str, partition: int, read_began: int) -> set[int]:
        """Offsets that a read which began then may return; -1: none committed."""
        commits = [commit for commit in self.commits.get((topic, partition), []) if not commit.failed]
        # A later commit that was over before the read began hides whatever was over before that commit began.
        settled = [commit for commit in commits if commit.ended is not None and commit.ended < read_began]
        newest_began = max((commit.began for commit in settled), default=-1)
        possible = {c.offset for c in commits if c.ended is None or c.ended > newest_began}
        if not settled:
            possible.add(-1)
        return possible

    def fetched(self, topic: str, partition: int, offset: int, read_began: int) -> None:
        possible = self.possible(topic, partition, read_began)
        if offset not in possible:
            raise Violation(
                f"group {self.name}: the committed offset of {topic}-{partition} is {offset}; possible are {sorted(possible)}"
            )
        for commit in reversed(self.commits.get((topic, partition), [])):
            if commit.offset == offset and commit.ended is None:  # its answer was lost, and now we know
                commit.ended = self.tick()
                break


class History:
    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: dict[tuple[str, int], PartitionHistory] = {}
        self.groups: dict[str, GroupHistory] = {}
        self.ready: set[str] = set()  # topics that were created
        # Would these bytes of a partition survive a power loss now? None: nobody can tell from outside.
        self.would_survive: Callable[[str, int, bytes], bool] | None = None
        self.shows_durable = False  # visible=durable, for all topics
        self.is_shipped = False  # the machine may be lost: acks=1 promises what acks=all does
        # Called when an answer promises that something is there for good.
        self.on_promise: Callable[[], None] = lambda: None
        # Called when the broker has died, with whether the power was lost, before anything is forgotten here.
        self.on_crash: list[Callable[[bool], None]] = []
        self.hurried = True  # the broker has no excuse for being late
        self.throttled = 0  # answers with a throttle time

    def partition(self, topic: str, partition: int) -> PartitionHistory:
        key = (topic, partition)
        if key not in self.partitions:
            history = self.partitions[key] = PartitionHistory(self.world, topic, partition)
            history.shows_durable = self.shows_durable
            if self.would_survive is not None:
                history.would_survive = partial(self.would_survive, topic, partition)
        return self.partitions[key]

    def group(self, name: str) -> GroupHistory:
        if name not in self.groups:
            self.groups[name] = GroupHistory(self.world, name)
        return self.groups[name]

    def promise_of(self, acks: int) -> int:
        return -1 if self.is_shipped and acks else acks

    def promised(self) -> None:
        """By an answer that has just been heard."""
        self.on_promise()

    def crashed(self, *, power: bool) -> None:
        for told in self.on_crash:
            told(power)
        for group in self.groups.values():
            group.crashed(self.world.lives)
        if power:
            for partition in self.partitions.values():
                partition.power_lost(self.world.lives)

    def synced(self) -> None:
        for partition in self.partitions.values():
            partition.synced()
