"""``/api/v1/topics``: sizes, rates, offline partitions, and the groups that read a topic with their lag.

Of several nodes, each knows only the partitions that it has (``partitions_here``); all figures are of these.

The cost of a page is bounded by its ``Spending``: with 10,000 partitions a topic and 1,000 groups a full answer would look at
ten million offsets. A figure beyond the bound is null.

``/api/v1/settings``: the broker's settings with their values, and where each was set. Secrets are not shown.

``listeners`` are all of them, as URLs. Kafka's admin API shows only Kafka's, in the form that its tools understand.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from broker.config import BrokerConfig
from broker.kafka.configs.resources import Settings as Entries
from broker.kafka.configs.resources import Source
from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import longest_s, total_lag
from broker.kafka.views.view_context import ViewContext
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.web.history import Field
from broker.web.routes import Answer, Call, Route, json_answer, page_of

_SOURCES: Mapping[int, str] = {
    Source.TOPIC: "topic",
    Source.DYNAMIC_BROKER: "dynamic",
    Source.DYNAMIC_DEFAULT_BROKER: "dynamic-default",
    Source.STATIC_BROKER: "static",
    Source.DEFAULT: "default",
    Source.GROUP: "group",
}


class Settings:
    def __init__(self, context: ViewContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/settings", self.page)]

    def page(self, call: Call) -> Answer:
        self._context.callers.require(call, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        settings = Entries(self._context.kafka)
        entries = call.work.each(settings.broker_entries())
        shown = [_shown(entry, settings.default_of(entry["name"])) for entry in entries]
        for each in shown:
            if each["name"] == "listeners":
                config = self._context.kafka.config
                each["value"] = ",".join(map(str, config.listeners))
                each["default"] = ",".join(map(str, BrokerConfig().listeners))
        return json_answer({"settings": shown})


def of_topic(kafka: KafkaContext, own: Mapping[str, str]) -> list[dict[str, Any]]:
    """The settings of a topic that sets ``own`` itself. The default is the value in force without them."""
    settings = Entries(kafka)
    defaults = {entry["name"]: entry["value"] for entry in settings.topic_entries({})}
    return [_shown(entry, defaults[entry["name"]]) for entry in settings.topic_entries(own)]


def _shown(entry: Mapping[str, Any], default: str | None) -> dict[str, Any]:
    """A setting as Kafka's admin API describes it, in the terms of this API."""
    return {
        "name": entry["name"],
        "value": None if entry["is_sensitive"] else entry["value"],
        "default": None if entry["is_sensitive"] else default,
        "source": _SOURCES[entry["config_source"]],
        "secret": entry["is_sensitive"],
        "live": not entry["read_only"],
        "doc": entry["documentation"],
    }


MESSAGES_IN = Field("topic", "messages_in", counter=True)
BYTES_IN = Field("topic", "bytes_in", counter=True)
BYTES_OUT = Field("topic", "bytes_out", counter=True)

# Partitions, and (group, topic) pairs, that one page looks at: some 100 ms.
_PARTITIONS_MAX = 200_000
_PAIRS_MAX = 400_000
# Shown groups of a topic: those furthest behind.
_GROUPS_SHOWN = 20
# Of a topic: described partitions, and partitions of groups with a lag in time looked up in the log.
_DESCRIBED_MAX = 10_000
_TIMED_MAX = 2_000


class Spending:
    """The remaining work that an answer may take."""

    def __init__(self, amount: int) -> None:
        self.left = amount

    def take(self, amount: int) -> bool:
        """False if less is left. Nothing is taken then."""
        if amount > self.left:
            return False
        self.left -= amount
        return True


class Topics:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._logs = context.kafka.logs
        self._groups = context.kafka.groups

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/topics", self.page),
            Route("GET", "/api/v1/topics/{topic}", self.describe),
        ]

    def page(self, call: Call) -> Answer:
        context = self._context
        infos = {info.name: info for info in self._logs.topics()}
        names: Iterable[str] = infos
        if context.callers.authorizer is not None:
            names = (name for name in infos if context.may_describe(call, ResourceType.TOPIC, name))
        page, following = page_of(call, names)
        partitions = Spending(_PARTITIONS_MAX)
        groups = self._groups_of(call, page, partitions)
        topics = [{**self._summary(infos[name], partitions), "groups": groups[name]} for name in call.work.each(page)]
        return json_answer({"topics": topics, "next": following})

    def describe(self, call: Call) -> Answer:
        info = self._context.topic_of(call)
        partitions = Spending(_PARTITIONS_MAX)
        logs = [self._logs.get(info.name, number) for number in range(min(info.partitions, _DESCRIBED_MAX))]
        return json_answer(
            {
                **self._summary(info, partitions),
                "settings": self._settings(call, info),
                "partition_count": info.partitions,
                "partitions": [_partition(log) for log in call.work.each(logs) if log is not None],
                "groups": self._group_lags(call, info.name),
                "subscriptions": self._context.figures.subscriptions(info.name),
            }
        )

    def _settings(self, call: Call, info: TopicInfo) -> list[dict[str, Any]] | None:
        """None for clients that may not read them; Kafka has a right of its own for that."""
        context = self._context
        may = context.callers.may(call, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, info.name)
        return of_topic(context.kafka, info.configs) if may else None

    def _summary(self, info: TopicInfo, spending: Spending) -> dict[str, Any]:
        name, rate = info.name, self._context.figures.rate
        log_bytes: int | None = None
        messages: int | None = None
        offline: int | None = None
        here: int | None = None
        if spending.take(info.partitions):
            candidates = (self._logs.get(name, number) for number in range(info.partitions))
            logs = [log for log in candidates if log is not None]
            here = len(logs)
            log_bytes = sum(log.size_bytes() for log in logs)
            messages = sum(log.high_watermark - log.log_start_offset for log in logs)
            offline = sum(log.offline is not None for log in logs)
        return {
            "name": name,
            "partitions": info.partitions,
            "partitions_here": here,
            "internal": name.startswith("__"),
            "log_bytes": log_bytes,
            "messages": messages,
            "messages_in_rate": round(rate(MESSAGES_IN, name), 3),
            "bytes_in_rate": round(rate(BYTES_IN, name), 3),
            "bytes_out_rate": round(rate(BYTES_OUT, name), 3),
            "offline": offline,
        }

    def _groups_of(self, call: Call, topics: list[str], spending: Spending) -> Mapping[str, list[dict[str, Any]]]:
        """For each topic the groups with offsets there, those furthest behind first."""
        context = self._context
        by_topic: dict[str, list[dict[str, Any]]] = {topic: [] for topic in topics}
        pairs, wanted = Spending(_PAIRS_MAX), frozenset(topics)
        for group in call.work.each(self._groups.names()):
            if not pairs.take(len(topics)):
                break
            if not context.may_describe(call, ResourceType.GROUP, group):
                continue
            for topic in self._groups.topics_among(group, wanted):
                lag = None
                if spending.left > 0:  # else nothing is copied any more
                    offsets = self._groups.committed(group, [topic])
                    spending.left -= sum(map(len, offsets.values()))
                    lag = context.lags.records(offsets)
                by_topic[topic].append({"group": group, "lag": lag})
        return {topic: sorted(groups, key=_by_lag)[:_GROUPS_SHOWN] for topic, groups in by_topic.items()}

    def _group_lags(self, call: Call, topic: str) -> list[dict[str, Any]]:
        """As `_groups_of`, also in time."""
        context, now_ms = self._context, self._context.kafka.clock.time_ms()
        (shown,) = self._groups_of(call, [topic], Spending(_PARTITIONS_MAX)).values()
        timed = Spending(_TIMED_MAX)
        for each in shown:
            offsets = self._groups.committed(each["group"], [topic]).get(topic, {})
            each["lag_s"] = None
            if timed.take(len(offsets)):
                lags = [
                    context.lags.in_time(context.lags.of(topic, number, committed), now_ms)
                    for number, committed in call.work.each(offsets.items())
                ]
                if each["lag"] is not None:
                    each["lag"], each["lag_s"] = total_lag(lags), longest_s(lags)
        return shown


def _by_lag(group: Mapping[str, Any]) -> tuple[int, str]:
    return -(group["lag"] or 0), group["group"]


def _partition(log: Log) -> dict[str, Any]:
    offline = log.offline
    segments = log.view.segments
    return {
        "partition": log.partition,
        "start_offset": log.log_start_offset,
        "end_offset": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "log_bytes": log.size_bytes(),
        "segments": len(segments),
        "offline_reason": None if offline is None else str(offline),
    }
