"""Publishing: checks the messages of SENDs, appends them to the log as entries, and queues the receipts of their producers.

A call handles all SENDs of a receive. Those to the same topic share an append, a wake-up of waiting consumers, a wait for the
flusher and, as a rule, a push of receipts. It runs on the connection's processor, or on a handler while the disk is slow. The
thread that syncs the log sends the receipts.

Only ``ChecksumError`` and ``NotAllowedError`` concern a single message. After any other error the broker ignores further SENDs of
that producer, and the client connects it again, so that the messages that it sends again keep their order.

Tests: tests/pulsar/producers/test_publishing.py.
"""

import struct
from functools import partial
from typing import NamedTuple

from broker.errors import Refusal, StorageError
from broker.network.work import BULK, VALIDATION
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.rate_limit import DispatchRate
from broker.pulsar.entry import Entry, from_metadata
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.producers.deduplication import counts, highest_sequence_id
from broker.pulsar.producers.producer import Owed, Producer, duplicate, send_error
from broker.pulsar.refusals import AuthorizationError, ChecksumMismatch, MetadataInvalid, NotAllowed, TopicTerminated
from broker.pulsar.rights import may_produce
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.storage.refusals import BatchesTooLarge
from protocol.errors import ProtocolError
from protocol.kafka.records.entry import ENTRY_END, entry_head
from protocol.pulsar.metadata import (
    MAX_METADATA_SIZE,
    check_batch,
    is_batch,
    is_encrypted,
    publish_time_ms,
    read_metadata,
)
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import Send, UsualSend, crc_matches, read_send

# How long (s) handlers make the appends after a slow append: the disk is busy writing back.
SLOW_FOR_S = 1.0

_new = tuple.__new__
_length = struct.Struct(">I").unpack_from


class _Accepted(NamedTuple):
    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    messages: int
    batched: bool
    metadata: MessageMetadata | None  # None: it has nothing that the broker uses
    head: bytes  # of its record batch
    value: memoryview  # of the received bytes


class _Run:
    """The messages of a receive for the same topic, in order."""

    __slots__ = ("accepted", "encrypted", "highest", "refusal", "segment_bytes", "size", "topic", "usual")

    def __init__(self, topic: AnyTopic, refusal: Refusal | None = None, *, encrypted: bool = False) -> None:
        self.topic = topic
        self.segment_bytes = topic.entry_bytes_max
        self.refusal = refusal  # of all messages for this topic
        self.encrypted = encrypted  # whether messages must be encrypted
        # Whether usual SENDs may take the short path of ``_accept_usual``, which does not check the two above.
        self.usual = not encrypted and refusal is None
        self.accepted: list[_Accepted] = []
        self.size = 0  # bytes of the record batches of ``accepted``
        # With deduplication: the highest sequence id of each producer in this run, by name.
        self.highest: dict[str, int] = {}


def publish(context: PulsarContext, state: PulsarConnection, frames: memoryview) -> None:
    """``frames``: one or more SEND frames. Raises ProtocolError; then some of them may have been published."""
    runs: dict[int, _Run] = {}
    position, end = 0, len(frames)
    try:
        while position < end:
            size = _length(frames, position)[0] + 4
            start, position = position, position + size
            producer = state.producers.get(_producer_id(frames, start))
            if producer is not None and producer.ready and not producer.closed:
                run = runs.get(id(producer.topic)) or _begin_run(context, state, producer.topic, runs)
                usual = producer.usual.read(frames, start, position) if run.usual else None
                if usual is not None:
                    _accept_usual(context, state, run, producer, usual, frames)
                    continue
            frame = frames[start:position] if size != end else frames
            send = read_send(frame)
            producer = state.producers.get(send.producer_id)
            if producer is None or not producer.ready or producer.closed:
                state.check_was_producer(send.producer_id)
                continue  # sent before the client could know that the producer is closed
            run = runs.get(id(producer.topic)) or _begin_run(context, state, producer.topic, runs)
            _accept(context, state, run, producer, send, frame)
    finally:
        for run in runs.values():
            if run.accepted:
                _append(context, state, run)


def _begin_run(context: PulsarContext, state: PulsarConnection, topic: AnyTopic, runs: dict[int, _Run]) -> _Run:
    encrypted = context.policies.of(topic.name.namespace, topic.topic_id).encryption_required
    run = runs[id(topic)] = _Run(topic, _refusal(context, state, topic), encrypted=bool(encrypted))
    return run


def _producer_id(frames: memoryview, start: int) -> int:
    """The producer id of the SEND at ``start`` if it is encoded as clients do, else any number; ``UsualSends`` checks it."""
    start += 13
    if start + 1 >= len(frames):
        return -1
    low = frames[start]
    return low if low <= 0x7F else low & 0x7F | frames[start + 1] << 7


def lane_while_stuck(state: PulsarConnection | None, frames: memoryview) -> str | None:
    """The lane of SENDs while an append does not return, so that most handlers are kept for other commands: one for those to that
    log, by the first of them, and one for those to others, which may be on the same disk. None: they need no disk."""
    producer = None if state is None else state.producers.get(_producer_id(frames, 0))
    if producer is None or not isinstance(producer.topic, Topic):
        return None
    return BULK if producer.topic.log.is_stuck else VALIDATION


def _refusal(context: PulsarContext, state: PulsarConnection, topic: AnyTopic) -> Refusal | None:
    if topic.terminated:
        return TopicTerminated("Topic has been terminated")
    if context.authorizer is not None and not may_produce(context, state.connection, topic):
        return AuthorizationError("Not authorized to produce to the topic any more")
    return None


def _accept_usual(
    context: PulsarContext,
    state: PulsarConnection,
    run: _Run,
    producer: Producer,
    send: UsualSend,
    frames: memoryview,
) -> None:
    """As ``_accept``, for a SEND that ``UsualSends`` has checked."""
    sequence_id, highest, messages, batched, publish_ms, start, end = send
    if run.topic.deduplication is not None and _is_duplicate(run, producer.name, sequence_id, highest):
        _owe_duplicate(context, state, run, producer, sequence_id, highest)
        return
    value = frames[start:end]
    head = entry_head(value, messages, publish_ms)
    size = len(head) + end - start + 1  # ENTRY_END
    if run.size + size > run.segment_bytes:
        if size > run.segment_bytes:
            _refuse(context, state, run, producer, sequence_id, _too_large(run, size))
            return
        _append_and_clear(context, state, run)  # an append must fit a segment
    run.accepted.append(_new(_Accepted, (producer, sequence_id, highest, messages, batched, None, head, value)))
    run.size += size


def _accept(
    context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, send: Send, frame: memoryview
) -> None:
    """Check one SEND and put it into the run."""
    try:
        if not crc_matches(frame, send):
            raise ChecksumMismatch("Checksum failed on the broker")
        if run.refusal is not None:
            raise run.refusal
        try:
            metadata = read_metadata(frame[send.metadata : send.payload])
            messages = check_batch(metadata, send.end - send.payload, context.config.pulsar_max_message_bytes)
        except ProtocolError as error:
            if send.payload - send.metadata > MAX_METADATA_SIZE:
                raise NotAllowed(str(error)) from error  # this concerns the single message
            raise MetadataInvalid(str(error)) from error
        if run.encrypted and not is_encrypted(metadata):
            raise MetadataInvalid("Messages must be encrypted")
    except Refusal as refusal:
        _refuse(context, state, run, producer, send.sequence_id, refusal)
        return
    producer.usual.learn(send, frame, metadata)
    sequence_id, highest = send.sequence_id, send.highest_sequence_id
    if (
        run.topic.deduplication is not None
        and counts(metadata)
        and _is_duplicate(run, producer.name, sequence_id, highest)
    ):
        _owe_duplicate(context, state, run, producer, sequence_id, highest)
        return
    value = frame[send.start : send.end]
    head = entry_head(value, messages, publish_time_ms(metadata))
    size = len(head) + len(value) + len(ENTRY_END)
    if size > run.segment_bytes:
        _refuse(context, state, run, producer, sequence_id, _too_large(run, size))
        return
    if run.size + size > run.segment_bytes:  # an append must fit a segment
        _append_and_clear(context, state, run)
    batched = is_batch(metadata)
    run.accepted.append(_new(_Accepted, (producer, sequence_id, highest, messages, batched, metadata, head, value)))
    run.size += size


def _too_large(run: _Run, size: int) -> NotAllowed:
    return NotAllowed(f"{size} bytes do not fit a segment of the topic, which has {run.segment_bytes}")


def _append_and_clear(context: PulsarContext, state: PulsarConnection, run: _Run) -> None:
    """Append the messages of the run so far; others of the same receive follow."""
    if run.accepted:
        _append(context, state, run)
        run.accepted, run.size = [], 0


def _refuse(
    context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, sequence_id: int, error: Refusal
) -> None:
    """Answer one SEND with an error, after the receipts of those before it."""
    _append_and_clear(context, state, run)
    if not isinstance(error, ChecksumMismatch | NotAllowed):
        producer.closed = True
    owe_error(state, producer, sequence_id, error)


def _is_duplicate(run: _Run, name: str, sequence_id: int, highest: int) -> bool:
    """Whether the producer of this name has sent the message before. With deduplication only."""
    assert run.topic.deduplication is not None
    first = highest_sequence_id(sequence_id, sequence_id)
    if first <= max(run.topic.deduplication.last(name), run.highest.get(name, -1)):
        return True
    run.highest[name] = highest_sequence_id(sequence_id, highest)
    return False


def _owe_duplicate(
    context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, sequence_id: int, highest: int
) -> None:
    """Owe a receipt without an id for a message that is already in the log. It leaves when all present records of the log are
    durable, and after the receipts before it."""
    _append_and_clear(context, state, run)
    topic = run.topic
    assert isinstance(topic, Topic)  # non-persistent topics have no deduplication
    log = topic.log
    end = log.log_end_offset
    state.owe(1)
    producer.owe(duplicate(sequence_id, highest, end))
    context.flusher.wait_durable(log, end, partial(_durable, [producer]))


def owe_error(state: PulsarConnection, producer: Producer, sequence_id: int, error: Refusal | StorageError) -> None:
    """Answer one SEND with an error, after the receipts of those before it."""
    state.owe(1)
    # The error waits only for its turn.
    producer.owe(Owed(0, [(sequence_id, 0, 0)], send_error(producer.id, sequence_id, error)))
    producer.pay()


def _append(context: PulsarContext, state: PulsarConnection, run: _Run) -> None:
    topic, accepted = run.topic, run.accepted
    if topic.closed:
        return  # its producers are being told
    if isinstance(topic, NonPersistentTopic):
        _pass_on(context, state, topic, accepted)
        return
    assert isinstance(topic, Topic)
    try:
        _append_together(context, state, topic, accepted)
    except BatchesTooLarge as error:
        if len(accepted) == 1:
            _fail(context, state, topic, accepted, error)
            return
        # Together they do not fit a segment, so append each by itself.
        for message in accepted:
            if not message.producer.closed:
                alone = _Run(topic)
                alone.accepted = [message]
                _append(context, state, alone)
    except (Refusal, StorageError) as error:
        _fail(context, state, topic, accepted, error)


def _count(context: PulsarContext, state: PulsarConnection, rate: DispatchRate, accepted: list[_Accepted]) -> None:
    """Count these for the topic's publish rate. Messages above the rate are accepted, but then the connection has to wait."""
    now = context.clock.monotonic()
    rate.consumed(sum(message.messages for message in accepted), sum(len(message.value) for message in accepted), now)
    state.publish_wait_s = max(state.publish_wait_s, rate.wait_s(now))


def _pass_on(
    context: PulsarContext, state: PulsarConnection, topic: NonPersistentTopic, accepted: list[_Accepted]
) -> None:
    """Pass the messages of a non-persistent topic to connected consumers, and send the receipts at once."""
    values = memoryview(bytearray().join([message.value for message in accepted]))  # the received bytes may be moved
    entry = topic.take_ids(len(accepted))
    entries: list[Entry] = []
    owed: dict[Producer, list[tuple[int, int, int]]] = {}
    position = 0
    for producer, sequence_id, highest, messages, batched, metadata, _, value in accepted:
        size = len(value)
        data = values[position : position + size]
        if metadata is None:
            entries.append(Entry(entry, messages, size, data, None, 0, None, False, batched))
        else:
            entries.append(from_metadata(entry, messages, data, size, metadata))
        owed.setdefault(producer, []).append((sequence_id, entry, highest))
        producer.messages_in += messages
        producer.bytes_in += size
        position += size
        entry += 1
    topic.publish(entries)
    if topic.publish_rate.limited:
        _count(context, state, topic.publish_rate, accepted)
    state.owe(len(accepted))
    for producer, receipts in owed.items():
        producer.owe(Owed(0, receipts))
        producer.pay()


def _append_together(context: PulsarContext, state: PulsarConnection, topic: Topic, accepted: list[_Accepted]) -> None:
    """Raises a Refusal or StorageError; none of the messages is in the log then."""
    records = memoryview(
        bytearray().join([part for message in accepted for part in (message[-2], message[-1], ENTRY_END)])
    )
    log, tail, deduplication = topic.log, topic.tail, topic.deduplication
    token = 0 if deduplication is None else deduplication.begin()
    appended: list[tuple[str, int]] = []
    owed: dict[Producer, list[tuple[int, int, int]]] = {}
    last: Producer | None = None  # nearly always, all messages of a run are from the same producer
    receipts: list[tuple[int, int, int]] = []
    tail.begin_append()
    try:
        offset = log.append(records, now_ms=context.clock.time_ms(), entries=True).base_offset
        entries: list[Entry] = []
        read = bool(topic.subscriptions)  # without subscriptions, entries need not be cached
        position = 0
        for producer, sequence_id, highest, messages, batched, metadata, head, value in accepted:
            start = position + len(head)
            size = len(value)
            end = start + size
            position = end + len(ENTRY_END)
            if read:
                data = records[start:end]
                if metadata is None:
                    entries.append(Entry(offset, messages, size, data, None, 0, None, False, batched))
                else:
                    entries.append(from_metadata(offset, messages, data, size, metadata))
            entry = offset
            offset += messages
            if producer is not last:
                last = producer
                receipts = owed.setdefault(producer, [])
            receipts.append((sequence_id, entry, highest))
            producer.messages_in += messages
            producer.bytes_in += size
            if deduplication is not None and (metadata is None or counts(metadata)):
                appended.append((producer.name, highest_sequence_id(sequence_id, highest)))
        if read:
            topic.reader.appended(entries)
    finally:
        if deduplication is not None and deduplication.end(token, appended):
            context.deduplications.save(topic)
        tail.end_append()
    if log.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + SLOW_FOR_S
    if topic.publish_rate.limited:
        _count(context, state, topic.publish_rate, accepted)
    state.owe(len(accepted))
    for producer, receipts in owed.items():
        producer.owe(Owed(offset, receipts))
    context.flusher.wait_durable(log, offset, partial(_durable, list(owed)))


def _durable(producers: list[Producer], error: StorageError | None) -> None:
    """Runs on the thread that synced the log, or at once on the caller's."""
    for producer in producers:
        producer.pay()
        if error is not None:
            producer.fail(error)


def _fail(
    context: PulsarContext,
    state: PulsarConnection,
    topic: Topic,
    accepted: list[_Accepted],
    error: Refusal | StorageError,
) -> None:
    """Owe an error to each producer of these messages. None of the messages is in the log."""
    if isinstance(error, StorageError):
        context.complain("append_failed", topic.log.topic, topic.log.partition, error)
    failed: set[int] = set()
    for producer, sequence_id, *_ in accepted:
        if producer.id in failed:
            continue
        failed.add(producer.id)
        if not isinstance(error, BatchesTooLarge):
            producer.closed = True
        owe_error(state, producer, sequence_id, error)
