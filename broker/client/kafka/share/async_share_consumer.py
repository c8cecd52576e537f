"""The share consumer for coroutines:

    from broker.client import AsyncShareConsumer

    async with AsyncShareConsumer("localhost:9092", "workers", ["jobs"]) as jobs:
        async for record in jobs:
            await work(record.value)

Calls that wait for brokers run on threads of asyncio's pool, so they never block the event loop, and heartbeats
continue if the program blocks it. A task cancelled while it waits loses no record: records that come meanwhile
go to the next call.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Self

from broker.client.kafka.share.record import ShareRecord
from broker.client.kafka.share.share_consumer import Pace, ShareConsumer
from broker.runtime.clock import SystemClock
from broker.runtime.forks import in_thread


class AsyncShareConsumer:
    """Takes the arguments of ``ShareConsumer``. ``on_acknowledged`` is called on the event loop's thread."""

    def __init__(self, servers: Any, group: str, topics: Iterable[str] = (), **options: Any) -> None:
        self._consumer = ShareConsumer(servers, group, topics, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(release=error is not None)

    async def close(self, *, release: bool = False) -> None:
        try:
            await in_thread(partial(self._consumer.end, release))
        finally:
            self._consumer.report()

    @property
    def group(self) -> str:
        return self._consumer.group

    @property
    def member_id(self) -> str:
        return self._consumer.member_id

    @property
    def subscription(self) -> frozenset[str]:
        return self._consumer.subscription

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics instead of the previous ones."""
        self._consumer.subscribe(topics)

    async def poll(self, timeout_s: float | None = None, max_records: int | None = None) -> list[ShareRecord]:
        consumer = self._consumer
        count, deadline = consumer.begin_poll(timeout_s, max_records)
        while True:
            await self._fill(deadline, count)
            records = consumer.take(count)
            if records or consumer.is_over(deadline):
                return records

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        consumer, clock = self._consumer, SystemClock()
        pace = Pace(consumer.max_poll_records)
        while True:
            deadline = inf if consumer.idle_timeout_s is None else clock.monotonic() + consumer.idle_timeout_s
            while not (records := consumer.take(1)):
                if consumer.is_over(deadline):
                    return
                await self._fill(deadline, pace.size, strict=not pace.is_fast)
            began_at = sent_at = clock.monotonic()
            count = 0
            while records and not consumer.is_closed:
                count += 1
                yield records[0]
                consumer.done(records[0])
                if consumer.is_late(sent_at):
                    await in_thread(consumer.send)
                    consumer.report()
                    sent_at = clock.monotonic()
                records = consumer.take(1)
            pace.finished(count, clock.monotonic() - began_at)

    async def _fill(self, deadline: float, count: int, strict: bool = True) -> None:
        try:
            await in_thread(partial(self._consumer.fill, deadline, count, strict))
        finally:
            self._consumer.report()

    async def commit(self) -> None:
        """Send the decisions and wait until they are stored. Raises AcknowledgementError for those that do not count."""
        try:
            await in_thread(self._consumer.flush)
        finally:
            self._consumer.report()
