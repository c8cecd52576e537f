"""The source's options: valid and invalid ones, and the sentences of the errors."""

import re
from typing import Any

import pytest

from broker.client.kafka.values import EARLIEST, LATEST
from broker.errors import ConfigError
from broker.spark.source.offsets import Ago, Edge, Since
from broker.spark.source.options import COLUMNS, Limits, SourceOptions, Subscription, check_names, parse_columns

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parse(streaming: bool = False, **options: Any) -> SourceOptions:
    return SourceOptions.parse({"subscribe": "orders"} | SERVERS | options, streaming=streaming)


def test_minimal_options_are_accepted() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (("localhost", 9092),) == batch.client.bootstrap
    assert Subscription(topics=("orders",)) == batch.subscription
    assert (Edge(EARLIEST), Edge(LATEST)) == (batch.start, batch.end)
    assert Edge(LATEST) == stream.start
    assert COLUMNS == batch.columns
    assert (True, Limits(), None, None) == (
        batch.fail_on_data_loss,
        batch.limits,
        batch.min_partitions,
        batch.commit_group,
    )


def test_names_are_taken_in_any_case() -> None:
    options = parse(failondataloss="FALSE", MINPARTITIONS="7")
    assert (False, 7) == (options.fail_on_data_loss, options.min_partitions)


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"subscribe": " b , a ,b"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "ord.*"}, Subscription(pattern="ord.*")),
        ({"assign": '{"a": [1, 0]}'}, Subscription(assigned=(("a", 0), ("a", 1)))),
    ],
)
def test_subscriptions_are_parsed(given: dict[str, str], subscription: Subscription) -> None:
    assert subscription == SourceOptions.parse(SERVERS | given, streaming=False).subscription


def test_limits_of_a_trigger_are_parsed() -> None:
    options = parse(
        streaming=True,
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="5m",
        maxBytesPerTrigger="64m",
    )
    assert Limits(1000, 64 << 20, 10, 300_000) == options.limits


def test_time_outranks_times_by_partition_and_offsets() -> None:
    times = {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "startingOffsets": "earliest"}
    assert Since(7) == parse(startingTimestamp="7", **times).start
    assert {("orders", 0): 5} == parse(**times).start.at_ms  # type: ignore[union-attr]


def test_silent_partition_is_error_for_fixed_times_only() -> None:
    assert parse(startingTimestamp="7").late_start is None
    assert LATEST == parse(startingTimestamp="7", startingOffsetsByTimestampStrategy="latest").late_start
    ago = parse(startingOffsets="-10 minutes")
    assert (Ago(600_000), LATEST) == (ago.start, ago.late_start)
    assert parse(startingOffsets="-10 minutes", startingOffsetsByTimestampStrategy="error").late_start is None


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({}, COLUMNS),
        ({"includeHeaders": "true"}, (*COLUMNS, "headers")),
        ({"columns": "value, OFFSET"}, ("value", "offset")),
        ({"columns": "headers,timestamptype"}, ("headers", "timestampType")),
        ({"columns": "value", "includeHeaders": "true"}, ("value", "headers")),
    ],
)
def test_columns(given: dict[str, str], columns: tuple[str, ...]) -> None:
    assert columns == parse_columns(given)


def test_security_goes_to_the_client() -> None:
    options = parse(
        **{
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="u" password="p";',
            "kafka.isolation.level": "read_committed",
        }
    )
    assert options.client.sasl is not None
    assert "u" == options.client.sasl.username
    assert options.client.tls is not None
    assert "read_committed" == options.client.isolation_level


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "No option has come here: Spark does not pass on what CREATE TABLE says in OPTIONS"),
        ({"subscribe": "orders"}, "Set the option kafka.bootstrap.servers to the address of a broker"),
        (SERVERS, "Give exactly one of subscribe, subscribePattern and assign, not none."),
        (
            SERVERS | {"subscribe": "a", "assign": '{"a": [0]}'},
            "Give exactly one of subscribe, subscribePattern and assign, not both subscribe and assign.",
        ),
        (SERVERS | {"subscribe": " , "}, "subscribe must name a topic"),
        (SERVERS | {"subscribePattern": "("}, "subscribePattern is no regular expression"),
        (SERVERS | {"subscribe": "a", "columns": "value,size"}, "columns may name key, value, topic, "),
        (SERVERS | {"subscribe": "a", "columns": "value,value"}, "columns names a column twice"),
        (SERVERS | {"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'."),
        (SERVERS | {"subscribe": "a", "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        (SERVERS | {"subscribe": "a", "maxRecordsPerPartition": "x"}, "maxRecordsPerPartition must be a whole number"),
        (SERVERS | {"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets of a batch read cannot be latest"),
        (SERVERS | {"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets of a batch read cannot be earliest"),
        (
            SERVERS | {"subscribe": "a", "startingOffsetsByTimestampStrategy": "soon"},
            "startingOffsetsByTimestampStrategy must be error or latest, not 'soon'.",
        ),
        (SERVERS | {"subscribe": "a", "kafkaConsumer.pollTimeoutMs": "-1"}, "kafkaConsumer.pollTimeoutMs must be"),
        (SERVERS | {"subscribe": "a", "fetchOffset.numRetries": "many"}, "fetchOffset.numRetries must be"),
        (SERVERS | {"subscribe": "a", "kafka.isolation.level": "some"}, "Among the kafka.* options: isolation.level"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "nowhere"}, "Among the kafka.* options: bootstrap.servers"),
    ],
)
def test_invalid_value_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}") as raised:
        SourceOptions.parse(given, streaming=False)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"endingOffsets": "latest"}, "Leave out endingOffsets: a stream has no end"),
        ({"endingTimestamp": "5"}, "Leave out endingTimestamp: a stream has no end"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as 15m"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger must be a number of bytes such as 64m"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a number of bytes such as 64m"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger (5) must not be more than maxOffsetsPerTrigger (4).",
        ),
    ],
)
def test_invalid_stream_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}"):
        parse(streaming=True, **given)


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_settings_of_the_source_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Leave out kafka\.{re.escape(name)}: .*\.$"):
        parse(**{f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribes", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataloss ", "failOnDataLoss"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("topics", "subscribe"),
    ],
)
def test_misspelt_option_is_answered_with_a_suggestion(slip: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {re.escape(meant)}\?$"):
        parse(**{slip: "x"})


def test_unrelated_option_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    parse(**{"colour": "red", "kafka.max.poll.records": "5"})
    assert "'colour' is unknown to this source" in caplog.text
    assert "no effect here: kafka.max.poll.records" in caplog.text


def test_options_of_the_other_side_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    parse(topic="orders", path="x", **{"kafka.group.id": "g"})
    check_names(["topic"], ["topic"])
    assert "" == caplog.text
