"""Handles runs (see ``run_finder.py``): one write for each log, one fsync with ``acks=all``, one answer with all responses.

On the connection's processor. What is not the usual case is appended batch by batch, as if it had come alone.

Tests: tests/kafka/producing/test_runs.py.
"""

from collections.abc import Sequence
from typing import Any

from broker.errors import StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import NO_NAMES, denied, denied_ids
from broker.kafka.context import KafkaContext
from broker.kafka.producing.appending import SLOW_FOR_S, append, partitions_of
from broker.kafka.producing.awaited_flush import AwaitedFlush, Failed, Written
from broker.kafka.producing.run_finder import RUN_BYTES_MAX, RunRequest
from broker.network.service import Outbox
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce
from protocol.kafka.messages.produce_runs import FIRST_VERSION, LAST_VERSION

_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    assert isinstance(request, RunRequest)
    run, request.run = request.run, ()
    acks = run[0].template.acks
    # Several templates may be of one partition, for example with other timeouts.
    by_partition: dict[tuple[Any, int], list[int]] = {}
    for index, one in enumerate(run):
        by_partition.setdefault((one.template.topic, one.template.partition), []).append(index)
    refused = _refused(context, request, [topic for topic, _ in by_partition])
    partitions = partitions_of(context, request)
    answers: list[bytes] = [b""] * len(run)
    written: list[Written] = []

    # While the request waits for an fsync, it keeps no view of its records: their memory is used again.
    correlation_ids = [one.correlation_id for one in run]

    def answer(index: int, result: produce.PartitionResult) -> None:
        if result.error:
            context.errors.add(RUN_API.label, result.error)
        answers[index] = produce.response(correlation_ids[index], request.api_version, [result], 0)

    def send(failed: Failed) -> None:
        for index, result in failed.items():
            answer(index, result)
        outbox.send(request, [b"".join(answers)])

    for (topic, partition), indexes in by_partition.items():
        if topic in refused:
            for index in indexes:
                answer(index, produce.PartitionResult(topic, partition, ErrorCode.topic_authorization_failed))
            continue
        log = partitions.get((topic, partition))
        stored = 0
        if log is not None and (acks == 1 or log.config.min_insync_replicas <= 1):
            records = [run[index].records for index in indexes]
            try:
                base_offsets, start_offset = log.append_run(records, now_ms=context.clock.time_ms())
            except StorageError as error:
                context.complain("append_failed", log.topic, partition, error)
                failed = produce.PartitionResult(
                    topic, partition, ErrorCode.kafka_storage_error, -1, -1, -1, str(error)
                )
                for index in indexes:
                    answer(index, failed)
                continue
            success = request.answers(run[indexes[0]].template)
            for index, base_offset in zip(indexes, base_offsets, strict=False):
                answers[index] = success(correlation_ids[index], base_offset, start_offset)
            stored = len(base_offsets)
            if log.state.slow_until > context.appends_slow_until:
                context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
        succeeded = {} if log is None or not stored else {log: indexes[:stored]}
        for index in indexes[stored:]:
            result, appended_to = append(context, request, topic, partition, run[index].records, acks, None)
            answer(index, result)
            if appended_to is not None:  # another log than before if the topic was made again meanwhile
                succeeded.setdefault(appended_to, []).append(index)
        written += [Written(those, topic, appended_to) for appended_to, those in succeeded.items()]
    if acks == -1 and written:
        AwaitedFlush(context, request, send).begin(written, min(one.template.timeout_ms for one in run))
    else:
        send({})


def _refused(context: KafkaContext, request: RunRequest, topics: Sequence[str | bytes]) -> frozenset[str | bytes]:
    """The topics to which the client may not write."""
    if context.authorizer is None:
        return NO_NAMES
    ids = [topic for topic in topics if isinstance(topic, bytes)]
    names = [topic for topic in topics if isinstance(topic, str)]
    connection = request.connection
    return frozenset(
        (*denied_ids(context, connection, _WRITE, ids), *denied(context, connection, _WRITE, _TOPIC, names))
    )


RUN_API = Api(
    key=ApiKey.PRODUCE,
    min_version=FIRST_VERSION,
    max_version=LAST_VERSION,
    handle_raw=_handle,
    inline=True,
    inline_max_bytes=RUN_BYTES_MAX,
    sized_by_bytes=False,
)
