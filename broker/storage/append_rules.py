"""What a batch must be like to be appended, and the few cases in which the broker changes it first.

Pure functions on the bytes of a request. The rules and their error codes are those of Kafka's LogValidator, except that the
records of a batch are not looked at one by one: the producer's checksum stands for them. They are looked at only where the
topic asks for another codec than the batch has, or is compacted, so that every record needs a key.
"""

from broker.errors import RequestError
from broker.storage.log_config import LogConfig
from broker.storage.segment import (
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
from protocol.checksum import crc32c
from protocol.errors import ProtocolError
from protocol.kafka.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    UnsupportedMagic,
    read_header,
    set_log_append_time,
)
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records import Record, build_batch, records

# One byte each of length, attributes, timestamp, offset, key length, value length and number of headers.
SMALLEST_RECORD = 7
LARGEST_CODEC = 4
# Attributes that a batch with nothing special about it does not have.
SPECIAL = LOG_APPEND_TIME | CONTROL | DELETE_HORIZON


def examine(view: memoryview, config: LogConfig, now_ms: int) -> tuple[memoryview, list[tuple[int, Header]]]:
    """The batches of a request as they are to be kept, with position and header of each. Raises RequestError."""
    found = split(view)
    for _, header in found:
        check(header, config, now_ms)
    return prepare(view, found, config, now_ms)


def split(view: memoryview) -> list[tuple[int, Header]]:
    """Position and header of each batch of a request, checksums verified.

    Raises RequestError (corrupt_message, invalid_record).
    """
    found: list[tuple[int, Header]] = []
    position = 0
    try:
        while position < len(view):
            header = read_header(view, position)
            end = position + LOG_OVERHEAD + header[LENGTH]
            if crc32c(view[position + CRC_START : end]) != header[CRC]:
                raise RequestError(ErrorCode.corrupt_message, "A record batch does not match its checksum.")
            found.append((position, header))
            position = end
    except UnsupportedMagic as error:
        raise RequestError(ErrorCode.invalid_record, str(error)) from error
    except ProtocolError as error:
        raise RequestError(ErrorCode.corrupt_message, str(error)) from error
    if not found:
        raise RequestError(ErrorCode.invalid_record, "There is no record batch.")
    if len(found) > 1 and any(header[PRODUCER_ID] >= 0 for _, header in found):
        # Kafka allows one batch a partition and request; with sequence numbers more could be half a duplicate.
        raise RequestError(ErrorCode.invalid_record, "An idempotent producer must send one record batch at a time.")
    return found


def check(header: Header, config: LogConfig, now_ms: int) -> None:
    """Raises RequestError if the batch must not be appended."""
    size = LOG_OVERHEAD + header[LENGTH]
    attributes, count = header[ATTRIBUTES], header[RECORD_COUNT]
    if size > config.max_message_bytes:
        raise RequestError(
            ErrorCode.message_too_large,
            f"A record batch of {size} bytes is larger than max.message.bytes, {config.max_message_bytes}.",
        )
    if count <= 0 or header[LAST_DELTA] != count - 1:
        raise RequestError(
            ErrorCode.invalid_record,
            f"A record batch says that it has {count} records and {header[LAST_DELTA] + 1} offsets.",
        )
    codec = attributes & COMPRESSION_MASK
    if codec > LARGEST_CODEC or (codec == 0 and count * SMALLEST_RECORD > size - HEADER_SIZE):
        raise RequestError(ErrorCode.invalid_record, f"A record batch of {size} bytes cannot hold {count} records.")
    if attributes & (CONTROL | DELETE_HORIZON):
        raise RequestError(ErrorCode.invalid_record, "Clients are not allowed to write control batches.")
    if attributes & TRANSACTIONAL and header[PRODUCER_ID] < 0:
        raise RequestError(ErrorCode.invalid_record, "A batch of a transaction needs a producer id.")
    if header[PRODUCER_ID] >= 0 and (header[BASE_SEQUENCE] < 0 or header[PRODUCER_EPOCH] < 0):
        raise RequestError(ErrorCode.invalid_record, "A producer id needs an epoch and a sequence number.")
    if attributes & LOG_APPEND_TIME:
        raise RequestError(ErrorCode.invalid_timestamp, "A producer must not set the timestamp type to LogAppendTime.")
    if not config.log_append_time:
        for timestamp in (header[BASE_TIMESTAMP], header[MAX_TIMESTAMP]):
            if timestamp == NO_TIMESTAMP:
                continue
            if (
                not -config.message_timestamp_before_max_ms
                <= timestamp - now_ms
                <= config.message_timestamp_after_max_ms
            ):
                raise RequestError(
                    ErrorCode.invalid_timestamp,
                    f"Timestamp {timestamp} is out of range: the broker's clock says {now_ms} and the topic allows "
                    f"{config.message_timestamp_before_max_ms} ms before and {config.message_timestamp_after_max_ms} ms after.",
                )


def prepare(
    view: memoryview, found: list[tuple[int, Header]], config: LogConfig, now_ms: int
) -> tuple[memoryview, list[tuple[int, Header]]]:
    """The batches as this topic keeps them: another codec, LogAppendTime. Offsets are not in them yet.

    Raises RequestError (invalid_record) for a record without a key in a compacted topic, and for records that cannot be read.
    """
    codec = config.compression_codec
    recode = codec is not None and any(header[ATTRIBUTES] & COMPRESSION_MASK != codec for _, header in found)
    if config.compact or recode:
        out = bytearray()
        for position, header in found:
            batch = view[position : position + LOG_OVERHEAD + header[LENGTH]]
            out += _look_inside(batch, header, config, codec if recode else None)
        view = memoryview(out)
        found = split(view)
        for _, header in found:
            if LOG_OVERHEAD + header[LENGTH] > config.max_message_bytes:
                raise RequestError(
                    ErrorCode.message_too_large, "A record batch is larger than max.message.bytes as it is kept."
                )
    if config.log_append_time:
        for position, _ in found:
            set_log_append_time(view, position, read_header(view, position), now_ms)
        found = [(position, read_header(view, position)) for position, _ in found]
    return view, found


def _look_inside(batch: memoryview, header: Header, config: LogConfig, codec: int | None) -> memoryview | bytearray:
    try:
        inside: list[Record] = list(records(batch))
    except ProtocolError as error:
        raise RequestError(ErrorCode.invalid_record, f"The records of a batch cannot be read: {error}") from error
    if config.compact and any(record.key is None for record in inside):
        raise RequestError(ErrorCode.invalid_record, "A compacted topic does not accept records without a key.")
    if codec is None or header[ATTRIBUTES] & COMPRESSION_MASK == codec:
        return batch
    level = {1: config.compression_gzip_level, 3: config.compression_lz4_level, 4: config.compression_zstd_level}.get(
        codec
    )
    return build_batch(
        [(record.key, record.value, record.headers, record.timestamp) for record in inside],
        compression=codec,
        producer_id=header[PRODUCER_ID],
        producer_epoch=header[PRODUCER_EPOCH],
        base_sequence=header[BASE_SEQUENCE],
        attributes=header[ATTRIBUTES] & TRANSACTIONAL,
        level=level,
    )
