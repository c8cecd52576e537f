"""What one request may cost, and who works on it: the limits of all services that read a body of many entries.

A request is charged before the work is done. Its *entries* (elements of all arrays of its body) are counted while it is parsed,
before anything is made of them; the bytes of its response are limited while it is written. Work that takes long asks every
``CHECK_EVERY`` entries whether anybody still wants it.

Where it runs is decided before parsing, by the size of the body:

- up to ``INLINE_BYTES`` it may run on the connection's processor, if it cannot block;
- up to ``BULK_BYTES`` any handler takes it;
- beyond that it goes through a *lane* of the request channel. Of each lane only some handlers are busy at a time, so the
  memory that large requests take is bounded, and small requests always find a handler.

Pure; used on whatever thread handles the request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from broker.runtime.threads import Lock

T = TypeVar("T")

# A body of this size (bytes) has at most 1,000 entries: 1-5 ms of a processor, which all its connections wait for.
INLINE_BYTES = 4 * 1024
# Entries of a body whose size says nothing, because it carries records: 100 partitions are 1-2 ms.
INLINE_ENTRIES = 200
# Some 5,000 entries: with eight handlers at it, a few MB and some hundred ms until each is done.
BULK_BYTES = 16 * 1024
# Entries of one request: five times those of a request about 10,000 partitions of one topic, and twice those of one about
# 10,000 topics of one partition with two settings each. Parsed, they take 25-50 MB and less than 1 s.
REQUEST_ENTRIES_MAX = 50_000
# 20,000 topics with all their settings, or the metadata of a million partitions. Clients have limits of this order
# (librdkafka: 100 MB).
RESPONSE_MAX_BYTES = 64 * 1024 * 1024
# Entries between two looks at the connection: 1-10 ms of work.
CHECK_EVERY = 256

# Logs that parked fetches watch, all together: 16 fetches of 10,000 partitions, some 60 MB. One that finds no room is answered
# at its deadline, without having noticed what was appended meanwhile.
WATCHES_MAX = 160_000
# A fetch of so few logs watches them in any case, or 16 connections could make every consumer wait for its deadlines. With
# 10,000 connections these are as many logs again.
WATCHED_ALWAYS = 16

# The lanes. Requests with long bodies, and those that are slow by nature: they change topics, or describe everything.
BULK = "bulk"
ADMIN = "admin"


class Abandoned(Exception):
    """Nobody wants the answer any more: the client has gone, or the broker stops. The connection is closed without one."""


class Work:
    """The work on one request."""

    __slots__ = ("_abandoned",)

    def __init__(self, abandoned: Callable[[], bool]) -> None:
        """``abandoned``: tells whether the work is for nobody. Called from the thread that works, now and then."""
        self._abandoned = abandoned

    def checkpoint(self) -> None:
        """Raises Abandoned if the work is for nobody. To be called before each step that takes milliseconds."""
        if self._abandoned():
            raise Abandoned

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, with a checkpoint every ``CHECK_EVERY`` of them. For steps of microseconds."""
        left = CHECK_EVERY
        for item in items:
            left -= 1
            if not left:
                left = CHECK_EVERY
                self.checkpoint()
            yield item


class Allowance:
    """So much of something for all requests together. Any thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, count: int, *, force: bool = False) -> bool:
        """False if that much is not left; then nothing was taken. ``force``: take it all the same."""
        with self._lock:
            if self._taken + count > self.capacity and not force:
                return False
            self._taken += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count


def lane_of(size: int, usual: str | None) -> str | None:
    """The lane for a body of ``size`` bytes, where its API's ``usual`` one is this. None: any handler."""
    return BULK if usual is None and size > BULK_BYTES else usual


def once(items: Iterable[T]) -> Collection[T]:
    """Each item once, in the order in which they come first."""
    return dict.fromkeys(items)
