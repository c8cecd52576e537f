"""The permitted cost of a request, and the thread that runs it: the limits of all services that read a body of many entries.

A request is charged before the work is done. Its *entries* (the elements of all arrays of its body) are counted while it is
parsed, before objects are made of them, and the bytes of its response are limited while it is written. Long work checks every
``CHECK_EVERY`` entries whether its client is still connected.

The size of the body decides before parsing where a request runs:

- up to ``INLINE_BYTES`` it may run on the connection's processor, if it cannot block;
- up to ``BULK_BYTES`` any handler runs it;
- beyond that it goes through a *lane* of the request channel. Each lane keeps only some handlers busy at a time, so the memory
  that large requests take is bounded, and small requests always find a handler.

Pure; used on the thread that handles the request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# A body of this size (bytes) has at most 1,000 entries: 1-5 ms on a processor, while its other connections wait.
INLINE_BYTES = 4 * 1024
# Entries of a body that carries records, so that its size says nothing: 100 partitions take 1-2 ms.
INLINE_ENTRIES = 200
# About 5,000 entries: eight handlers with such requests use a few MB and are done within some hundred ms.
BULK_BYTES = 16 * 1024
# Entries of one request: five times those of a request about 10,000 partitions of one topic, and twice those of one about
# 10,000 topics of one partition with two settings each. Parsed, they take 25-50 MB and less than 1 s.
REQUEST_ENTRIES_MAX = 50_000
# 20,000 topics with all their settings, or the metadata of a million partitions. Clients have limits of this order
# (librdkafka: 100 MB).
RESPONSE_MAX_BYTES = 64 * 1024 * 1024
# Entries between two checks of the connection: 1-10 ms of work.
CHECK_EVERY = 256

# Logs that all parked fetches together may watch: 16 fetches of 10,000 partitions, about 60 MB. A fetch beyond that is answered
# at its deadline, without noticing appends meanwhile.
WATCHES_MAX = 160_000
# A fetch of at most so many logs watches them in any case. Otherwise 16 connections could make every consumer wait for its
# deadlines. With 10,000 connections these are as many logs again.
WATCHED_ALWAYS = 16

# The lanes. Requests with long bodies; those that are slow by nature, because they change topics or describe everything; logins
# that compute for milliseconds; those that may decompress what some client has written, because somebody asks for it; and those
# whose own records have to be decompressed before they are stored. The last two take up to some 100 ms a batch. And those that
# wait for the object store, which takes some 100 ms, too.
BULK = "bulk"
ADMIN = "admin"
LOGIN = "login"
INSPECTION = "inspection"
VALIDATION = "validation"
REMOTE = "remote"
LANES = (BULK, ADMIN, LOGIN, INSPECTION, VALIDATION, REMOTE)
# Lanes of which one request is with a handler at a time. What they decompress may take much memory, so one batch is decompressed
# after the other (``broker/storage/log/inspection.py``), and a second request would only keep a handler waiting.
SERIAL = frozenset({INSPECTION, VALIDATION})


class Abandoned(Exception):
    """The client has disconnected, or the broker stops. The connection is closed without an answer."""


class Work:
    """The work on one request."""

    __slots__ = ("_abandoned",)

    def __init__(self, abandoned: Callable[[], bool]) -> None:
        """``abandoned``: whether the answer is no longer needed. Called on the thread that works, now and then."""
        self._abandoned = abandoned

    def checkpoint(self) -> None:
        """Raises Abandoned if the answer is no longer needed. Call it before each step that takes milliseconds."""
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


def lane_of(size: int, usual: str | None) -> str | None:
    """The lane for a body of ``size`` bytes of an API whose usual lane is ``usual``. None: any handler."""
    return BULK if usual is None and size > BULK_BYTES else usual


def once(items: Iterable[T]) -> Collection[T]:
    """Each item once, in the order of first occurrence."""
    return dict.fromkeys(items)
