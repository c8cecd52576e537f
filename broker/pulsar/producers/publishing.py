"""From SENDs to the log: each message is checked and becomes an entry, and its receipt is put in its producer's queue.

All SENDs that came with one receive are one call. Those to one topic become one append, one look at the consumers who wait, one
wait for the flusher, and as a rule one push of receipts. It runs on the connection's processor, or on a handler while the disk
is slow. The flusher's thread sends the receipts.

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
from broker.pulsar.entries.entry_factory import from_metadata
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.producers.deduplication import counts, highest_sequence_id
from broker.pulsar.producers.producer import Owed, Producer, duplicate, send_error
from broker.pulsar.refusals import AuthorizationError, ChecksumMismatch, MetadataInvalid, NotAllowed, TopicTerminated
from broker.pulsar.rights import may_produce
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.storage.refusals import BatchesTooLarge
from protocol.errors import ProtocolError
from protocol.kafka.records.entry import ENTRY_END, entry_head
from protocol.pulsar.metadata import MAX_METADATA_SIZE, check_batch, is_encrypted, publish_time_ms, read_metadata
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import Send, crc_matches, read_send

# How long (s) appends go to the handlers after a slow one: the disk is busy writing back.
_SLOW_FOR_S = 1.0

_new = tuple.__new__
_length = struct.Struct(">I").unpack_from


class _Accepted(NamedTuple):
    producer: Producer
    send: Send
    messages: int
    metadata: MessageMetadata
    head: bytes  # of its record batch
    value: memoryview  # in what was received


class _Run:
    """What one receive has brought for one topic, in order."""

    __slots__ = ("accepted", "encrypted", "highest", "refusal", "segment_bytes", "size", "topic")

    def __init__(self, topic: AnyTopic, refusal: Refusal | None = None, *, encrypted: bool = False) -> None:
        self.topic = topic
        self.segment_bytes = topic.entry_bytes_max
        self.refusal = refusal  # of everything that is for this topic
        self.encrypted = encrypted  # whether it has to be
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
            frame = frames[position : position + size] if size != end else frames
            position += size
            send = read_send(frame)
            producer = state.producers.get(send.producer_id)
            if producer is None or not producer.ready or producer.closed:
                state.check_was_producer(send.producer_id)
                continue  # sent before the client could know that it is closed
            topic = producer.topic
            run = runs.get(id(topic))
            if run is None:
                encrypted = context.policies.of(topic.name.namespace, topic.topic_id).encryption_required
                run = runs[id(topic)] = _Run(topic, _refusal(context, state, topic), encrypted=bool(encrypted))
            _accept(context, state, run, producer, send, frame)
    finally:
        for run in runs.values():
            if run.accepted:
                _append(context, state, run)


def _refusal(context: PulsarContext, state: PulsarConnection, topic: AnyTopic) -> Refusal | None:
    if topic.terminated:
        return TopicTerminated("Topic has been terminated")
    if context.authorizer is not None and not may_produce(context, state.connection, topic):
        return AuthorizationError("Not authorized to produce to the topic any more")
    return None


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
        _refuse(context, state, run, producer, send, refusal)
        return
    if run.topic.deduplication is not None and _is_duplicate(run, producer, send, metadata):
        _owe_duplicate(context, state, run, producer, send)
        return
    value = frame[send.start : send.end]
    head = entry_head(value, messages, publish_time_ms(metadata))
    size = len(head) + len(value) + len(ENTRY_END)
    segment_bytes = run.segment_bytes
    if size > segment_bytes:
        too_large = NotAllowed(f"{size} bytes do not fit a segment of the topic, which has {segment_bytes}")
        _refuse(context, state, run, producer, send, too_large)
        return
    if run.size + size > segment_bytes:  # together they must fit one
        _append_and_clear(context, state, run)
    run.accepted.append(_new(_Accepted, (producer, send, messages, metadata, head, value)))
    run.size += size


def _append_and_clear(context: PulsarContext, state: PulsarConnection, run: _Run) -> None:
    """What the run has so far: others of the same receive follow."""
    if run.accepted:
        _append(context, state, run)
        run.accepted, run.size = [], 0


def _refuse(
    context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, send: Send, error: Refusal
) -> None:
    """Answer one SEND with an error, after the receipts of those before it."""
    _append_and_clear(context, state, run)
    if not isinstance(error, ChecksumMismatch | NotAllowed):
        producer.closed = True
    _owe_error(state, producer, send, error)


def _is_duplicate(run: _Run, producer: Producer, send: Send, metadata: MessageMetadata) -> bool:
    deduplication = run.topic.deduplication
    if deduplication is None or not counts(metadata):
        return False
    name = producer.name
    first = highest_sequence_id(send.sequence_id, send.sequence_id)
    if first <= max(deduplication.last(name), run.highest.get(name, -1)):
        return True
    run.highest[name] = highest_sequence_id(send.sequence_id, send.highest_sequence_id)
    return False


def _owe_duplicate(context: PulsarContext, state: PulsarConnection, run: _Run, producer: Producer, send: Send) -> None:
    """The log has the message already: a receipt without an id, when what the log has is durable, and after those before it."""
    _append_and_clear(context, state, run)
    topic = run.topic
    assert isinstance(topic, Topic)  # no other has deduplication
    log = topic.log
    end = log.log_end_offset
    state.owe(1)
    producer.owe([duplicate(send.sequence_id, send.highest_sequence_id, end)])
    context.flusher.wait_durable(log, end, partial(_durable, [producer]))


def _owe_error(state: PulsarConnection, producer: Producer, send: Send, error: Refusal | StorageError) -> None:
    state.owe(1)
    # There is nothing to wait for but its turn.
    producer.owe([Owed(0, send.sequence_id, 0, 0, send_error(producer.id, send.sequence_id, error))])
    producer.pay()


def _append(context: PulsarContext, state: PulsarConnection, run: _Run) -> None:
    topic, accepted = run.topic, run.accepted
    if topic.closed:
        return  # its producers are being told
    if isinstance(topic, NonPersistentTopic):
        _pass_on(state, topic, accepted)
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


def _pass_on(state: PulsarConnection, topic: NonPersistentTopic, accepted: list[_Accepted]) -> None:
    """The messages are not kept: they go to who is there, and the receipts leave at once."""
    values = memoryview(bytearray().join([one.value for one in accepted]))  # what was received may be moved
    entry = topic.take_ids(len(accepted))
    entries: list[Entry] = []
    owed: dict[Producer, list[Owed]] = {}
    position = 0
    for producer, send, messages, metadata, _, value in accepted:
        size = len(value)
        entries.append(from_metadata(entry, messages, values[position : position + size], size, metadata))
        owed.setdefault(producer, []).append(_new(Owed, (0, send.sequence_id, send.highest_sequence_id, entry, None)))
        producer.messages_in += messages
        producer.bytes_in += size
        position += size
        entry += 1
    topic.publish(entries)
    state.owe(len(accepted))
    for producer, ours in owed.items():
        producer.owe(ours)
        producer.pay()


def _append_together(context: PulsarContext, state: PulsarConnection, topic: Topic, accepted: list[_Accepted]) -> None:
    """Raises a Refusal or StorageError: nothing of these is in the log."""
    records = memoryview(bytearray().join([part for one in accepted for part in (one.head, one.value, ENTRY_END)]))
    log, tail, deduplication = topic.log, topic.tail, topic.deduplication
    token = 0 if deduplication is None else deduplication.begin()
    appended: list[tuple[str, int]] = []
    owed: dict[Producer, list[Owed]] = {}
    last: Producer | None = None  # nearly always all of a run is from one
    ours: list[Owed] = []
    tail.begin_append()
    try:
        offset = log.append(records, now_ms=context.clock.time_ms(), entries=True).base_offset
        entries: list[Entry] = []
        read = bool(topic.subscriptions)  # else nobody would find them in the cache
        position = 0
        for producer, send, messages, metadata, head, value in accepted:
            start = position + len(head)
            size = len(value)
            end = start + size
            position = end + len(ENTRY_END)
            if read:
                entries.append(from_metadata(offset, messages, records[start:end], size, metadata))
            entry = offset
            offset += messages
            if producer is not last:
                last = producer
                ours = owed.setdefault(producer, [])
            ours.append(_new(Owed, (offset, send.sequence_id, send.highest_sequence_id, entry, None)))
            producer.messages_in += messages
            producer.bytes_in += size
            if deduplication is not None and counts(metadata):
                appended.append((producer.name, highest_sequence_id(send.sequence_id, send.highest_sequence_id)))
        if read:
            topic.reader.appended(entries)
    finally:
        if deduplication is not None and deduplication.end(token, appended):
            context.deduplications.save(topic)
        tail.end_append()
    if log.state.slow_until > context.appends_slow_until:
        context.appends_slow_until = context.clock.monotonic() + _SLOW_FOR_S
    state.owe(len(accepted))
    for producer, ours in owed.items():
        producer.owe(ours)
    context.flusher.wait_durable(log, offset, partial(_durable, list(owed)))


def _durable(producers: list[Producer], error: StorageError | None) -> None:
    """On the flusher's thread, or at once."""
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
    for producer, send, *_ in accepted:
        if producer.id in failed:
            continue
        failed.add(producer.id)
        if not isinstance(error, BatchesTooLarge):
            producer.closed = True
        _owe_error(state, producer, send, error)
