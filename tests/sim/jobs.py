"""The shuffles of a simulation: jobs, their attempts, and the promises to writers and readers.

A job is one result partition's worth of work. Its writers make attempts, each a partition of its own with data of its own, and
tell here what the broker has acknowledged; its readers hold every buffer that comes against that. Whatever the broker says that
is not success needs an excuse that is known here: a lost connection, a machine that fails, a writer that gives up.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from protocol.shuffle.data_type import IS_BUFFER, DataType
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType
from tests.sim.fabric import Wire
from tests.sim.world import Violation, World

# EndOfData and EndOfPartition as the broker adds them for a writer that finishes without them.
_ENDS = ((DataType.END_OF_DATA, b"\0\0\0\x08\0"), (DataType.END_OF_PARTITION, b"\0\0\0\0"))


class Buffer(NamedTuple):
    data_type: DataType
    compressed: bool
    payload: bytes


@attrs.define(eq=False)
class Attempt:
    """One result partition. ``script``: the future content of each subpartition; the first ``pushes`` of it its writer sends."""

    job: "Job"
    number: int
    id: ResultPartitionID
    writer_id: bytes
    script: list[list[Buffer]]
    pushes: list[int]
    sent: list[int] = attrs.Factory(list)
    acked: list[int] = attrs.Factory(list)
    opened_in: int = 0  # the broker's life in which it was last opened; 0: never
    opened_at: float = math.inf
    finish_sent: bool = False
    finished_at: float = math.inf  # when its writer heard of it
    failure: str = ""  # the failure that its writer has told readers
    excuses: list[str] = attrs.Factory(list)  # why it may be gone or have failed
    wires: dict[Any, Wire] = attrs.Factory(dict)  # the connections of its writer and readers; a broken one is an excuse
    abandoned: bool = False
    writer: str = ""  # who works on it now
    releases: dict[int, int] = attrs.Factory(dict)  # life -> how often the broker said that it released it
    asked_to_release: bool = False

    def __str__(self) -> str:
        return f"{self.job.name}/{self.number}"

    def excuse(self, why: str) -> None:
        if why not in self.excuses:
            self.excuses.append(why)

    @property
    def is_finished(self) -> bool:
        return self.finished_at < math.inf

    @property
    def excused(self) -> bool:
        """It may be gone or have failed in the life of the broker in which it was opened."""
        work = self.job.work
        return (
            bool(self.excuses)
            or self.asked_to_release
            or self.opened_in != work.world.lives
            or work.machine_failed()
            or any(
                wire.broken_at is not None or wire.broker_closed or wire.client_closed for wire in self.wires.values()
            )
        )

    @property
    def kept(self) -> bool:
        """Blocking and finished: nothing but the machine may take it away."""
        return not self.job.pipelined and self.is_finished and not self.asked_to_release and not self.abandoned

    def finished(self) -> None:
        """PartitionFinished, or FINISHED_ALREADY: all is there, and for a blocking one for good."""
        if not self.finish_sent:
            raise Violation(f"{self} is finished, and nobody asked for it")
        if not self.is_finished:
            self.finished_at = self.job.work.world.now
            self.job.attempt_finished(self)

    def released(self, life: int) -> None:
        """PartitionReleased said that it existed."""
        count = self.releases[life] = self.releases.get(life, 0) + 1
        if count > 1 and not self.excuses:  # else a lost writer's last words may have opened it again
            raise Violation(f"{self} was released twice")


@attrs.define(eq=False)
class Range:
    """Subpartitions that are read as one, and how often they have yet to be."""

    job: "Job"
    start: int
    end: int
    passes: int


class Job:
    """``kind``, the number of subpartitions, the readers' ranges, and the attempts so far."""

    def __init__(self, work: "ShuffleWork", name: str, kind: PartitionType, racing: bool) -> None:
        rng = work.rng
        self.work = work
        self.name = name
        self.kind = kind
        self.pipelined = kind is PartitionType.PIPELINED
        self.racing = racing and not self.pipelined
        self.subpartitions = rng.choice((1, 1, 2, 3, 6))
        self.ranges: list[Range] = []
        self.attempts: list[Attempt] = []
        self.winner: Attempt | None = None
        self.released = False
        self.data_set = rng.randbytes(16)
        self._most = rng.choice((0, 3, 8, 20))
        self._size_most = rng.choice((50, 300, 3_000, 20_000))
        start = 0
        while start < self.subpartitions:
            end = start if work.single else rng.randrange(start, self.subpartitions)
            self.ranges.append(Range(self, start, end, 1 if self.pipelined else rng.choice((1, 1, 2))))
            start = end + 1

    @property
    def read(self) -> bool:
        """Everybody has had all of it."""
        return all(not part.passes for part in self.ranges)

    @property
    def done(self) -> bool:
        return self.read and self.released

    # -- attempts ---------------------------------------------------------------------------------------------------------

    def new_attempt(self) -> Attempt:
        rng = self.work.rng
        number = len(self.attempts)
        script, pushes = [], []
        for index in range(self.subpartitions):
            buffers = [self._buffer(number, index, at) for at in range(rng.randrange(self._most + 1))]
            ends_itself = rng.randrange(3)
            pushes.append(len(buffers) + ends_itself)
            script.append([*buffers, *(Buffer(kind, False, payload) for kind, payload in _ENDS)])
        attempt = Attempt(
            self,
            number,
            ResultPartitionID.of(self.data_set, attempt=number),
            rng.randbytes(16),
            script,
            pushes,
        )
        attempt.sent = [0] * self.subpartitions
        attempt.acked = [0] * self.subpartitions
        self.attempts.append(attempt)
        return attempt

    def _buffer(self, number: int, subpartition: int, at: int) -> Buffer:
        rng = self.work.rng
        data_type = rng.choice(self.work.types)
        text = f"{self.name}/{number}/{subpartition}/{at}/".encode()
        if IS_BUFFER[data_type] and rng.random() < 0.05:
            text = b""  # an empty buffer is one, too
        else:
            text += rng.randbytes(1) * rng.randrange(self._size_most)
        return Buffer(data_type, IS_BUFFER[data_type] and rng.random() < 0.2, text)

    def give_up(self, attempt: Attempt, why: str) -> None:
        """Whoever has noticed that nothing will come of it: another attempt must be made."""
        attempt.excuse(why)
        attempt.abandoned = True
        if self.winner is attempt:
            self.winner = None
        if self.pipelined:  # all of it is read again
            for part in self.ranges:
                part.passes = 1

    def attempt_finished(self, attempt: Attempt) -> None:
        if self.pipelined:
            return
        others = [other for other in self.attempts if other.is_finished and other is not attempt]
        if any(not other.abandoned and not other.asked_to_release for other in others):
            raise Violation(f"{self.name}: attempts {others[0].number} and {attempt.number} have both won")
        self.winner = attempt

    def readable(self) -> Attempt | None:
        """What readers ask for now; it need not be there yet."""
        if self.pipelined:
            return next((attempt for attempt in reversed(self.attempts) if not attempt.abandoned), None)
        return self.winner


class ShuffleWork:
    """All jobs of a simulation. ``types``: the possible types of pushed buffers."""

    def __init__(self, world: World, jobs: int, single: bool) -> None:
        """``single``: no requests for several subpartitions."""
        self.world = world
        self.rng = world.rng("shuffle")
        self.single = single
        self.by_id: dict[bytes, Attempt] = {}
        # May a failing machine be the reason for the message just received?
        self.machine_failed: Callable[[], bool] = lambda: False
        # Would a finished blocking partition survive a power loss now?
        self.would_survive: Callable[[Attempt], bool] = lambda attempt: True
        self.on_promise: Callable[[], None] = lambda: None
        self.hurried = True  # the broker has no excuse for being late
        self.types = (
            (DataType.DATA_BUFFER,),
            (DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END, DataType.EVENT_BUFFER),
            (
                DataType.DATA_BUFFER,
                DataType.DATA_BUFFER,
                DataType.DATA_BUFFER_WITH_CLEAR_END,
                DataType.ALIGNED_CHECKPOINT_BARRIER,
                DataType.PRIORITIZED_EVENT_BUFFER,
            ),
        )[self.rng.randrange(3)]
        self.jobs = [
            Job(
                self,
                f"job-{n}",
                self.rng.choice((PartitionType.PIPELINED, PartitionType.BLOCKING)),
                self.rng.random() < 0.4,
            )
            for n in range(jobs)
        ]

    def attempt(self, job: Job) -> Attempt:
        attempt = job.new_attempt()
        self.by_id[attempt.id] = attempt
        return attempt

    @property
    def bytes_most(self) -> int:
        """What all of it takes at once."""
        return sum(2 * job.subpartitions * job._most * (job._size_most + 60) + 1_000 for job in self.jobs)

    @property
    def buffers_most(self) -> int:
        return sum(2 * job.subpartitions * (job._most + 2) for job in self.jobs)

    @property
    def delivered(self) -> int:
        return sum(part.passes == 0 for job in self.jobs for part in job.ranges)
