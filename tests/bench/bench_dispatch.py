"""What the dispatchers of several consumers cost an entry, in CPU time of one thread.

    python -m tests.bench.bench_dispatch

An entry is read from a list, assigned, acknowledged in the cursor and reported as acknowledged. The rows: consumers, and what they
do; the columns: us an entry, and how many times as much as the first row of the table. Then what single events cost: the worst
of what a client can send at once.
"""

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Deliver, Effect, Now, Read, Replay, WakeAt
from broker.pulsar.dispatch.key_shared import KeyShared
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.shared import Shared
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

_ROUNDS = 7
_ENTRIES = 50_000


def shared(cursor: Cursor) -> ManyConsumers:
    return Shared(cursor, DispatchSettings(), DelayedTracker())


def key_shared(cursor: Cursor) -> ManyConsumers:
    return KeyShared(cursor, DispatchSettings(), DelayedTracker())


class Loop:
    """Carries out effects: reads come from a list, and what is delivered is acknowledged in the same turn."""

    def __init__(self, make: Callable[[Cursor], ManyConsumers], entries: Sequence[Entry], consumers: int, permits: int):
        self.cursor = Cursor()
        self.dispatcher = make(self.cursor)
        self.entries = entries
        self.index = {entry.offset: at for at, entry in enumerate(entries)}
        self.permits = permits
        self.consumers = [Consumer(number, f"consumer-{number}") for number in range(consumers)]
        self.now = Now(1.0, 1_000)
        self.acknowledge = True
        self.delivered = 0
        for consumer in self.consumers:
            self.dispatcher.add(consumer, self.now)

    def run(self) -> None:
        effects: list[Effect] = []
        for consumer in self.consumers:
            effects += self.dispatcher.flow(consumer, self.permits, self.now)
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        dispatcher, cursor, now, acknowledge = self.dispatcher, self.cursor, self.now, self.acknowledge
        work = deque(effects)
        while work:
            effect = work.popleft()
            if type(effect) is Deliver:
                consumer = effect.consumer
                self.delivered += len(effect.deliveries)
                if acknowledge:
                    for delivery in effect.deliveries:
                        entry = delivery.entry
                        cursor.acknowledge(entry.offset, entry.messages)
                        work += dispatcher.acknowledged(consumer, entry.offset, entry.messages, True, now)
                if consumer.permits <= self.permits // 2:
                    work += dispatcher.flow(consumer, self.permits, now)
            elif type(effect) is Read:
                at = self.index.get(effect.offset, len(self.entries))
                entries = self.entries[at : at + effect.max_entries]
                if entries:
                    work += dispatcher.read_done(effect, entries, now)
            elif type(effect) is Replay:
                found = [self.entries[self.index[offset]] for offset in effect.offsets]
                work += dispatcher.replay_done(effect, found, now)


def made(count: int, messages: int = 1, keys: int = 1000) -> list[Entry]:
    return [
        Entry(
            offset=number * messages,
            messages=messages,
            size=1024,
            data=b"",
            publish_ms=0,
            sticky_hash=number * 7919 % keys,
        )
        for number in range(count)
    ]


def least_us(make: Callable[[Cursor], ManyConsumers], entries: Sequence[Entry], consumers: int, permits: int) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        loop = Loop(make, entries, consumers, permits)
        gc.collect()
        gc.disable()
        began = time.process_time()
        loop.run()
        best = min(best, time.process_time() - began)
        gc.enable()
        assert loop.delivered == len(entries), (loop.delivered, len(entries))
    return best / len(entries) * 1e6


def loop_alone_us(entries: Sequence[Entry]) -> float:
    """What the loop itself and the cursor take."""

    class Nothing(Shared):
        def acknowledged(self, *args: object) -> list[Effect]:  # type: ignore[override]
            return []

    best = float("inf")
    for _ in range(_ROUNDS):
        loop = Loop(lambda cursor: Nothing(cursor, DispatchSettings(unacked_max_per_consumer=0)), entries, 1, 1000)
        deliveries = [Deliver(loop.consumers[0], [_delivery(e) for e in entries])]
        loop.consumers[0].permits = 1 << 40
        began = time.process_time()
        loop.carry_out(deliveries)
        best = min(best, time.process_time() - began)
    return best / len(entries) * 1e6


def _delivery(entry: Entry) -> "object":
    from broker.pulsar.dispatch.dispatcher import Delivery

    return Delivery(entry)


def event_ms(name: str, work: Callable[[], list[Effect]], loop: Loop) -> None:
    """The event itself, and the longest of the slices that follow."""
    longest = 0.0
    slices = 0
    began = time.process_time()
    effects = work()
    longest = time.process_time() - began
    while any(type(effect) is WakeAt for effect in effects):
        slices += 1
        began = time.process_time()
        effects = loop.dispatcher.tick(loop.now)
        longest = max(longest, time.process_time() - began)
    print(f"{name:64} {longest * 1e3:8.2f} ms{slices:6} slices")


def holding(make: Callable[[Cursor], ManyConsumers], consumers: int, count: int) -> Loop:
    """Consumers that acknowledge nothing."""
    loop = Loop(
        lambda cursor: make_unlimited(make, cursor),
        made(count),
        consumers,
        count,
    )
    loop.acknowledge = False
    loop.run()
    return loop


def make_unlimited(make: Callable[[Cursor], ManyConsumers], cursor: Cursor) -> ManyConsumers:
    kind = Shared if make is shared else KeyShared
    return kind(cursor, DispatchSettings(unacked_max_per_consumer=0, unacked_max_per_subscription=0))


def main() -> None:
    single, batches = made(_ENTRIES), made(_ENTRIES // 10, messages=100)
    overhead = loop_alone_us(single)
    print(f"the loop and the cursor alone: {overhead:.2f} us an entry (not subtracted)\n")
    for name, make in (("Shared", shared), ("Key_Shared", key_shared)):
        first = 0.0
        for consumers, permits, entries, what in (
            (1, 1000, single, "1 message an entry"),
            (100, 1000, single, "1 message an entry"),
            (1000, 1000, single, "1 message an entry"),
            (100, 1, single, "1 message an entry, a permit at a time"),
            (1, 1000, batches, "100 messages an entry"),
            (100, 1000, batches, "100 messages an entry"),
        ):
            took = least_us(make, entries, consumers, permits)
            first = first or took
            print(f"{name:11}{consumers:5} consumers, {what:42} {took:6.2f} us {took / first:5.2f} x")
        print()
    for name, make in (("Shared", shared), ("Key_Shared", key_shared)):
        loop = holding(make, 2, 100_000)
        everything = loop.consumers[0]
        half = len(everything.held) or 1
        event_ms(
            f"{name}: redeliver with 10^6 ids, {half:,} of them held",
            lambda loop=loop, c=everything: loop.dispatcher.redeliver(c, range(1_000_000), loop.now),
            loop,
        )
        loop = holding(make, 2, 100_000)
        event_ms(
            f"{name}: redeliver with 10^6 unknown ids",
            lambda loop=loop: loop.dispatcher.redeliver(loop.consumers[0], range(10**7, 10**7 + 10**6), loop.now),
            loop,
        )
        leaving = max(loop.consumers, key=lambda consumer: len(consumer.held))
        event_ms(
            f"{name}: a consumer with {len(leaving.held):,} entries leaves",
            lambda loop=loop, c=leaving: loop.dispatcher.remove(c, loop.now),
            loop,
        )
        loop = holding(make, 2, 100_000)
        loop.cursor.acknowledge_until(100_000)
        event_ms(
            f"{name}: 100,000 entries expire", lambda loop=loop: loop.dispatcher.marked_deleted(100_000, loop.now), loop
        )
        loop = Loop(make, [], 10_000, 1)
        newcomer = Consumer("new", "new")
        event_ms(
            f"{name}: the 10,001st consumer joins", lambda loop=loop: loop.dispatcher.add(newcomer, loop.now), loop
        )
        event_ms(
            f"{name}: it gives 2^32 - 1 permits",
            lambda loop=loop: loop.dispatcher.flow(newcomer, 2**32 - 1, loop.now),
            loop,
        )
        event_ms(f"{name}: it leaves", lambda loop=loop: loop.dispatcher.remove(newcomer, loop.now), loop)
        tracemalloc.start()
        idle = [make(Cursor()) for _ in range(1000)]
        print(
            f"{name}: an idle dispatcher with its cursor{tracemalloc.get_traced_memory()[0] / len(idle):29,.0f} bytes\n"
        )
        tracemalloc.stop()


if __name__ == "__main__":
    main()
