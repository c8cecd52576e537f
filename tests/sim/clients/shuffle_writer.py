"""A writer of result partitions: opens, pushes as far as there is credit, sends again, finishes; or fails, or just goes away."""

from collections.abc import Sequence
from typing import Any

from protocol.shuffle.buffer_response import ServerMessage
from protocol.shuffle.writer_frames import (
    AllRecordsProcessed,
    BufferSizeHint,
    PartitionFinished,
    PartitionOpened,
    PushAcknowledged,
    WriterCredit,
    WriterError,
    WriterErrorCode,
    WriterTaskEvent,
    encode_close_writer,
    encode_fail_partition,
    encode_finish_partition,
    encode_open_partition,
    encode_push_buffer,
)
from tests.sim.clients.shuffle_client import ShuffleClient
from tests.sim.clients.stream import PATIENCE_S
from tests.sim.jobs import Attempt, Job
from tests.sim.world import Violation

# Longer than any clock of the simulation jumps.
# Its readers have gone: because they were lost, or of their own will.
_NOT_WANTED = (WriterErrorCode.RELEASED, WriterErrorCode.READERS_GONE)
_TTL_MS = 30 * 86_400_000


class Writer(ShuffleClient):
    """``rival``: makes one attempt at each of its jobs while another writer makes another."""

    def __init__(self, *args: Any, jobs: Sequence[Job], rival: bool = False) -> None:
        super().__init__(*args)
        self.attempt: Attempt | None = None
        self._jobs = list(jobs)
        self._rival = rival
        self._pace_s = self.rng.choice((0.001, 0.01, 0.1))
        self._fickle = self.rng.choice((0.0, 0.0, 0.02))
        self._handle = -1
        self._opening = False
        self._finishing = False  # FinishPartition was sent on this connection
        self._credit = 0
        self._next: list[int] = []
        self._since = 0.0  # when the broker last gave it something to do
        self._processed: set[int] = set()

    @property
    def done(self) -> bool:
        return self.attempt is None and (self._rival or all(job.read for job in self._jobs))

    @property
    def wanted(self) -> bool:
        return self.attempt is not None or any(not job.read for job in self._jobs)

    # -- actions ------------------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._handle, self._opening, self._finishing = -1, False, False
        self._since = self.world.now

    def lost(self) -> None:
        self._handle, self._opening, self._finishing = -1, False, False
        attempt = self.attempt
        if attempt is not None:
            attempt.excuse("its writer's connection was lost")
            if attempt.job.read:
                self._drop()

    def act(self) -> None:
        rng = self.rng
        attempt = self.attempt
        if attempt is None:
            attempt = self._take_work()
            if attempt is None:
                # A rival must not come when the race is over.
                self.idle((0.01 if self._rival else 0.2) * (1 + rng.random()))
                return
        self.idle(rng.random() * self._pace_s)
        if attempt.abandoned:
            self._leave(attempt)
        elif self._opening or self._finishing:
            self._wait()
        elif self._handle < 0:
            self._open(attempt)
        elif not self.quiet and rng.random() < self._fickle:
            self._whim(attempt)
        else:
            self._push(attempt)

    def _take_work(self) -> Attempt | None:
        for job in self._jobs:
            if job.read or (job.winner is not None):
                continue
            active = [attempt for attempt in job.attempts if attempt.writer]
            if self._rival:
                if (
                    active
                    and not any(attempt.writer == self.name for attempt in job.attempts)
                    and len(job.attempts) < 4
                ):
                    break
            elif job.readable() is None if job.pipelined else True:
                break
        else:
            return None
        attempt = self.attempt = self.work.attempt(job)
        attempt.writer = self.name
        self.world.note(f"{self.name} begins {attempt}")
        return attempt

    def _open(self, attempt: Attempt) -> None:
        assert self.socket is not None
        job = attempt.job
        attempt.wires["writer"] = self.socket.wire
        self._opening = True
        self._since = self.world.now
        self.send(encode_open_partition(attempt.writer_id, attempt.id, job.subpartitions, job.kind, _TTL_MS, job.name))

    def _push(self, attempt: Attempt) -> None:
        for _ in range(self.rng.choice((1, 1, 4))):
            waiting = [index for index, count in enumerate(attempt.pushes) if self._next[index] < count]
            if not waiting:
                attempt.finish_sent = self._finishing = True
                self._since = self.world.now
                self.send(encode_finish_partition(self._handle))
                return
            if not self._credit:
                self._wait()
                return
            self._credit -= 1
            index = self.rng.choice(waiting)
            sequence = self._next[index]
            self._next[index] += 1
            attempt.sent[index] = max(attempt.sent[index], sequence + 1)
            buffer = attempt.script[index][sequence]
            self.send(
                encode_push_buffer(self._handle, index, sequence, buffer.data_type, buffer.compressed, buffer.payload)
            )

    def _wait(self) -> None:
        """For the broker."""
        patience_s = PATIENCE_S if self._opening or self._finishing else 3 * PATIENCE_S
        if not self.work.hurried:
            patience_s *= 10
        if self.quiet and self.world.now > max(self._since, self.quiet_since) + patience_s:
            what = "an answer to its opening" if self._opening else "its end" if self._finishing else "credit"
            raise Violation(f"{self.name} has waited {patience_s:.0f} s for {what} of {self.attempt}")
        self.idle(0.2 + self.rng.random())

    def _whim(self, attempt: Attempt) -> None:
        whim = self.rng.randrange(4)
        if whim == 0:
            attempt.failure = f"{attempt} was in vain"
            self.send(encode_fail_partition(self._handle, attempt.failure))
            attempt.job.give_up(attempt, "its writer failed")
            self._drop()
        elif whim == 1:  # once more, on the same connection
            self._handle = -1
            self._open(attempt)
        elif whim == 2:  # it comes back, which the broker may hear of only when it has stopped waiting for that
            attempt.excuse("its writer was closed")
            self.send(encode_close_writer(self._handle))
            self._handle = -1
        else:
            self.disconnect(rudely=self.rng.random() < 0.5)

    def _leave(self, attempt: Attempt) -> None:
        """Nobody wants it any more."""
        way = self.rng.randrange(3)
        if self._handle < 0 or way == 0:
            self.disconnect(rudely=self.rng.random() < 0.5)
        elif way == 1:
            self.send(encode_fail_partition(self._handle, "nobody wants it any more"))
        else:
            self.send(encode_close_writer(self._handle))
        if self.attempt is not None:
            self._drop()

    def _drop(self) -> None:
        assert self.attempt is not None
        self.world.note(f"{self.name} is through with {self.attempt}")
        self.attempt.writer = ""
        self.attempt.wires.pop("writer", None)
        self.attempt = None
        self._handle, self._opening, self._finishing = -1, False, False
        self._processed.clear()

    # -- received messages ----------------------------------------------------------------------------------------------------

    def received(self, message: ServerMessage) -> None:
        attempt = self.attempt
        match message:
            case PartitionOpened(writer, handle, credit, next_sequences):
                if attempt is not None and writer == attempt.writer_id and self._opening:
                    self._opened(attempt, handle, credit, next_sequences)
            case WriterCredit(handle, credit):
                if handle == self._handle:
                    self._credit += credit
                    self._since = self.world.now
                    self.idle(0.0)
            case PushAcknowledged(handle, next_sequences):
                if handle == self._handle and attempt is not None:
                    self._acknowledged(attempt, next_sequences)
            case PartitionFinished(handle):
                if handle == self._handle and attempt is not None:
                    self._finished(attempt)
                    self._drop()
            case WriterError(writer, handle, code, text):
                if attempt is not None and writer == attempt.writer_id and handle in (-1, self._handle):
                    self._refused(attempt, code, text)
            case AllRecordsProcessed(handle, subpartition):
                if handle == self._handle:
                    if subpartition in self._processed:
                        raise Violation(f"{self.name}: all records of {subpartition} were processed twice")
                    self._processed.add(subpartition)
            case WriterTaskEvent() | BufferSizeHint():
                pass
            case _:
                raise Violation(f"{self.name}: a {type(message).__name__} for a writer")

    def _opened(self, attempt: Attempt, handle: int, credit: int, next_sequences: tuple[int, ...]) -> None:
        life, job = self.life, attempt.job
        if len(next_sequences) != job.subpartitions:
            raise Violation(f"{self.name}: {attempt} has {len(next_sequences)} subpartitions")
        for index, number in enumerate(next_sequences):
            most = len(attempt.script[index]) if attempt.finish_sent else attempt.sent[index]
            if number > most:
                raise Violation(f"{self.name}: {attempt}/{index}: {number} comes next, and {most} were sent")
        self._handle, self._credit, self._opening, self._since = handle, credit, False, self.world.now
        if life != attempt.opened_in:
            if any(next_sequences):
                raise Violation(f"{self.name}: of {attempt}, which was not finished, something has survived")
            again = any(attempt.sent)
            attempt.opened_in, attempt.opened_at = life, self.world.now
            attempt.acked = [0] * job.subpartitions
            if again and job.pipelined:  # some of it has been read
                job.give_up(attempt, "the broker has forgotten it")
                return
        elif any(number < acked for number, acked in zip(next_sequences, attempt.acked, strict=True)):
            if not attempt.excuses:
                raise Violation(f"{self.name}: {attempt} goes on at {next_sequences}, acknowledged are {attempt.acked}")
            job.give_up(attempt, "the broker has forgotten it")  # it took too long to come back
            return
        self._next = [
            number if self.rng.random() < 0.6 else self.rng.randrange(number + 1) for number in next_sequences
        ]
        self.idle(0.0)

    def _acknowledged(self, attempt: Attempt, next_sequences: tuple[tuple[int, int], ...]) -> None:
        for index, number in next_sequences:
            if number > attempt.sent[index]:
                raise Violation(f"{self.name}: {attempt}/{index}: {number} acknowledged, {attempt.sent[index]} sent")
            attempt.acked[index] = max(attempt.acked[index], number)

    def _finished(self, attempt: Attempt) -> None:
        attempt.finished()
        if not attempt.job.pipelined:
            if not self.work.would_survive(attempt):
                raise Violation(f"{self.name}: {attempt} is finished, and is not on the disk")
            self.work.on_promise()

    def _refused(self, attempt: Attempt, code: WriterErrorCode, text: str) -> None:
        job = attempt.job
        if code is WriterErrorCode.FINISHED_ALREADY:
            self._finished(attempt)
        elif code is WriterErrorCode.ANOTHER_ATTEMPT_WON:
            others = [other for other in job.attempts if other is not attempt and other.finish_sent]
            if job.pipelined or not others:
                raise Violation(f"{self.name}: {attempt}: {text}, and there is none")
            if attempt.is_finished:
                raise Violation(f"{self.name}: {attempt} has won: {text}")
            job.give_up(attempt, text)
        elif code in _NOT_WANTED and (attempt.excused or (job.pipelined and job.read)):
            job.give_up(attempt, text) if not job.read else None
        elif code is WriterErrorCode.STORAGE_ERROR and self.work.machine_failed():
            job.give_up(attempt, text)
        else:
            raise Violation(f"{self.name}: {code.name} for {attempt}: {text}")
        self._drop()
