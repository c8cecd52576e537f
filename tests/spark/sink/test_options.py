import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broker.client.kafka.transaction import LONGEST_TRANSACTION_MS
from broker.errors import ConfigError
from broker.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkColumns, SinkOptions

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**more: str) -> SinkOptions:
    given = SERVERS | {name.replace("__", "."): value for name, value in more.items()}
    return SinkOptions.parse(given, default_guarantee=AT_LEAST_ONCE)


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "map": MapType(StringType(), BinaryType()),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def columns(schema: str, topic: str | None = None) -> SinkColumns:
    """``name type, name type``; without a session Spark's own notation cannot be parsed."""
    pairs = [pair.split() for pair in schema.split(", ")]
    return SinkColumns.of(StructType([StructField(name, TYPES[kind]) for name, kind in pairs]), topic)


@pytest.mark.parametrize("text", [EXACTLY_ONCE, "EXACTLY_ONCE", " Exactly-Once "])
def test_the_guarantee(text: str) -> None:
    assert AT_LEAST_ONCE == parsed().guarantee
    assert parsed(deliveryGuarantee=text).exactly_once


def test_kafka_s_settings_are_the_producer_s() -> None:
    client = parsed(kafka__acks="1", kafka__compression__type="zstd", kafka__max__request__size="5000").client
    assert ("1", "zstd", 5000) == (client.acks, client.compression_type, client.max_request_size)


def test_requests_have_room_for_several_batches_by_default() -> None:
    assert parsed().client.max_request_size > 3 * parsed().client.batch_size
    assert 5000 == parsed(kafka__max__request__size="5000").client.max_request_size


def test_transaction_timeout_is_the_longest_by_default() -> None:
    assert LONGEST_TRANSACTION_MS == parsed().client.transaction_timeout_ms
    assert 5 == parsed(kafka__transaction__timeout__ms="5").client.transaction_timeout_ms


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"deliveryGuarantee": "twice"}, "deliveryGuarantee must be exactly-once or at-least-once, not 'twice'."),
        ({"kafka__transactional__id": "mine"}, r"Leave out kafka\.transactional\.id"),
        ({"deliveryGuarantee": EXACTLY_ONCE, "kafka__acks": "1"}, r"needs kafka\.acks=all and idempotence"),
        ({"deliveryGuarantee": EXACTLY_ONCE, "kafka__enable__idempotence": "false"}, r"needs kafka\.acks=all"),
        ({"topics": "a"}, "There is no option 'topics'"),
        ({"txnAppId": "a/b", "txnVersion": "1"}, "txnAppId must have no / in it: 'a/b'."),
        ({"topic": "a/b"}, "The option topic is 'a/b', which no topic can be called: names have 1 to 249 letters"),
        ({"topic": ".."}, r"The option topic is '\.\.', which no topic can be called"),
        ({"topic": "x" * 250}, "which no topic can be called"),
    ],
)
def test_invalid_options_are_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(**options)


def test_columns_are_found_by_name() -> None:
    schema = "partition int, other string, KEY binary, value string, topic string, headers headers"
    assert SinkColumns(value=3, key=2, headers=5, topic=4, partition=0) == columns(schema)
    assert SinkColumns(value=3, key=2, headers=5, topic=None, partition=0) == columns(schema, topic="t")


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("key string", "There must be a column 'value' to write; the columns are: key."),
        ("value string", "Say where to write: set the option topic, or add a column 'topic'."),
        ("value int, topic string", "The column 'value' must be string or binary, not int: cast it."),
        ("value string, key double, topic string", "The column 'key' must be string or binary, not double: cast it."),
        ("value string, topic binary", "The column 'topic' must be string, not binary: cast it."),
        ("value string, topic string, partition bigint", "The column 'partition' must be int, not bigint: cast it."),
        (
            "value string, topic string, headers map",
            "The column 'headers' must be array<struct<key:string,value:binary>>, not map<string,binary>: cast it.",
        ),
        ("value string, VALUE string, topic string", "There are two columns 'value': leave one out."),
    ],
)
def test_invalid_columns_are_one_sentence(schema: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as failure:
        columns(schema)
    assert sentence == str(failure.value)
