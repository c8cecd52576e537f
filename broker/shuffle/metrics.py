"""The metrics of the shuffle service: memory, files, credit and back-pressure of all result partitions together.

Partitions live for minutes, and their ids are useless afterwards, so none has its own series; the HTTP API shows each. Partitions
are visited when metrics are read, at most every few seconds, with pauses. Fields that processors change are read without their
locks: parts of a sum may be some microseconds old.

Tests: tests/metrics/test_moving.py.
"""

from collections.abc import Mapping
from itertools import islice

import attrs

from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Cached
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.life import LifeState
from broker.shuffle.partitions import Partitions
from broker.shuffle.serving.view import View
from broker.shuffle.spill.spiller import Spiller

# The most readers that a walk visits; others are not counted.
_READERS_MAX = 50_000
# The maximum age (s) of the figures.
_AGE_S = 2.0
# Partitions between two pauses, some 0.2 ms, and the length (s) of a pause.
_PIECE = 50
_PAUSE_S = 0.0005


@attrs.frozen
class Figures:
    partitions: Mapping[Labels, float]  # by state
    buffers: Mapping[Labels, float]  # in memory and in files
    blocked: Mapping[Labels, float]  # writers, by the cause of their wait
    writers: int
    writer_credit: int
    readers: int
    reader_credit: int
    backlog: int
    back_pressured: int


class ShuffleMetrics:
    def __init__(self, partitions: Partitions, budget: Budget, spiller: Spiller, clock: Clock) -> None:
        self._partitions = partitions
        self._budget = budget
        self._spiller = spiller
        self._figures = Cached(self._walk, clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        budget, get = self._budget, self._figures.get
        registry.gauge(
            names.SHUFFLE_MEMORY_BYTES,
            lambda: {("payloads",): budget.memory, ("index",): budget.index, ("promised",): budget.reserved},
        )
        registry.gauge(names.SHUFFLE_MEMORY_CAPACITY_BYTES, lambda: {(): budget.memory_max})
        registry.gauge(names.SHUFFLE_DISK_BYTES, lambda: {(): budget.disk})
        registry.read_counter(names.SHUFFLE_PUSHED_BYTES, lambda: {(): budget.taken_bytes})
        registry.read_counter(names.SHUFFLE_SPILLED_BYTES, lambda: {(): budget.spilled_bytes})
        registry.gauge(names.SHUFFLE_SPILLER_BROKEN, lambda: {(): self._spiller.broken is not None})
        registry.gauge(names.SHUFFLE_PARTITIONS, lambda: get().partitions)
        registry.gauge(names.SHUFFLE_BUFFERS, lambda: get().buffers)
        registry.gauge(names.SHUFFLE_WRITERS, lambda: {(): get().writers})
        registry.gauge(names.SHUFFLE_BLOCKED_WRITERS, lambda: get().blocked)
        registry.gauge(names.SHUFFLE_WRITER_CREDIT, lambda: {(): get().writer_credit})
        registry.gauge(names.SHUFFLE_READERS, lambda: {(): get().readers})
        registry.gauge(names.SHUFFLE_READER_CREDIT, lambda: {(): get().reader_credit})
        registry.gauge(names.SHUFFLE_BACKLOG_BUFFERS, lambda: {(): get().backlog})
        registry.gauge(names.SHUFFLE_BACK_PRESSURED_READERS, lambda: {(): get().back_pressured})

    def _walk(self) -> Figures:
        states = dict.fromkeys(LifeState, 0)
        in_memory = in_file = writers = writer_credit = readers = reader_credit = backlog = back_pressured = 0
        blocked = {"readers": 0, "memory": 0}
        left = _READERS_MAX
        for number, partition in enumerate(self._partitions.present()):
            if not number % _PIECE:
                _pause()
            with partition.lock:
                views = [each for each in islice(partition.readers, left) if isinstance(each, View)]
                in_memory += partition.holdings.in_memory
                in_file += partition.holdings.in_file
                writer = partition.lease.listener
            left -= len(views)
            states[partition.life] += 1
            if writer is not None:
                writers += 1
                credit = writer.credit
                writer_credit += credit
                if partition.writer_waits and not credit:
                    blocked["readers" if partition.full else "memory"] += 1
            for view in views:
                readers += 1
                reader_credit += max(0, view.credit.credits)
                backlog += view.waiting
                back_pressured += view.waiting > 0 and view.credit.credits <= 0
        return Figures(
            partitions={(state.name.lower(),): count for state, count in states.items()},
            buffers={("memory",): in_memory, ("file",): in_file},
            blocked={(reason,): count for reason, count in blocked.items()},
            writers=writers,
            writer_credit=writer_credit,
            readers=readers,
            reader_credit=reader_credit,
            backlog=backlog,
            back_pressured=back_pressured,
        )


def _pause() -> None:
    Event().wait(_PAUSE_S)
