"""The metrics of the Kafka service: errors, groups, share groups, transactions.

All are computed when metrics are read, on a thread that may block, and kept for some seconds. There are many groups and more
partitions, and the lag in time takes a look into the log. So bounds limit how many groups have series of their own, how many
partitions are looked at, and how many of these in the log, those furthest behind first. The walks pause now and then, because a
thread that computes keeps others from the interpreter.

Tests: tests/metrics/test_moving.py.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

from broker.kafka.context import KafkaContext
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.lag import Lags, PartitionLag
from broker.kafka.share.share_partition import ACCEPT, REJECT, RELEASE, RENEW
from broker.kafka.share.share_service import ShareService
from broker.kafka.transactions.transaction import AT_REST
from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Cached
from broker.metrics.registry import BoundedCounter, Chosen, summed
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.storage.log.log import Log

# How old (s) the figures may be.

# Share partitions between two pauses, some 0.2 ms, and how long (s) a pause is.
_SHARE_METRICS_PIECE = 100


_TYPES = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}


class ShareMetrics:
    def __init__(self, share: ShareService, clock: Clock) -> None:
        self._share = share
        self._clock = clock
        self._chosen = Chosen(_GROUPS_MAX)
        self._in_flight = Cached(self._walk, clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        share = self._share
        registry.read_counter(names.SHARE_ACKNOWLEDGEMENTS, lambda: {(): share.acknowledge_requests})
        registry.read_counter(names.SHARE_RECORD_ACKNOWLEDGEMENTS, self._acknowledged)
        registry.gauge(names.SHARE_SESSIONS, lambda: {(): len(share.sessions)})
        registry.gauge(names.SHARE_SESSION_PARTITIONS, lambda: {(): share.sessions.partitions.taken})
        registry.gauge(names.SHARE_PARTITIONS, lambda: {(): len(share.entries())})
        registry.gauge(names.SHARE_IN_FLIGHT_RECORDS, self._in_flight.get)

    def _acknowledged(self) -> dict[Labels, float]:
        counts = self._share.acknowledged()
        return {(name,): float(counts[kind]) for kind, name in _TYPES.items()}

    def _walk(self) -> dict[Labels, float]:
        """By group, the records that its members hold."""
        held: dict[str, float] = {}
        ends: dict[str, float] = {}
        for number, entry in enumerate(self._share.entries()):
            if not number % _SHARE_METRICS_PIECE:
                Event().wait(_PAUSE_S)
            group_id, partition = entry.key.group_id, entry.partition
            if partition is not None:
                held[group_id] = held.get(group_id, 0.0) + partition.in_flight_count
                ends[group_id] = ends.get(group_id, 0.0) + partition.end
        return _labelled(summed(held, self._chosen.choose(ends, self._clock.monotonic())))


# Groups, and partitions of these, that have series of their own.
_GROUPS_MAX = 200
_PARTITIONS_MAX = 1_000
# Partitions with committed offsets that one walk looks at (others have no lag), and partitions with a looked-up lag in time.
_LOOKED_MAX = 100_000
_TIMED_MAX = 500
_TRANSACTIONS_MAX = 100
# How old (s) the figures may be.
_AGE_S = 5.0
# Groups or partitions between two pauses, some 0.2 ms, and how long (s) a pause is.
_PIECE = 50
_PAUSE_S = 0.0005


@attrs.frozen
class GroupsFigures:
    states: Mapping[Labels, float]
    protocols: Mapping[Labels, float]
    members: Mapping[Labels, float]
    generations: Mapping[Labels, float]
    rebalances: Mapping[Labels, float]
    lag_of_group: Mapping[Labels, float]
    lag: Mapping[Labels, float]
    committed: Mapping[Labels, float]
    lag_seconds: Mapping[Labels, float]


class KafkaMetrics:
    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._lags = Lags(context.logs)
        self._chosen = Chosen(_GROUPS_MAX)
        self._rebalances = BoundedCounter()
        self._groups = Cached(self._walk, context.clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        context = self._context
        registry.read_counter(names.REQUEST_ERRORS, context.errors.read)
        registry.gauge(names.GROUPS, lambda: self._groups.get().states)
        registry.gauge(names.GROUPS_BY_PROTOCOL, lambda: self._groups.get().protocols)
        registry.gauge(names.GROUP_MEMBERS, lambda: self._groups.get().members)
        registry.gauge(names.GROUP_GENERATION, lambda: self._groups.get().generations)
        registry.read_counter(names.GROUP_REBALANCES, lambda: self._groups.get().rebalances)
        registry.gauge(names.GROUP_LAG_SUM, lambda: self._groups.get().lag_of_group)
        registry.gauge(names.GROUP_LAG, lambda: self._groups.get().lag)
        registry.gauge(names.GROUP_OFFSET, lambda: self._groups.get().committed)
        registry.gauge(names.GROUP_LAG_SECONDS, lambda: self._groups.get().lag_seconds)
        registry.gauge(names.COORDINATOR_MEMORY_BYTES, lambda: {(): context.groups.memory.used_bytes})
        registry.gauge(names.CATALOGUE_QUEUE_SIZE, lambda: {(): context.groups.writer.waiting})
        registry.gauge(names.TRANSACTIONS, self._transactions)
        registry.gauge(names.TRANSACTION_OPEN_SECONDS, self._open_seconds)
        registry.gauge(names.STABLE_OFFSET_HELD_SECONDS, self._held_seconds)
        registry.gauge(names.PARKED_FETCH_WATCHES, lambda: {(): context.watches.taken})
        ShareMetrics(context.share, context.clock).register(registry)

    # -- groups -------------------------------------------------------------------------------------------------------

    def _walk(self) -> GroupsFigures:
        groups = self._context.groups
        states = dict.fromkeys((state.value for state in ClassicGroupState), 0)
        protocols: Counter[Labels] = Counter()
        members: dict[str, float] = {}
        generations: dict[str, float] = {}
        rebalances: dict[str, float] = {}
        behind: dict[str, float] = {}
        sums: dict[tuple[str, str], float] = {}
        lags: list[tuple[str, PartitionLag]] = []
        shares: list[str] = []
        left = _LOOKED_MAX
        for number, name in enumerate(groups.names()):
            if not number % _PIECE:
                _pause()
            figures = groups.figures(name)
            if figures is None:
                continue
            states[figures.state] = states.get(figures.state, 0) + 1
            protocols[figures.type.value, figures.state] += 1
            members[name], generations[name] = figures.members, figures.generation
            rebalances[name] = figures.rebalances
            if figures.type is GroupType.SHARE:
                shares.append(name)
                continue
            offsets = groups.committed(name, figures.topics)
            count = sum(map(len, offsets.values()))
            if count > left:
                continue
            left -= count
            for topic, partitions in offsets.items():
                of_topic = 0
                for partition, committed in partitions.items():
                    if not len(lags) % _PIECE:
                        _pause()
                    lag = self._lags.of(topic, partition, committed)
                    if lag.lag is not None:
                        of_topic += lag.lag
                        lags.append((name, lag))
                behind[name] = behind.get(name, 0.0) + of_topic
                sums[name, topic] = of_topic
        self._add_shares(shares, left, behind, sums)
        # Somebody looks at groups that rebalance, commit, or are behind.
        chosen = self._chosen.choose(
            {name: rebalances[name] + behind.get(name, 0.0) for name in members}, self._context.clock.monotonic()
        )
        shown = [(name, lag) for name, lag in lags if name in chosen]
        shown.sort(key=lambda each: -(each[1].lag or 0))
        del shown[_PARTITIONS_MAX:]
        return GroupsFigures(
            states={(state,): count for state, count in states.items() if state != ClassicGroupState.DEAD.value},
            protocols=protocols,
            members=_labelled(summed(members, chosen)),
            generations={(name,): value for name, value in generations.items() if name in chosen},
            rebalances=_labelled(self._rebalances.split(rebalances, chosen)),
            lag_of_group=_by_topic(sums, chosen),
            lag={_key(name, lag): lag.lag or 0 for name, lag in shown},
            committed={_key(name, lag): lag.committed.offset for name, lag in shown},
            lag_seconds=self._in_time(shown),
        )

    def _add_shares(
        self, names: list[str], left: int, behind: dict[str, float], sums: dict[tuple[str, str], float]
    ) -> None:
        """The lag of share groups, for at most ``left`` partitions."""
        share = self._context.share
        for name, keys in (share.keys_of(names) if names else {}).items():
            _pause()
            if len(keys) > left:
                continue
            left -= len(keys)
            for (topic, _), offset in share.offsets_of(keys).items():
                lag = max(0, offset.lag)
                behind[name] = behind.get(name, 0.0) + lag
                sums[name, topic] = sums.get((name, topic), 0.0) + lag

    def _in_time(self, shown: list[tuple[str, PartitionLag]]) -> dict[Labels, float]:
        """By group and topic, the longest lag in time."""
        now_ms = self._context.clock.time_ms()
        longest: dict[Labels, float] = {}
        looked_up = 0
        for name, lag in shown:
            if lag.lag:
                looked_up += 1
                if looked_up > _TIMED_MAX:
                    continue
                if not looked_up % _PIECE:
                    _pause()
            seconds = self._lags.in_time(lag, now_ms).lag_s
            if seconds is not None:
                key = (name, lag.topic)
                longest[key] = max(longest.get(key, 0.0), seconds)
        return longest

    # -- transactions -------------------------------------------------------------------------------------------------

    def _transactions(self) -> dict[Labels, float]:
        _, states = self._context.transactions.list()
        counts = Counter(state.phase for _, state in states)
        return {(phase.name.lower(),): count for phase, count in counts.items()}

    def _open_seconds(self) -> dict[Labels, float]:
        """The transactions that are open for the longest time."""
        _, states = self._context.transactions.list()
        now_ms = self._context.clock.time_ms()
        since = [
            (state.started_ms, transactional_id)
            for transactional_id, state in states
            if state.phase not in AT_REST and state.started_ms >= 0
        ]
        return {
            (transactional_id,): max(0, now_ms - started_ms) / 1000
            for started_ms, transactional_id in sorted(since)[:_TRANSACTIONS_MAX]
        }

    def _held_seconds(self) -> dict[Labels, float]:
        """By partition and transactional id, for how long a transaction has held the last stable offset."""
        context = self._context
        now_ms = context.clock.time_ms()
        held: dict[Labels, float] = {}
        for number, log in enumerate(list(context.logs.partitions.values())):
            if not number % 1000:
                _pause()
            if log.state.first_unstable is None:
                continue
            if len(held) == _TRANSACTIONS_MAX:
                break
            holder, since_ms = self._holder(log)
            held[log.topic, str(log.partition), holder] = max(0, now_ms - since_ms) / 1000
        return held

    def _holder(self, log: Log) -> tuple[str, int]:
        """The transactional id, or the producer id if it has none; and since when (ms) it holds the offset."""
        oldest = log.transactions.oldest_open()
        if oldest is None:  # it has ended
            return "", self._context.clock.time_ms()
        producer_id, last_ms = oldest
        holder = self._context.transactions.holder_of(producer_id)
        if holder is None or holder[1] < 0:
            return str(producer_id), last_ms
        return holder


def _pause() -> None:
    Event().wait(_PAUSE_S)


def _by_topic(sums: Mapping[tuple[str, str], float], chosen: frozenset[str]) -> dict[Labels, float]:
    """For the chosen groups, the topics in which they are furthest behind; the others together."""
    own = sorted((key for key in sums if key[0] in chosen), key=lambda key: -sums[key])[:_PARTITIONS_MAX]
    shown: dict[Labels, float] = {key: sums[key] for key in own}
    others = sum(sums.values()) - sum(shown.values())
    if others:
        shown[names.OTHER, names.OTHER] = others
    return shown


def _key(group: str, lag: PartitionLag) -> Labels:
    return group, lag.topic, str(lag.partition)


def _labelled(values: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in values.items()}
