"""What the dispatchers of several consumers leave open: which consumer an entry goes to, and in what order entries are sent
again.

``many_consumers.py`` decides when to read and does everything else. The two ways are ``round_robin.py`` (Shared) and
``by_key.py`` (Key_Shared). Both keep the entries that *wait*: those that are in the table of records in flight and that
nobody has.

Tests: tests/pulsar/dispatch/test_shared.py, tests/pulsar/dispatch/test_key_shared.py.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from broker.delivery.in_flight import Owner, Record
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery
from broker.pulsar.entry import Entry

# The tag of a record whose entry has not been read yet, but for its time of delivery. All other tags are the assignment's.
UNKNOWN = -1


@attrs.define(eq=False)
class Sent:
    """What became of the entries of a read."""

    batches: dict[Consumer, list[Delivery]] = attrs.field(factory=dict)
    messages: int = 0
    size: int = 0
    left: Entry | None = None  # the first that was neither sent nor put with those that wait; nor was anything after it


class Assignment(Protocol):
    # -- consumers --

    def join(self, consumer: Consumer) -> None:
        """Raises a Refusal; then nothing has changed."""

    def leave(self, consumer: Consumer) -> None:
        """What it has is released a little later, record by record."""

    def offer(self, consumer: Consumer) -> None:
        """It is available, and perhaps was not before."""

    def anyone(self) -> bool:
        """Whether somebody is available."""

    def room(self, entries: int, messages_per_entry: float) -> int:
        """About how many entries could be sent, at most ``entries``. Not 0 if there is anyone."""

    # -- entries that wait --

    def put(self, record: Record) -> None:
        """This record waits from now on."""

    def acknowledged(self, record: Record) -> None:
        """This record waited, and is acknowledged."""

    def freed(self, record: Record, owner: Owner) -> None:
        """``owner`` no longer has this record."""

    def ready(self) -> bool:
        """Whether ``take`` would return something, as far as can be told without looking."""

    def take(self, most: int, messages_per_entry: float) -> list[int]:
        """At most so many offsets of entries that wait and could be sent now, ascending. Until ``taken_back`` they are not
        taken again."""

    def taken_back(self, offsets: Sequence[int]) -> None:
        """What ``take`` returned has been read, or could not be: those that still wait may be taken again."""

    @property
    def full(self) -> bool:
        """So many entries wait for certain consumers that no new ones may be read."""

    @property
    def waiting(self) -> int:
        """How many entries wait."""

    # -- entries that were read --

    def send(self, entries: Iterable[Entry], messages: int, size: int, *, new: bool) -> Sent:
        """Acquire each entry for a consumer, or have it wait, until so many messages or bytes are sent. ``new``: they are not in
        the table."""

    def clear(self) -> None:
        """There are no consumers and no records any more."""
