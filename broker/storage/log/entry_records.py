"""Entries as record batches of Kafka's: what Kafka's consumers get in the place of an entry, and what compaction takes apart.

On any thread but a processor's: the payload of an entry may be compressed. As in ``inspection.py``, entries that are large inside
are taken one after the other, because all of their messages are in memory then.

What translates is imported when the first entry is met: it needs protobuf, which takes 40 ms and 4 MB that brokers without
entries do not spend.
"""

from typing import TYPE_CHECKING

from broker.runtime.threads import Lock
from broker.storage.log.inspection import SMALL_BYTES
from protocol.kafka.records.batch import BatchHeader

if TYPE_CHECKING:
    from protocol.translation.opened_entry import OpenedEntry

# Entries of more messages are left as they are: it takes 4 us for each. A Pulsar producer puts 1,000 into a batch by default.
MOST_MESSAGES = 100_000
# Messages that are taken apart beside others. Each takes some 300 bytes for as long as that lasts.
_FEW_MESSAGES = 10_000


def as_records(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """The batch of records, with the offsets of the entry; None for a batch that only has the mark of one, or has too many
    messages: consumers get it as it is. ``large`` is held while an entry is taken apart that is large inside."""
    from protocol.translation.opened_entry import open_entry

    entry = open_entry(batch, header)
    return None if entry is None or entry.messages > MOST_MESSAGES else _records(entry, large)


def taken_apart(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """As ``as_records``, for a caller that removes records. None also for an entry that must stay whole: one that is encrypted or
    cannot be read, so that its keys are not known, and a part of a message that was cut into chunks."""
    from protocol.translation.opened_entry import open_entry, stands_for_unreadable

    entry = open_entry(batch, header)
    if entry is None or not entry.readable or entry.messages > MOST_MESSAGES:
        return None
    batch = _records(entry, large)
    return None if stands_for_unreadable(batch) else batch


def _records(entry: "OpenedEntry", large: Lock) -> memoryview:
    if entry.inner_size <= SMALL_BYTES and entry.messages <= _FEW_MESSAGES:
        return entry.records()
    with large:
        return entry.records()
