"""The source's options: their names, their values, and combinations that are not allowed. Pure.

Names and meanings are those of Spark's Kafka connector, so that a query changes only the name of its format;
docs/SPARK.md marks the additional options. Spark passes the names in lower case. Every ConfigError is one sentence.
"""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping

import attrs

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition
from broker.errors import ConfigError
from broker.spark.source import offsets
from broker.spark.source.offsets import Edge, Position

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ALL_COLUMNS = (*COLUMNS, "headers")

# As the documentation writes them; Spark passes them in lower case.
SOURCE_OPTIONS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "groupIdPrefix",
    "commitOffsetsToGroup",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# A table may be read and written, so each side accepts the other's options.
SINK_OPTIONS = ("topic", "deliveryGuarantee", "txnAppId", "txnVersion", "includeHeaders")
# Options that Spark itself adds to a table or a query.
_SPARKS_OWN = ("path", "checkpointLocation", "queryName", "mergeSchema", "serialization.format", "header")

# Settings of Kafka's consumer that the source decides itself.
_REFUSED = {
    "auto.offset.reset": "where to start is the option startingOffsets, and a restarted query goes on from its checkpoint",
    "key.deserializer": "keys come as bytes, cast or decode them in the query",
    "value.deserializer": "values come as bytes, cast or decode them in the query",
    "enable.auto.commit": "the checkpoint keeps the offsets, commitOffsetsToGroup also commits them to a group",
    "interceptor.classes": "an interceptor could change records unseen",
}

_log = logging.getLogger(__name__)


@attrs.frozen
class Subscription:
    """A single field is set. ``pattern`` must match the whole name."""

    topics: tuple[str, ...] | None = None
    assigned: tuple[TopicPartition, ...] | None = None
    pattern: str | None = None


@attrs.frozen
class Limits:
    """The limits of a micro-batch; None: no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@attrs.frozen
class SourceOptions:
    client: ClientConfig
    subscription: Subscription
    start: Position
    end: Position
    # The meaning of a start by time in a partition with no record that late: None is an error.
    late_start: int | None
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    limits: Limits = Limits()
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    commit_group: str | None = None
    poll_timeout_ms: int = 120_000

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        """Raises ConfigError. The names may be in any case."""
        options = _Given(given)
        client = client_config(given)
        check_names(options.names(), SOURCE_OPTIONS, also=SINK_OPTIONS)
        start, late_start = _start(options, streaming)
        return cls(
            client=client,
            subscription=_subscription(options),
            start=start,
            end=_end(options, streaming),
            late_start=late_start,
            columns=parse_columns(given),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            limits=_limits(options, streaming),
            min_partitions=options.number("minPartitions", most=100_000),
            max_records_per_partition=options.number("maxRecordsPerPartition"),
            commit_group=options.text("commitOffsetsToGroup"),
            poll_timeout_ms=_patience(options),
        )


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the table: those in the option ``columns``, or else all of Kafka's."""
    options = _Given(given)
    headers = options.flag("includeHeaders", False)
    named = options.text("columns")
    if named is None:
        return ALL_COLUMNS if headers else COLUMNS
    canonical = {name.lower(): name for name in ALL_COLUMNS}
    names = [name.strip() for name in named.split(",")]
    for name in names:
        if name.lower() not in canonical:
            raise ConfigError(f"columns may name {', '.join(ALL_COLUMNS)}, not {name!r}.")
    columns = tuple(canonical[name.lower()] for name in names)
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns names a column twice: {named!r}.")
    return (*columns, "headers") if headers and "headers" not in columns else columns


def client_config(given: Mapping[str, str]) -> ClientConfig:
    """The client settings in the ``kafka.*`` options of source and sink. Unknown settings are logged, not refused."""
    properties = {name[6:].lower(): value for name, value in given.items() if name.lower().startswith("kafka.")}
    for name, reason in _REFUSED.items():
        if name in properties:
            raise ConfigError(f"Leave out kafka.{name}: {reason}.")
    if not given:
        raise ConfigError(
            "No option has come here: Spark does not pass on what CREATE TABLE says in OPTIONS, so use CREATE TEMPORARY VIEW, "
            "or say it in each query: SELECT * FROM t WITH (`kafka.bootstrap.servers` = 'localhost:9092', subscribe = 't')."
        )
    if not (properties.get("bootstrap.servers") or "").strip():
        raise ConfigError("Set the option kafka.bootstrap.servers to the address of a broker, such as localhost:9092.")
    try:
        client = ClientConfig.from_properties(properties)
    except ConfigError as error:
        raise ConfigError(f"Among the kafka.* options: {error}") from None
    ignored = [f"kafka.{name}" for name in client.unknown if name != "group.id"]
    if ignored:
        _log.warning("these options have no effect here: %s", ", ".join(ignored))
    return client


def check_names(names: Iterable[str], known: Iterable[str], also: Iterable[str] = ()) -> None:
    """Raise ConfigError for a misspelt option of ``known``; log any other unknown option. ``also``: accepted, too."""
    canonical = {name.lower(): name for name in known}
    passed = {name.lower() for name in (*_SPARKS_OWN, *also)}
    for name in names:
        lower = name.lower()
        if lower in canonical or lower in passed or lower.startswith("kafka."):
            continue
        near = difflib.get_close_matches(lower, canonical, n=1, cutoff=0.8)
        if near:
            raise ConfigError(f"There is no option {name!r}: did you mean {canonical[near[0]]}?")
        if lower in ("bootstrap.servers", "topics", "group.id"):
            better = "subscribe" if lower == "topics" else f"kafka.{lower}"
            raise ConfigError(f"There is no option {name!r}: did you mean {better}?")
        _log.warning("the option %r is unknown to this source and has no effect", name)


class _Given:
    """The options by name in any case. An empty value counts as not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value).strip() for name, value in given.items()}

    def names(self) -> list[str]:
        return sorted(self._given)

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower()) or None

    def has(self, name: str) -> bool:
        return self.text(name) is not None

    def flag(self, name: str, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {text!r}.")
        return text == "true"

    def number(self, name: str, least: int = 1, most: int = 2**63 - 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {text!r}.")
        return int(text)

    def size(self, name: str) -> int | None:
        """Bytes; 64k, 10m, 1g with factors of 1024."""
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?)(?:i?b)?", text.lower())
        if not match or not int(match[1]):
            raise ConfigError(f"{name} must be a number of bytes such as 64m or 1g, not {text!r}.")
        return int(match[1]) << (10 * " kmgt".index(match[2] or " "))

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in allowed:
            raise ConfigError(f"{name} must be {' or '.join(allowed)}, not {text!r}.")
        return text and text.lower()


def _subscription(options: _Given) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if len(given) != 1:
        what = "both " + " and ".join(given) if given else "none"
        raise ConfigError(f"Give exactly one of subscribe, subscribePattern and assign, not {what}.")
    text = options.text(given[0]) or ""
    if given[0] == "assign":
        return Subscription(assigned=offsets.parse_assignment("assign", text))
    if given[0] == "subscribe":
        topics = {topic.strip() for topic in text.split(",") if topic.strip()}
        if not topics:
            raise ConfigError(f"subscribe must name a topic, or several with commas between them, not {text!r}.")
        return Subscription(topics=tuple(sorted(topics)))
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"subscribePattern is no regular expression: {error}.") from None
    return Subscription(pattern=text)


def _start(options: _Given, streaming: bool) -> tuple[Position, int | None]:
    """The start, and where to begin in a partition with no record that late.

    A time for all partitions takes precedence over times by partition, and both take precedence over offsets.
    """
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
    default = "latest" if streaming else "earliest"
    position: Position
    if text := options.text("startingTimestamp"):
        position = offsets.parse_timestamp("startingTimestamp", text)
    elif text := options.text("startingOffsetsByTimestamp"):
        position = offsets.parse_timestamps("startingOffsetsByTimestamp", text)
    else:
        text = options.text("startingOffsets") or default
        position = offsets.parse_offsets("startingOffsets", text, forbidden=None if streaming else LATEST)
    # A silent partition has nothing in "the last ten minutes"; a fixed time that it never reached may be a mistake.
    relative = isinstance(position, offsets.Ago)
    return position, LATEST if strategy == "latest" or (relative and strategy is None) else None


def _end(options: _Given, streaming: bool) -> Position:
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    given = [name for name in names if options.has(name)]
    if not given:
        return Edge(LATEST)
    if streaming:
        raise ConfigError(
            f"Leave out {given[0]}: a stream has no end (for what is there now, use the trigger availableNow)."
        )
    text = options.text(given[0]) or ""
    if given[0] == "endingTimestamp":
        return offsets.parse_timestamp(given[0], text)
    if given[0] == "endingOffsetsByTimestamp":
        return offsets.parse_timestamps(given[0], text)
    return offsets.parse_offsets(given[0], text, forbidden=EARLIEST)


def _limits(options: _Given, streaming: bool) -> Limits:
    delay = options.text("maxTriggerDelay")
    limits = Limits(
        max_offsets=options.number("maxOffsetsPerTrigger"),
        max_bytes=options.size("maxBytesPerTrigger"),
        min_offsets=options.number("minOffsetsPerTrigger"),
        max_delay_ms=offsets.parse_duration_ms("maxTriggerDelay", delay) if delay else Limits().max_delay_ms,
    )
    if limits.max_offsets and limits.min_offsets and limits.min_offsets > limits.max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger ({limits.min_offsets}) must not be more than maxOffsetsPerTrigger ({limits.max_offsets})."
        )
    if not streaming and limits != Limits():
        _log.warning("limits per trigger have no effect on a batch read")
    return limits


def _patience(options: _Given) -> int:
    # Accepted because queries set them. The client retries by itself, within kafka.default.api.timeout.ms.
    options.number("fetchOffset.numRetries", least=0)
    options.number("fetchOffset.retryIntervalMs", least=0)
    return options.number("kafkaConsumer.pollTimeoutMs") or 120_000
