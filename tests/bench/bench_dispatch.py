"""What the dispatchers of several consumers cost an entry, in CPU time of one thread.

    python -m tests.bench.bench_dispatch

In the first tables an entry is read from a list, assigned, acknowledged in the cursor, and reported as acknowledged. The columns:
us an entry, and how many times as much as the first row of the table. The other rows are single events, the worst that a client
can send: how long the event takes, or the longest of the slices that follow it, and how many slices there are.
"""

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Deliver, DispatchSettings, Effect, Now, Read, Replay, WakeAt
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

_ROUNDS = 7
_ENTRIES = 50_000
_HELD = 100_000
_NOW = Now(1.0, 1_000)
_UNLIMITED = DispatchSettings(unacked_max_per_consumer=0, unacked_max_per_subscription=0)

Kind = type[Shared] | type[KeyShared]


class Loop:
    """Carries out effects. What is delivered is acknowledged, unless ``holds``; then the consumer gives permits again."""

    def __init__(
        self,
        kind: Kind,
        entries: Sequence[Entry],
        consumers: int,
        permits: int,
        settings: DispatchSettings = _UNLIMITED,
        *,
        holds: bool = False,
    ) -> None:
        self.cursor = Cursor()
        self.dispatcher = kind(self.cursor, settings, DelayedTracker())
        self.consumers = [Consumer(number, f"consumer-{number}") for number in range(consumers)]
        self.delivered = 0
        self._entries = entries
        self._index = {entry.offset: at for at, entry in enumerate(entries)}
        self._permits = permits
        self._holds = holds
        for consumer in self.consumers:
            self.dispatcher.add(consumer, _NOW)

    def run(self) -> None:
        effects: list[Effect] = []
        for consumer in self.consumers:
            effects += self.dispatcher.flow(consumer, self._permits, _NOW)
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        dispatcher, cursor = self.dispatcher, self.cursor
        work = deque(effects)
        while work:
            effect = work.popleft()
            if type(effect) is Deliver:
                consumer = effect.consumer
                self.delivered += len(effect.deliveries)
                if self._holds:
                    continue
                for delivery in effect.deliveries:
                    entry = delivery.entry
                    cursor.acknowledge(entry.offset, entry.messages)
                    work += dispatcher.acknowledged(consumer, entry.offset, entry.messages, True, _NOW)
                if consumer.permits <= self._permits // 2:
                    work += dispatcher.flow(consumer, self._permits - consumer.permits, _NOW)
            elif type(effect) is Read:
                at = self._index.get(effect.offset, len(self._entries))
                entries = self._entries[at : at + effect.max_entries]
                if entries:
                    work += dispatcher.read_done(effect, entries, _NOW)
            elif type(effect) is Replay:
                again = [self._entries[self._index[offset]] for offset in effect.offsets]
                work += dispatcher.replay_done(effect, again, _NOW)


def made(count: int, messages: int = 1, keys: int = 1000) -> list[Entry]:
    """Entries of a topic with so many keys."""
    return [
        Entry(
            offset=number * messages,
            messages=messages,
            size=1024,
            data=b"",
            sticky_hash=number % keys * 2_654_435,
        )
        for number in range(count)
    ]


def least_us(kind: Kind, entries: Sequence[Entry], consumers: int, permits: int) -> float:
    """The CPU time (us) of an entry, the best of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        loop = Loop(kind, entries, consumers, permits, DispatchSettings())
        gc.collect()
        gc.disable()
        began = time.process_time()
        loop.run()
        best = min(best, time.process_time() - began)
        gc.enable()
        assert len(entries) == loop.delivered
    return best / len(entries) * 1e6


def event(name: str, loop: Loop, work: Callable[[], list[Effect]]) -> None:
    """Time the event itself, and the slices that follow."""
    began = time.process_time()
    effects = work()
    longest, slices = time.process_time() - began, 0
    while any(type(effect) is WakeAt for effect in effects):
        began = time.process_time()
        effects = loop.dispatcher.tick(_NOW)
        longest, slices = max(longest, time.process_time() - began), slices + 1
    print(f"{type(loop.dispatcher).__name__:11}{name:58}{longest * 1e3:8.2f} ms{slices:6} slices")


def holding(kind: Kind) -> tuple[Loop, Consumer]:
    """Two consumers that acknowledge nothing, and the one that holds more."""
    loop = Loop(kind, made(_HELD), 2, _HELD, holds=True)
    loop.run()
    return loop, max(loop.consumers, key=lambda consumer: len(consumer.held))


def entries_table(kind: Kind) -> None:
    single, batches = made(_ENTRIES), made(_ENTRIES // 10, messages=100)
    first = 0.0
    for consumers, permits, entries, what in (
        (1, 1000, single, "1 message an entry"),
        (100, 1000, single, "1 message an entry"),
        (1000, 1000, single, "1 message an entry"),
        (100, 1, single, "1 message an entry, a permit at a time"),
        (1, 1000, batches, "100 messages an entry"),
        (100, 1000, batches, "100 messages an entry"),
    ):
        took = least_us(kind, entries, consumers, permits)
        first = first or took
        print(f"{kind.__name__:11}{consumers:5} consumers, {what:40}{took:9.2f} us{took / first:6.2f} x")
    print()


def events_table(kind: Kind) -> None:
    loop, consumer = holding(kind)
    dispatcher = loop.dispatcher
    event(
        "redeliver with 10^6 ids, some of them held", loop, lambda: dispatcher.redeliver(consumer, range(10**6), _NOW)
    )

    loop, consumer = holding(kind)
    dispatcher = loop.dispatcher
    unknown = range(10**7, 10**7 + 10**6)
    event("redeliver with 10^6 unknown ids", loop, lambda: dispatcher.redeliver(consumer, unknown, _NOW))
    event(f"a consumer with {len(consumer.held):,} entries leaves", loop, lambda: dispatcher.remove(consumer, _NOW))

    loop, _ = holding(kind)
    dispatcher = loop.dispatcher
    loop.cursor.acknowledge_until(_HELD)
    event(f"{_HELD:,} entries expire", loop, lambda: dispatcher.marked_deleted(_HELD, _NOW))

    loop = Loop(kind, [], 10_000, 1)
    dispatcher = loop.dispatcher
    newcomer = Consumer("new", "new")
    event("the 10,001st consumer joins", loop, lambda: dispatcher.add(newcomer, _NOW))
    event("it gives 2^32 - 1 permits", loop, lambda: dispatcher.flow(newcomer, 2**32 - 1, _NOW))
    event("it leaves", loop, lambda: dispatcher.remove(newcomer, _NOW))

    tracemalloc.start()
    idle = [kind(Cursor(), _UNLIMITED, DelayedTracker()) for _ in range(1000)]
    size = tracemalloc.get_traced_memory()[0] // len(idle)
    tracemalloc.stop()
    print(f"{kind.__name__:11}{'an idle one with its cursor':58}{size:8,} bytes\n")


def main() -> None:
    for kind in (Shared, KeyShared):
        entries_table(kind)
    for kind in (Shared, KeyShared):
        events_table(kind)


if __name__ == "__main__":
    main()
