"""The rules for batches that are appended, and the few cases in which the broker changes a batch first.

Pure functions on the bytes of a request. The rules and their error codes are those of Kafka's LogValidator, but usually only
the lengths of a batch's records are followed, or the beginning of compressed ones
(docs/decisions/0007-what-is-validated.md). Each record is read whole if the topic has ``record.validation=full`` or another
codec than the batch, or is compacted, because then every record needs a key.

Tests: tests/storage/log/test_log.py.
"""

from broker.runtime.threads import Lock
from broker.storage.log import inspection
from broker.storage.log.log_config import LogConfig
from broker.storage.refusals import BatchTooLarge, CorruptBatch, InvalidBatch, InvalidTimestamp, KeylessRecords
from broker.storage.segments.segment import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CRC,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    Header,
)
from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    ENTRY,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    UnsupportedMagic,
    read_header,
    recoded,
    set_log_append_time,
)
from protocol.kafka.records.compression import LARGEST_RATIO, compress
from protocol.kafka.records.record_scan import check_records, check_shape
from protocol.kafka.records.records import SMALLEST_RECORD, walk_records

LARGEST_CODEC = 4
# The response names at most this many records without a key: each takes 100 bytes of it.
MOST_NAMED = 1000


def examine(
    view: memoryview, config: LogConfig, now_ms: int, large: Lock
) -> tuple[memoryview, list[tuple[int, Header]]]:
    """The batches of a request as they are stored, with position and header of each. ``large`` is held while a batch is
    decompressed that is large inside. Raises Refusal."""
    batches = split(view)
    for position, header in batches:
        body = view[position + HEADER_SIZE : position + LOG_OVERHEAD + header[LENGTH]]
        try:
            check(header, config, now_ms)
        except InvalidTimestamp as error:
            if len(batches) == 1 and not header[ATTRIBUTES] & (COMPRESSION_MASK | LOG_APPEND_TIME):
                error.numbers = _untimely(read_header(view, position), body, config, now_ms)
            raise
        try:
            check_shape(body, header[ATTRIBUTES] & COMPRESSION_MASK, header[RECORD_COUNT])
        except ProtocolError as error:
            raise InvalidBatch(f"The records of a batch cannot be read: {error}") from error
    return prepare(view, batches, config, now_ms, large)


def entries(view: memoryview, config: LogConfig, now_ms: int) -> list[tuple[int, Header]]:
    """Position and header of each entry in ``view``, which this broker has built: it is trusted, and neither compressed anew nor
    checked against the rules for Kafka's producers. Only timestamps that the topic does not allow are replaced, by the time of
    the append."""
    batches: list[tuple[int, Header]] = []
    position, size = 0, len(view)
    earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    if config.log_append_time:
        latest = -1 << 63  # no timestamp is kept
    unpack = HEADER.unpack_from
    while position < size:
        header: Header = unpack(view, position)
        assert header[ATTRIBUTES] & ENTRY
        assert header[LAST_DELTA] >= 0
        if not earliest <= header[MAX_TIMESTAMP] <= latest:
            set_log_append_time(view, position, read_header(view, position), now_ms)
            header = unpack(view, position)
        batches.append((position, header))
        position += LOG_OVERHEAD + header[LENGTH]
    return batches


def split(view: memoryview) -> list[tuple[int, Header]]:
    """Position and header of each batch of a request, checksums verified.

    Raises CorruptBatch, InvalidBatch.
    """
    batches: list[tuple[int, Header]] = []
    position = 0
    try:
        while position < len(view):
            header = read_header(view, position)
            end = position + LOG_OVERHEAD + header[LENGTH]
            if crc32c(view[position + CRC_START : end]) != header[CRC]:
                raise CorruptBatch("A record batch does not match its checksum.")
            batches.append((position, header))
            position = end
    except UnsupportedMagic as error:
        raise InvalidBatch(str(error)) from error
    except ProtocolError as error:
        raise CorruptBatch(str(error)) from error
    if not batches:
        raise InvalidBatch("There is no record batch.")
    if len(batches) > 1 and any(header[PRODUCER_ID] >= 0 for _, header in batches):
        # Kafka allows one batch for each partition of a request; of several batches, only some might be duplicates.
        raise InvalidBatch("An idempotent producer must send one record batch at a time.")
    return batches


def check(header: Header, config: LogConfig, now_ms: int) -> None:
    """Raises Refusal if the batch must not be appended."""
    size = LOG_OVERHEAD + header[LENGTH]
    attributes, count = header[ATTRIBUTES], header[RECORD_COUNT]
    if size > config.max_message_bytes:
        raise BatchTooLarge(
            f"A record batch of {size} bytes is larger than max.message.bytes, {config.max_message_bytes}.",
        )
    if count <= 0 or header[LAST_DELTA] != count - 1:
        raise InvalidBatch(
            f"A record batch says that it has {count} records and {header[LAST_DELTA] + 1} offsets.",
        )
    if count > most_records(attributes & COMPRESSION_MASK, size - HEADER_SIZE):
        raise InvalidBatch(f"A record batch of {size} bytes cannot hold {count} records.")
    if attributes & (CONTROL | DELETE_HORIZON):
        raise InvalidBatch("Clients are not allowed to write control batches.")
    if attributes & ENTRY:
        raise InvalidBatch("A record batch has an attribute (bit 7) that only this broker may set.")
    if attributes & TRANSACTIONAL and header[PRODUCER_ID] < 0:
        raise InvalidBatch("A batch of a transaction needs a producer id.")
    if header[PRODUCER_ID] >= 0 and (header[BASE_SEQUENCE] < 0 or header[PRODUCER_EPOCH] < 0):
        raise InvalidBatch("A producer id needs an epoch and a sequence number.")
    if attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("A producer must not set the timestamp type to LogAppendTime.")
    if not config.log_append_time:
        for timestamp in (header[BASE_TIMESTAMP], header[MAX_TIMESTAMP]):
            if timestamp == NO_TIMESTAMP:
                continue
            if (
                not -config.message_timestamp_before_max_ms
                <= timestamp - now_ms
                <= config.message_timestamp_after_max_ms
            ):
                raise InvalidTimestamp(
                    f"Timestamp {timestamp} is out of range: the broker's clock says {now_ms} and the topic allows "
                    f"{config.message_timestamp_before_max_ms} ms before and {config.message_timestamp_after_max_ms} ms after.",
                )


def _untimely(header: BatchHeader, body: memoryview, config: LogConfig, now_ms: int) -> list[int]:
    """The numbers of the first records whose timestamp the topic does not allow. Compressed ones are not looked at."""
    earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    numbers = []
    try:
        for number, (delta, _, _, _) in enumerate(walk_records(body, header.record_count)):
            if not earliest <= header.base_timestamp + delta <= latest:
                numbers.append(number)
                if len(numbers) == MOST_NAMED:
                    break
    except (ProtocolError, IndexError):
        return []
    return numbers


def most_records(codec: int, size: int) -> int:
    """How many records ``size`` bytes can hold, given the best ratio of the codec; 0 for a codec that does not exist."""
    if codec > LARGEST_CODEC:
        return 0
    plain = size // SMALLEST_RECORD
    return max(plain, min(inspection.MOST_RECORDS, plain * LARGEST_RATIO.get(codec, 1)))


def prepare(
    view: memoryview, batches: list[tuple[int, Header]], config: LogConfig, now_ms: int, large: Lock
) -> tuple[memoryview, list[tuple[int, Header]]]:
    """The batches as this topic stores them: with its codec and LogAppendTime. Their offsets are written later.

    Raises InvalidBatch for a record without a key in a compacted topic, and for records that cannot be read.
    """
    codec = config.compression_codec
    recode = codec is not None and any(header[ATTRIBUTES] & COMPRESSION_MASK != codec for _, header in batches)
    if config.compact or recode or config.record_validation == "full":
        out = bytearray()
        for position, header in batches:
            batch = view[position : position + LOG_OVERHEAD + header[LENGTH]]
            out += _look_inside(batch, config, codec if recode else None, large)
        view = memoryview(out)
        batches = split(view)
        for _, header in batches:
            if LOG_OVERHEAD + header[LENGTH] > config.max_message_bytes:
                raise BatchTooLarge("A record batch is larger than max.message.bytes as it is kept.")
    if config.log_append_time:
        for position, _ in batches:
            set_log_append_time(view, position, read_header(view, position), now_ms)
        batches = [(position, read_header(view, position)) for position, _ in batches]
    return view, batches


def _look_inside(batch: memoryview, config: LogConfig, codec: int | None, large: Lock) -> memoryview | bytearray:
    header = read_header(batch)

    def look(data: bytes) -> tuple[list[int], memoryview | bytearray]:
        keyless = check_records(data, header.record_count, MOST_NAMED if config.compact else 0)
        if keyless or codec is None or header.compression == codec:
            return keyless, batch
        level = {
            1: config.compression_gzip_level,
            3: config.compression_lz4_level,
            4: config.compression_zstd_level,
        }.get(codec)
        return keyless, recoded(batch, 0, header, codec, compress(codec, data, level) if codec else data)

    try:
        keyless, kept = inspection.inspect(batch, header, config, large, look)
    except ProtocolError as error:
        raise InvalidBatch(f"The records of a batch cannot be read: {error}") from error
    if keyless:
        raise KeylessRecords(keyless)
    return kept
