"""The sink's options and the columns of the rows. Pure; every ConfigError is one sentence.

Names and meanings are those of Spark's Kafka connector, so that a query changes only the name of its format;
``deliveryGuarantee`` is this project's own, ``txnAppId`` and ``txnVersion`` are Delta's.
"""

import re
from collections.abc import Mapping

import attrs
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.transaction import LONGEST_TRANSACTION_MS
from broker.errors import ConfigError
from broker.spark.source.options import SINK_OPTIONS, SOURCE_OPTIONS, check_names, client_config

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"

# Four times Kafka's default. A batch is 1 MB, so by default no two batches would fit into a request. Requests of
# several batches (three, if these are full) cost producer and broker a tenth less CPU, and more data is on its way to
# the disk.
SINK_REQUEST_BYTES = 4 * 1024 * 1024


@attrs.frozen
class SinkOptions:
    """``topic`` None: the rows have a topic. ``client`` includes the producer's settings.

    ``version``: application and number of a batch write, by which a repetition is recognised (``foreachBatch``).
    """

    client: ClientConfig
    topic: str | None
    guarantee: str
    version: tuple[str, int] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, default_guarantee: str) -> "SinkOptions":
        check_names(given, SINK_OPTIONS, also=SOURCE_OPTIONS)
        named = {name.lower(): str(value).strip() for name, value in given.items()}
        version = _version(named)
        if version is not None:
            default_guarantee = EXACTLY_ONCE
        guarantee = (named.get("deliveryguarantee") or default_guarantee).lower().replace("_", "-")
        if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
            raise ConfigError(f"deliveryGuarantee must be {EXACTLY_ONCE} or {AT_LEAST_ONCE}, not {guarantee!r}.")
        if "kafka.transactional.id" in named:
            raise ConfigError(
                f"Leave out kafka.transactional.id: with deliveryGuarantee={EXACTLY_ONCE} each task has one of its own."
            )
        client = client_config(given)
        if "kafka.transaction.timeout.ms" not in named:
            # A task's transaction waits for all other tasks of its batch.
            client = attrs.evolve(client, transaction_timeout_ms=LONGEST_TRANSACTION_MS)
        if "kafka.max.request.size" not in named:
            # Batches of several partitions then share requests, and the topic decides whether to refuse a large record.
            client = attrs.evolve(client, max_request_size=SINK_REQUEST_BYTES)
        if guarantee == EXACTLY_ONCE and (client.acks != "all" or client.enable_idempotence is False):
            raise ConfigError(
                f"deliveryGuarantee={EXACTLY_ONCE} needs kafka.acks=all and idempotence: leave both as they are,"
                f" or set deliveryGuarantee={AT_LEAST_ONCE}."
            )
        if version is not None and guarantee != EXACTLY_ONCE:
            raise ConfigError(f"txnAppId and txnVersion need deliveryGuarantee={EXACTLY_ONCE}: leave it out.")
        topic = named.get("topic") or None
        if topic is not None:
            check_topic(topic, "The option topic")
        return cls(client, topic, guarantee, version)

    @property
    def exactly_once(self) -> bool:
        return self.guarantee == EXACTLY_ONCE


def check_topic(name: str, where: str) -> None:
    """Raises ConfigError for a name that Kafka does not allow for a topic. ``where``: the place of the name, for the message."""
    if name in (".", "..") or not _TOPIC.fullmatch(name):
        raise ConfigError(
            f"{where} is {name[:300]!r}, which no topic can be called: names have 1 to 249 letters, digits, dots, underscores"
            " and hyphens."
        )


_TOPIC = re.compile("[a-zA-Z0-9._-]{1,249}")


def _version(named: Mapping[str, str]) -> tuple[str, int] | None:
    name, number = named.get("txnappid"), named.get("txnversion")
    if not name and not number:
        return None
    if not name or not number:
        raise ConfigError(
            "Set both txnAppId (whose writes these are) and txnVersion (which of them this is), or neither."
        )
    if "/" in name:  # separates it from the task in transactional ids
        raise ConfigError(f"txnAppId must have no / in it: {name!r}.")
    # It is stored as a group's offset, which has 63 bits.
    if not (number.isascii() and number.isdecimal() and int(number) < 1 << 63):
        raise ConfigError(
            f"txnVersion must be a whole number from 0 on that grows from write to write, not {number!r}."
        )
    return name, int(number)


@attrs.frozen
class SinkColumns:
    """The index of each column in a row, None if missing. Other columns are not written, as with Spark's own Kafka sink."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> "SinkColumns":
        """Raises ConfigError. ``topic``: the option, which has precedence over the column."""
        where: dict[str, int] = {}
        for index, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _ALLOWED:
                continue
            if name in where:
                raise ConfigError(f"There are two columns {name!r}: leave one out.")
            if not _is_one_of(field.dataType, name):
                raise ConfigError(
                    f"The column {name!r} must be {_ALLOWED[name]}, not {field.dataType.simpleString()}: cast it."
                )
            where[name] = index
        if "value" not in where:
            names = ", ".join(schema.fieldNames()) or "none"
            raise ConfigError(f"There must be a column 'value' to write; the columns are: {names}.")
        if topic is not None:
            where.pop("topic", None)
        elif "topic" not in where:
            raise ConfigError("Say where to write: set the option topic, or add a column 'topic'.")
        return cls(**where)


_ALLOWED = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
}


def _is_one_of(kind: DataType, column: str) -> bool:
    if column in ("key", "value"):
        return isinstance(kind, (StringType, BinaryType))
    if column == "topic":
        return isinstance(kind, StringType)
    if column == "partition":
        return isinstance(kind, IntegerType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and (
        isinstance(fields[0].dataType, StringType) and isinstance(fields[1].dataType, BinaryType)
    )
