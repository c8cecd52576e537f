"""ListOffsets (2): where a partition begins and ends, and the first offset at or after a time.

Not inline: a look-up by time may read an old segment from the disk, and decompress clients' batches. Such requests have a lane;
consumers that only ask where a partition begins and ends do not wait for them.

With an object store a log has two tiers: -4 asks for the first offset on the local disk, -5 for the last in the store, -6 for the
first that is not there yet. A look-up by time that reads from the store waits for it, in its lane; the timeout that clients send
for that from version 10 on has no effect.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.checks import check_leader_epoch, error_fields, online_log, repeated
from broker.kafka.context import KafkaContext
from broker.network.work import INSPECTION
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# The special values of a timestamp, and the version that introduced each.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
UNKNOWN = -1
READ_COMMITTED = 1
# How long (s) the look-ups of one request go on while others wait. A single look-up may have to open 64 MiB of records.
_TURN_S = 0.1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    """For a client that reads committed records only (from version 2 on), a partition ends at the last stable offset."""
    topics = call.body.topics
    asked = [(topic.name, wanted) for topic in topics for wanted in topic.partitions]
    opens = any(_opens(wanted.timestamp) for _, wanted in asked)
    if opens and not call.is_in(INSPECTION):
        call.continue_in(INSPECTION)
        return None
    if call.progress is None:
        call.progress = []
    answers: list[dict[str, Any]] = call.progress
    committed = getattr(call.body, "isolation_level", 0) == READ_COMMITTED
    twice = repeated((topic, wanted.partition_index) for topic, wanted in asked)
    unauthorized = denied(
        context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, (topic.name for topic in topics)
    )
    turn_ends = context.clock.monotonic() + _TURN_S
    for topic, wanted in asked[len(answers) :]:
        if topic in unauthorized:
            answers.append(_error(wanted, ErrorCode.topic_authorization_failed))
            continue
        call.work.checkpoint()  # a look-up by time reads from the disk
        is_twice = (topic, wanted.partition_index) in twice
        answers.append(_answer(context, call.api_version, topic, wanted, committed, is_twice))
        if opens and len(answers) < len(asked) and context.clock.monotonic() >= turn_ends:
            call.continue_in(INSPECTION)
            return None
    left = iter(answers)
    return {
        "topics": [{"name": topic.name, "partitions": list(islice(left, len(topic.partitions)))} for topic in topics]
    }


def _opens(timestamp: int) -> bool:
    """Whether batches may have to be decompressed for this answer."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _answer(
    context: KafkaContext, version: int, topic: str, wanted: Any, committed: bool, twice: bool
) -> dict[str, Any]:
    answer = {"partition_index": wanted.partition_index, "error_code": ErrorCode.none}
    try:
        if twice:
            raise RequestError(ErrorCode.invalid_request, "Name each partition only once in a request.")
        since = SINCE_VERSION.get(wanted.timestamp)
        if wanted.timestamp < 0 and (since is None or version < since):
            raise RequestError(ErrorCode.unsupported_version, f"{wanted.timestamp} means nothing in version {version}.")
        log = online_log(context, topic, wanted.partition_index)
        check_leader_epoch(log, getattr(wanted, "current_leader_epoch", UNKNOWN))  # from version 4 on
        if wanted.timestamp == LATEST:
            position = (log.last_stable_offset if committed else log.high_watermark, UNKNOWN)
        elif wanted.timestamp == EARLIEST:
            position = (log.log_start_offset, UNKNOWN)
        elif wanted.timestamp in (EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            position = (_of_tier(log, wanted.timestamp), UNKNOWN)
        elif wanted.timestamp == MAX_TIMESTAMP:
            position = log.times.max_timestamp_offset() or (UNKNOWN, UNKNOWN)
        else:
            position = log.times.offset_for_timestamp(wanted.timestamp) or (UNKNOWN, UNKNOWN)
        offset, timestamp = position
        if (
            committed
            and wanted.timestamp not in (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED)
            and offset >= log.last_stable_offset
        ):
            offset = timestamp = UNKNOWN
        answer |= {
            "offset": offset,
            "timestamp": timestamp,
            "leader_epoch": log.leader_epoch if offset >= 0 else UNKNOWN,
        }
    except (Refusal, StorageError) as error:
        return _error(wanted, error_fields(error)[0])
    return answer


def _of_tier(log: Log, asked: int) -> int:
    """As Kafka's UnifiedLog.fetchOffsetByTimestamp."""
    tier = log.around.tier
    if asked == EARLIEST_LOCAL:
        return log.log_start_offset if tier is None else tier.earliest_local(log)
    if tier is None or not log.config.remote_storage_enable:
        return UNKNOWN
    latest = tier.latest_tiered(log)
    if asked == LATEST_TIERED:
        return UNKNOWN if latest is None else latest
    return log.log_start_offset if latest is None else max(log.log_start_offset, latest + 1)


def _error(wanted: Any, code: int) -> dict[str, Any]:
    return {
        "partition_index": wanted.partition_index,
        "error_code": code,
        "offset": UNKNOWN,
        "timestamp": UNKNOWN,
        "leader_epoch": UNKNOWN,
    }


API = Api(key=ApiKey.LIST_OFFSETS, min_version=1, max_version=11, handle=handle)
