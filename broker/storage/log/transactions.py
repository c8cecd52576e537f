"""Transactions in one log: the producers that may write to one, the markers, and the index of aborted transactions.

A producer may append to a transaction from the moment the coordinator says so (``allow``) until the marker is in the log.
Both happen under ``lock``, so no batch gets in between. If the coordinator has to be asked, a ``Guard`` is put here before
the question, and a marker takes it away: an answer that is older than the marker allows nothing. The marker is itself a
batch. An ABORT is written to the segment's index of aborted transactions before the marker is published, so that a reader
that may read past the marker can also look it up.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from broker.storage.log.producer_state import Producer
from broker.storage.log.reading import ReadResult
from broker.storage.log.state import LogState, View, Watchers
from broker.storage.log.trimming import Rolling
from broker.storage.refusals import InvalidTransactionState
from broker.storage.segments.index_file import AbortedTransaction
from broker.storage.segments.segment import LENGTH, MAX_RELATIVE, MAX_TIMESTAMP, Segment
from protocol.kafka.records.batch import LOG_OVERHEAD, read_header, stamp
from protocol.kafka.records.records import build_marker


class ProducerDescription(NamedTuple):
    """A row of DescribeProducers' response; -1 for unknown or unused values."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


class Guard:
    """Stands for the questions about a producer that are under way. ``questions``: how many."""

    __slots__ = ("questions",)

    def __init__(self) -> None:
        self.questions = 0


class Transactions:
    """``writers``, guarded by the log's ``lock``, maps the id of each producer that may append to a transaction here to its
    epoch. The coordinator decides that; it is not durable. ``_guards``, by producer id, is guarded by ``lock``, too."""

    __slots__ = ("_guards", "_having", "_rolling", "_state", "_watchers", "writers")

    def __init__(self, state: LogState, rolling: Rolling, watchers: Watchers) -> None:
        self._state = state
        self._rolling = rolling
        self._watchers = watchers
        # A row of segments; those that may have aborted transactions; and the base offsets of the latter.
        self._having: tuple[View | None, list[int], list[Segment]] = (None, [], [])
        self.writers: dict[int, int] = {}
        self._guards: dict[int, Guard] | None = None  # most logs never have one

    def allow(self, producer_id: int, epoch: int) -> None:
        """Let this producer append to its transaction, until the marker. Raises StorageError, Refusal."""
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise state.why_unavailable()
            self.writers[producer_id] = epoch

    def begin_question(self, producer_id: int) -> Guard:
        """Another node is about to be asked whether this producer may append. Hand the guard to ``end_question``."""
        with self._state.lock:
            if self._guards is None:
                self._guards = {}
            guard = self._guards.setdefault(producer_id, Guard())
            guard.questions += 1
        return guard

    def end_question(self, producer_id: int, guard: Guard, epoch: int | None) -> bool:
        """The answer: the producer may append with this epoch, or (None) it may not. False: a marker has come meanwhile, so that
        the answer is out of date. Raises StorageError, Refusal."""
        state = self._state
        with state.lock:
            guards = self._guards or {}
            is_present = guards.get(producer_id) is guard
            guard.questions -= 1
            if is_present and not guard.questions:
                del guards[producer_id]
            if epoch is None or not is_present:
                return is_present
            if state.offline is not None:
                raise state.why_unavailable()
            self.writers[producer_id] = epoch
            return True

    def allows(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer may append to its transaction now. Takes no lock."""
        return self.writers.get(producer_id) == epoch

    def knows(self, producer_id: int) -> bool:
        """Whether the log remembers this producer. Takes no lock."""
        return self._state.producers.get(producer_id) is not None

    def check(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Raises InvalidTransactionState if this batch may not be appended. ``lock`` is held."""
        state = self._state
        if transactional:
            if self.writers.get(producer_id) != epoch:
                raise InvalidTransactionState(
                    f"{state.topic}-{state.partition} is in no open transaction of producer {producer_id} "
                    f"with epoch {epoch}."
                )
        elif producer_id in state.producers.open:
            raise InvalidTransactionState(f"Producer {producer_id} has an open transaction and writes outside of it.")

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        if_open: bool = False,
    ) -> int:
        """End a producer's transaction in this partition. The marker is durable when the log is, up to the offset returned.

        With ``if_open`` nothing is written unless the producer has an open transaction here: for a caller that does not know
        whether the marker was written before a crash. Raises StorageError, and Refusal if the topic was deleted.
        """
        batch = build_marker(
            producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms
        )
        size = len(batch)
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise state.why_unavailable()
            self.writers.pop(producer_id, None)
            if self._guards:
                self._guards.pop(producer_id, None)
            if if_open and producer_id not in state.producers.open:
                return state.log_end_offset
            offset = state.log_end_offset
            segment = state.active
            assert segment is not None
            if not _has_room(segment, size, offset, now_ms, state.config.segment_bytes):
                segment = self._rolling.roll(now_ms)
            position = segment.size
            stamp(batch, 0, offset, state.leader_epoch)
            try:
                segment.log.get().pwrite((batch,), position)
                first = state.producers.open.get(producer_id)
                if first is not None and not commit:
                    others = [start for other, start in state.producers.open.items() if other != producer_id]
                    stable = min(others, default=offset + 1)
                    segment.aborted.add(AbortedTransaction(producer_id, first, offset, stable))
                    state.dir_dirty = True
            except OSError as error:
                raise state.undo_write(segment, position, error) from error
            header = read_header(batch)
            if position == 0:
                segment.first_timestamp = now_ms
                self._rolling.set_roll_time(segment)
            segment.appended(
                position,
                header[LENGTH] + LOG_OVERHEAD,
                offset,
                header[MAX_TIMESTAMP],
                state.config.index_interval_bytes,
            )
            state.producers.ended(producer_id, epoch, coordinator_epoch, now_ms)
            state.first_unstable = state.producers.first_unstable()
            state.publish(offset + 1, segment)
        self._watchers.wake()
        return offset + 1

    def aborted(self, offset: int, read: ReadResult, stable: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in what was read from ``offset`` on, below ``stable``; oldest marker first.

        They may include transactions that begin after the end of the read. Raises StorageError.
        """
        transactions: list[AbortedTransaction] = []
        if not read.size:
            return transactions
        state = self._state
        view = state.view
        end = -1
        try:
            for segment in self._with_aborted(view, offset):
                if not len(segment.aborted):
                    continue
                if end < 0:
                    end = self._end_of(read, stable)
                if segment.aborted.collect(offset, end, transactions):
                    break
        except FileNotFoundError:
            if view is state.view:
                raise state.go_offline("its index of aborted transactions is missing") from None
            return self.aborted(offset, read, stable)  # the segments were deleted meanwhile
        except OSError as error:
            raise state.failed("the index of aborted transactions could not be read", error) from error
        return transactions

    def _with_aborted(self, view: View, offset: int) -> list[Segment]:
        """The segments of ``view`` that may have aborted transactions whose marker is at ``offset`` or later. Raises OSError.

        Only the last segment of a row gets any, so the others are examined once for each row: a log may have thousands.
        """
        known, bases, having = self._having
        if known is not view:
            segments = view.segments
            having = [segment for segment in segments[:-1] if len(segment.aborted)]
            having += segments[-1:]
            bases = [segment.base_offset for segment in having]
            self._having = view, bases, having
        first = view.bases[max(0, bisect_right(view.bases, offset) - 1)]
        return having[bisect_left(bases, first) :]

    def _end_of(self, read: ReadResult, most: int) -> int:
        """An offset after everything in ``read``, as close to its end as the offset index tells, and at most ``most``."""
        region = read.regions[-1]
        for segment in reversed(self._state.view.segments):
            if segment.log.path == region.file.path:
                return min(most, segment.end_offset_at(region.offset + region.size))
        return most

    def oldest_open(self) -> tuple[int, int] | None:
        """The producer whose transaction holds the last stable offset, and when (ms) it last wrote; None if none does."""
        state = self._state
        with state.lock:
            producer_id = next(iter(state.producers.open), None)
            producer = None if producer_id is None else state.producers.get(producer_id)
        if producer_id is None or producer is None:
            return None
        return producer_id, producer.seen_ms

    def describe_producers(self) -> list[ProducerDescription]:
        """Raises StorageError, Refusal."""
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise state.why_unavailable()
            frozen = state.producers.freeze()
        return [_describe(key, producer, frozen.open.get(key, -1)) for key, producer in frozen.producers.items()]


def _describe(producer_id: int, producer: Producer, first_offset: int) -> ProducerDescription:
    last_sequence = producer.batches[-1].last_sequence if producer.batches else -1
    return ProducerDescription(
        producer_id, producer.epoch, last_sequence, producer.seen_ms, producer.coordinator_epoch, first_offset
    )


def _has_room(segment: Segment, size: int, offset: int, now_ms: int, segment_bytes: int) -> bool:
    return (
        segment.size + size <= segment_bytes
        and now_ms <= segment.roll_at_timestamp
        and now_ms <= segment.roll_at_ms
        and offset - segment.base_offset <= MAX_RELATIVE
    )
