"""From SENDs to the log: each message is checked and becomes an entry, and its receipt is put in its producer's queue.

All SENDs that came with one receive are one call. Those to one topic become one append, one look at the consumers who wait, one
wait for the flusher, and as a rule one push of receipts. It runs on the connection's processor, or on a handler while the disk
is slow. The thread that has synced the log sends the receipts.

Of the errors only ``ChecksumError`` and ``NotAllowedError`` are a message's own. After any other the client begins anew:
nothing more of that producer is taken, so that what it sends again keeps its order.

Tests: tests/pulsar/producers/test_publishing.py.
"""

import struct
from functools import partial
from typing import NamedTuple

from broker.errors import Refusal, StorageError
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

# How long (s) appends go to the handlers after a slow one: the disk is busy writing back.
_SLOW_FOR_S = 1.0

_new = tuple.__new__
_length = struct.Struct(">I").unpack_from


class _Accepted(NamedTuple):
    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    messages: int
    batched: bool
    metadata: MessageMetadata | None  # None: there is nothing in it that the broker looks at
    head: bytes  # of its record batch
    value: memoryview  # in what was received


class _Run:
    """What one receive has brought for one topic, in order."""

    __slots__ = ("accepted", "encrypted", "highest", "refusal", "segment_bytes", "size", "topic", "usual")

    def __init__(self, topic: AnyTopic, refusal: Refusal | None = None, *, encrypted: bool = False) -> None:
        self.topic = topic
        self.segment_bytes = topic.entry_bytes_max
        self.refusal = refusal  # of everything that is for this topic
        self.encrypted = encrypted  # whether it has to be
        # Nothing has to be asked of a message that is as most are.
        self.usual = not encrypted and refusal is None
        self.accepted: list[_Accepted] = []
        self.size = 0  # of the record batches that these become
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
                continue  # sent before the client could know that it is closed
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
    """That of the SEND at ``start``, if it is one as clients write them; else any. ``UsualSends`` looks at all the bytes."""
    start += 13
    if start + 1 >= len(frames):
        return -1
    low = frames[start]
    return low if low <= 0x7F else low & 0x7F | frames[start + 1] << 7


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
    """The same for a SEND that has been checked."""
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
        _append_and_clear(context, state, run)  # together they must fit one
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
                raise NotAllowed(str(error)) from error  # this message's own fault
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
    if run.size + size > run.segment_bytes:  # together they must fit one
        _append_and_clear(context, state, run)
    batched = is_batch(metadata)
    run.accepted.append(_new(_Accepted, (producer, sequence_id, highest, messages, batched, metadata, head, value)))
    run.size += size


def _too_large(run: _Run, size: int) -> NotAllowed:
    return NotAllowed(f"{size} bytes do not fit a segment of the topic, which has {run.segment_bytes}")


def _append_and_clear(context: PulsarContext, state: PulsarConnection, run: _Run) -> None:
    """What the run has so far: others of the same receive follow."""
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
    _owe_error(state, producer, sequence_id, error)


def _is_duplicate(run: _Run, name: str, sequence_id: int, highest: int) -> bool:
    """Whether the producer with this name has sent it before. With deduplication only."""
    assert run.topic.deduplication is not None
    first = highest_sequence_id(sequence_id, sequence_id)
    if first <= max(run.topic.deduplication.last(name), run.highest.get(name, -1)):
        return True
    run.highest[name] = highest_sequence_id(sequence_id, highest)
    return False


def _owe_duplicate(
    context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, sequence_id: int, highest: int
) -> None:
    """The log has the message already: a receipt without an id, when what the log has is durable, and after those before it."""
    _append_and_clear(context, state, run)
    topic = run.topic
    assert isinstance(topic, Topic)  # no other has deduplication
    log = topic.log
    end = log.log_end_offset
    state.owe(1)
    producer.owe(duplicate(sequence_id, highest, end))
    context.flusher.wait_durable(log, end, partial(_durable, [producer]))


def _owe_error(state: PulsarConnection, producer: Producer, sequence_id: int, error: Refusal | StorageError) -> None:
    state.owe(1)
    # There is nothing to wait for but its turn.
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
        # Together they do not fit a segment.
        for one in accepted:
            if not one.producer.closed:
                alone = _Run(topic)
                alone.accepted = [one]
                _append(context, state, alone)
    except (Refusal, StorageError) as error:
        _fail(context, state, topic, accepted, error)


def _count(context: PulsarContext, state: PulsarConnection, rate: DispatchRate, accepted: list[_Accepted]) -> None:
    """These count for the topic's publish rate. What is above it is taken, and then the connection has to wait."""
    now = context.clock.monotonic()
    rate.consumed(sum(one.messages for one in accepted), sum(len(one.value) for one in accepted), now)
    state.publish_wait_s = max(state.publish_wait_s, rate.wait_s(now))


def _pass_on(
    context: PulsarContext, state: PulsarConnection, topic: NonPersistentTopic, accepted: list[_Accepted]
) -> None:
    """The messages are not kept: they go to who is there, and the receipts leave at once."""
    values = memoryview(bytearray().join([one.value for one in accepted]))  # what was received may be moved
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
    for producer, ours in owed.items():
        producer.owe(Owed(0, ours))
        producer.pay()


def _append_together(context: PulsarContext, state: PulsarConnection, topic: Topic, accepted: list[_Accepted]) -> None:
    """Raises a Refusal or StorageError: nothing of these is in the log."""
    records = memoryview(bytearray().join([part for one in accepted for part in (one[-2], one[-1], ENTRY_END)]))
    log, tail, deduplication = topic.log, topic.tail, topic.deduplication
    token = 0 if deduplication is None else deduplication.begin()
    appended: list[tuple[str, int]] = []
    owed: dict[Producer, list[tuple[int, int, int]]] = {}
    last: Producer | None = None  # nearly always all of a run is from one
    ours: list[tuple[int, int, int]] = []
    tail.begin_append()
    try:
        offset = log.append(records, now_ms=context.clock.time_ms(), entries=True).base_offset
        entries: list[Entry] = []
        read = bool(topic.subscriptions)  # else nobody would find them in the cache
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
                ours = owed.setdefault(producer, [])
            ours.append((sequence_id, entry, highest))
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
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    if topic.publish_rate.limited:
        _count(context, state, topic.publish_rate, accepted)
    state.owe(len(accepted))
    for producer, ours in owed.items():
        producer.owe(Owed(offset, ours))
    context.flusher.wait_durable(log, offset, partial(_durable, list(owed)))


def _durable(producers: list[Producer], error: StorageError | None) -> None:
    """On the thread that has synced the log, or at once."""
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
    """Nothing of these is in the log."""
    if isinstance(error, StorageError):
        context.complain("append_failed", topic.log.topic, topic.log.partition, error)
    failed: set[int] = set()
    for producer, sequence_id, *_ in accepted:
        if producer.id in failed:
            continue
        failed.add(producer.id)
        if not isinstance(error, BatchesTooLarge):
            producer.closed = True
        _owe_error(state, producer, sequence_id, error)
