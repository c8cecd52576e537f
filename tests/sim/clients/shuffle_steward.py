"""Cleans up after jobs: lists partitions, and releases those that were read."""

from typing import Any

from protocol.shuffle.buffer_response import ServerMessage
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import (
    DataSetReleased,
    PartitionList,
    PartitionReleased,
    PartitionState,
    encode_list_partitions,
    encode_release_data_set,
    encode_release_partition,
)
from tests.sim.clients.shuffle_client import ShuffleClient
from tests.sim.jobs import Attempt, Job
from tests.sim.world import Violation

# Partitions of those that nobody asked for begin so.
VANDALS = b"vandal"


class Steward(ShuffleClient):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._correlation = 0
        self._asked: dict[int, tuple[Job | None, Attempt | None, float]] = {}
        self._cleaning = False
        self._clean = False

    def clean_up(self) -> None:
        """All work is done: nothing may be left."""
        self._cleaning, self._clean = True, False
        self._act_at = 0.0

    @property
    def done(self) -> bool:
        return self._clean if self._cleaning else all(job.done for job in self.work.jobs)

    def lost(self) -> None:
        for job, attempt, _ in self._asked.values():
            if job is not None:
                for one in job.attempts if attempt is None else (attempt,):
                    one.excuse("it may have been released")
        self._asked.clear()

    def act(self) -> None:
        self.idle(0.1 + self.rng.random() * 0.3)
        if self._asked:
            return
        for job in self.work.jobs:
            if job.read and not job.released and not any(attempt.writer for attempt in job.attempts):
                self._release(job)
                return
        if not self.done and (self._cleaning or self.rng.random() < 0.3):
            self._ask(None, None)
            self.send(encode_list_partitions(self._correlation))

    def _ask(self, job: Job | None, attempt: Attempt | None) -> None:
        self._correlation += 1
        self._asked[self._correlation] = job, attempt, self.world.now

    def _release(self, job: Job) -> None:
        if self.rng.random() < 0.3:
            for attempt in job.attempts:
                attempt.asked_to_release = True
            self._ask(job, None)
            self.send(encode_release_data_set(self._correlation, job.data_set))
            return
        for attempt in job.attempts:
            for _ in range(self.rng.choice((1, 2))):
                self._ask(job, attempt)
                attempt.asked_to_release = True
                self.send(encode_release_partition(self._correlation, attempt.id))
        if not job.attempts:
            job.released = True

    def received(self, message: ServerMessage) -> None:
        match message:
            case PartitionReleased(correlation, existed):
                job, attempt, _ = self._asked.pop(correlation, (None, None, 0.0))
                if existed and attempt is not None:
                    attempt.released(self.life)
                if job is not None and not any(other is job for other, _, _ in self._asked.values()):
                    self._all_answered(job)
            case DataSetReleased(correlation, count):
                job, _, _ = self._asked.pop(correlation)
                if job is not None:
                    if count and job.winner is not None:
                        job.winner.released(self.life)
                    self._all_answered(job)
            case PartitionList(correlation, partitions):
                _, _, asked_at = self._asked.pop(correlation)
                self._listed([(info.partition, info) for info in partitions], asked_at)
            case _:
                raise Violation(f"{self.name}: a {type(message).__name__} for a steward")

    def _all_answered(self, job: Job) -> None:
        job.released = True
        winner = job.winner
        if winner is not None and not winner.releases and not winner.excuses and not self.work.machine_failed():
            raise Violation(f"{winner} was finished, and was not there to be released")

    def _listed(self, partitions: list[tuple[ResultPartitionID, Any]], asked_at: float) -> None:
        listed = dict(partitions)
        if len(listed) != len(partitions):
            raise Violation(f"{self.name}: partitions are listed twice")
        for partition in listed:
            if partition not in self.work.by_id and not partition.startswith(VANDALS):
                raise Violation(f"{self.name}: nobody ever wrote {partition}")
        for attempt in self.work.by_id.values():
            if attempt.kept and attempt.finished_at < asked_at and not self.work.machine_failed():
                info = listed.get(attempt.id)
                state = None if info is None else info.state
                if state is not PartitionState.FINISHED:
                    raise Violation(f"{self.name}: {attempt} was finished, and is now {state}")
                size = sum(len(buffer.payload) for part in attempt.script for buffer in part)
                if (info.bytes, info.buffers) != (size, sum(map(len, attempt.script))):
                    raise Violation(
                        f"{self.name}: {attempt} has {info.buffers} buffers of {info.bytes} bytes, of {size}"
                    )
        if self._cleaning:
            self._clean = not listed
            for partition in listed:
                self._ask(None, None)
                self.send(encode_release_partition(self._correlation, partition))
