"""What Kafka's consumers get of a log that Pulsar's producers write to: entries become record batches with the same offsets.

On threads that may block: an entry is read, decompressed and written anew, in Python. So one response has a bounded number of
bytes of them, and at least one, and the client asks again for the rest. Batches of Kafka's producers that lie between entries
still leave by sendfile.

Tests: tests/kafka/test_fetched_entries.py, tests/kafka/handlers/test_fetch_entries.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

from broker.network.service import Part
from broker.runtime.disk import FileRegion
from broker.storage.log import inspection
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader

# Of one response: 10,000 messages of 100 bytes take about 30 ms to write anew.
MOST_BYTES = 1024 * 1024
_CHUNK = 256 * 1024


class Translated(NamedTuple):
    """``whole`` is False if some batches did not fit."""

    parts: list[Part]
    size: int
    whole: bool


def translate(log: Log, regions: Sequence[FileRegion], most: int, *, at_least_one: bool) -> Translated:
    """The parts of a response: the whole batches in ``regions``, with records in the place of entries, as many as fit ``most``;
    with ``at_least_one`` the first batch even if it does not fit.

    Raises StorageError for a log that is damaged.
    """
    parts: list[Part] = []
    size = 0
    if most <= 0 and not at_least_one:
        return Translated(parts, 0, not regions)
    try:
        for region in regions:
            for header, position, batch in walk(region, _CHUNK, _of_entries):
                translated = None
                if header.is_entry:
                    translated = inspection.as_records(batch, header, log.around.large_entries)
                taken = header.size if translated is None else len(translated)
                if size + taken > most and not (at_least_one and not size):
                    return Translated(parts, size, False)
                size += taken
                if translated is not None:
                    parts.append(translated)
                else:
                    _extend(parts, region, position, taken)
    except ProtocolError as error:
        raise log.go_offline(f"a record batch is damaged: {error}") from error
    except OSError as error:
        raise log.failed("entries could not be read", error) from error
    return Translated(parts, size, True)


def _extend(parts: list[Part], region: FileRegion, position: int, size: int) -> None:
    """Add bytes of the file, to the region before them if they follow it."""
    last = parts[-1] if parts else None
    if isinstance(last, FileRegion) and last.file is region.file and last.offset + last.size == position:
        last.size += size
    else:
        parts.append(FileRegion(region.file, position, size))


def _of_entries(header: BatchHeader) -> int:
    """All bytes of an entry, and none of other batches."""
    return header.size if header.is_entry else 0
