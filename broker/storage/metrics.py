"""The storage's metrics, for the registry.

Logs count appended records under their lock, and sent bytes by thread; everything else is looked up when metrics are read. The
walk over all partitions is made at most every few seconds, and pauses now and then, because a computing thread keeps others from
the interpreter.

At most ``_TOPICS_MAX`` topics have series of their own, and at most ``_PARTITIONS_MAX`` partitions of these.

Tests: tests/storage/test_metrics.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Cached, Metric
from broker.metrics.registry import BoundedCounter, Chosen, summed
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager

_TOPICS_MAX = 200
_PARTITIONS_MAX = 1_000
# Partitions whose oldest open transaction is shown.
_UNSTABLE_MAX = 100
# How old (s) the figures of the logs may be.
_AGE_S = 2.0
# Partitions between two pauses, about 0.2 ms, and how long (s) a pause is.
_PIECE = 100
_PAUSE_S = 0.0005


@attrs.frozen
class Figures:
    """The result of a walk over the logs: by topic and partition, or in all."""

    messages_in: Mapping[Labels, float]
    bytes_in: Mapping[Labels, float]
    bytes_out: Mapping[Labels, float]
    topic_bytes: Mapping[Labels, float]
    topic_partitions: Mapping[Labels, float]
    sizes: Mapping[Labels, float]
    segments: Mapping[Labels, float]
    starts: Mapping[Labels, float]
    ends: Mapping[Labels, float]
    unstable: Mapping[Labels, float]
    partitions: int
    offline: int
    undurable: int  # records that are not fsynced
    producers: int


@attrs.define
class _Topic:
    messages_in: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    size: float = 0.0
    partitions: int = 0


class StorageMetrics:
    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs = logs
        self._chosen = Chosen(_TOPICS_MAX)
        self._counters = (BoundedCounter(), BoundedCounter(), BoundedCounter())
        self._clock = clock
        self._figures = Cached(self._walk, clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        for metric, value in (
            (names.MESSAGES_IN, lambda f: f.messages_in),
            (names.BYTES_IN, lambda f: f.bytes_in),
            (names.BYTES_OUT, lambda f: f.bytes_out),
        ):
            registry.read_counter(metric, partial(self._read, value))
        gauges: Sequence[tuple[Metric, Callable[[Figures], Mapping[Labels, float]]]] = (
            (names.TOPIC_LOG_BYTES, lambda f: f.topic_bytes),
            (names.TOPIC_PARTITIONS, lambda f: f.topic_partitions),
            (names.LOG_SIZE, lambda f: f.sizes),
            (names.LOG_SEGMENTS, lambda f: f.segments),
            (names.PARTITION_OLDEST_OFFSET, lambda f: f.starts),
            (names.PARTITION_CURRENT_OFFSET, lambda f: f.ends),
            (names.UNSTABLE_RECORDS, lambda f: f.unstable),
            (names.PARTITIONS, lambda f: {(): f.partitions}),
            (names.OFFLINE_PARTITIONS, lambda f: {(): f.offline}),
            (names.UNDURABLE_RECORDS, lambda f: {(): f.undurable}),
            (names.PRODUCER_IDS, lambda f: {(): f.producers}),
        )
        for metric, of in gauges:
            registry.gauge(metric, partial(self._read, of))
        fsyncs, recovery = self._logs.fsyncs, self._logs.recovery
        registry.read_histogram(names.FSYNC_SECONDS, fsyncs.ranges)
        registry.gauge(names.FLUSHER_QUEUE_SIZE, lambda: {(): self._logs.flusher.waiting})
        registry.gauge(names.DATA_FREE_BYTES, partial(self._of_disk, self._logs.disk.free_bytes))
        registry.gauge(names.DATA_TOTAL_BYTES, partial(self._of_disk, self._logs.disk.total_bytes))
        registry.gauge(names.OPEN_FILES, lambda: {(): self._logs.files.count()})
        registry.gauge(names.RECOVERY_SECONDS, lambda: {(): recovery.seconds})
        registry.gauge(names.RECOVERED_LOGS, lambda: {(): recovery.scanned_logs})
        registry.gauge(names.RECOVERY_SCANNED_BYTES, lambda: {(): recovery.scanned_bytes})
        registry.gauge(names.RECOVERY_TRUNCATED_BYTES, lambda: {(): recovery.cut_bytes})

    def _of_disk(self, read: Callable[[str], int]) -> Mapping[Labels, float]:
        try:
            return {(): read(self._logs.data_dir)}
        except OSError:
            return {}

    def _read(self, value: Callable[[Figures], Mapping[Labels, float]]) -> Mapping[Labels, float]:
        return value(self._figures.get())

    def _walk(self) -> Figures:
        topics: dict[str, _Topic] = {}
        offline = undurable = producers = 0
        unstable: list[tuple[int, Log]] = []
        logs = list(self._logs.partitions.values())
        for number, log in enumerate(logs):
            if not number % _PIECE:
                _pause()
            topic = topics.get(log.topic)
            if topic is None:
                topic = topics[log.topic] = _Topic()
            state = log.state
            end = state.log_end_offset
            topic.partitions += 1
            topic.messages_in += end - state.first_offset
            topic.bytes_in += state.appended_bytes
            if state.sent_bytes:
                topic.bytes_out += sum(state.sent_bytes.copy().values())
            topic.size += log.size_bytes()
            if state.offline is not None:
                offline += 1
                continue
            undurable += end - state.durable_offset
            producers += len(state.producers)
            if state.first_unstable is not None:
                unstable.append((end - log.last_stable_offset, log))
        activity = {name: topic.bytes_in + topic.bytes_out for name, topic in topics.items()}
        chosen = self._chosen.choose(activity, self._clock.monotonic())
        shown: list[Log] = []
        left = _PARTITIONS_MAX
        by_activity = sorted(chosen, key=lambda name: -activity[name])
        fitting = set()
        for name in by_activity:
            if topics[name].partitions <= left:
                left -= topics[name].partitions
                fitting.add(name)
        if fitting:
            shown = [log for log in logs if log.topic in fitting and log.state.offline is None]
        unstable.sort(key=lambda each: -each[0])
        messages, received, sent = self._counters
        return Figures(
            messages_in=_labelled(messages.split({name: each.messages_in for name, each in topics.items()}, chosen)),
            bytes_in=_labelled(received.split({name: each.bytes_in for name, each in topics.items()}, chosen)),
            bytes_out=_labelled(sent.split({name: each.bytes_out for name, each in topics.items()}, chosen)),
            topic_bytes=_labelled(summed({name: each.size for name, each in topics.items()}, chosen)),
            topic_partitions=_labelled(summed({name: each.partitions for name, each in topics.items()}, chosen)),
            sizes={_key(log): log.size_bytes() for log in shown},
            segments={_key(log): len(log.view.segments) for log in shown},
            starts={_key(log): log.log_start_offset for log in shown},
            ends={_key(log): log.log_end_offset for log in shown},
            unstable={_key(log): behind for behind, log in unstable[:_UNSTABLE_MAX]},
            partitions=len(logs),
            offline=offline,
            undurable=undurable,
            producers=producers,
        )


def _pause() -> None:
    Event().wait(_PAUSE_S)


def _key(log: Log) -> Labels:
    return log.topic, str(log.partition)


def _labelled(values: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in values.items()}
