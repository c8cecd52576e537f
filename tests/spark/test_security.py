"""Source, sink and exchange with TLS and a login; and where the password does not show."""

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.client import Broker
from broker.spark.exchanges.driver import exchange
from broker.spark.exchanges.plan import ExchangeError
from broker.spark.source.options import SourceOptions
from tests import certificates
from tests.client.shuffle.tls_gate import TlsGate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PASSWORD = "s3cret-Ä"


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificates.server().write(tmp_path / "server").both)
    return made


@pytest.fixture
def trusted(tmp_path: Path) -> str:
    (tmp_path / "ca.crt").write_text(certificates.authority().pem)
    return str(tmp_path / "ca.crt")


@pytest.fixture
def gate(context: ssl.SSLContext) -> Iterator[TlsGate]:
    """A gate in front of a broker at which alice logs in."""
    with (
        TlsGate(context) as gate,
        Broker(listeners=(f"kafka+sasl://127.0.0.1:0?advertised={gate.address}",)) as running,
    ):
        gate.target = running.bootstrap_servers
        running.add_user("alice", PASSWORD)
        running.server.kafka.logs.create_topic("words", 2, {})
        yield gate


@pytest.fixture
def options(gate: TlsGate, trusted: str) -> dict[str, str]:
    """As Spark's own Kafka connector takes them."""
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "kafka.bootstrap.servers": gate.address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{jaas} username="alice" password="{PASSWORD}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": trusted,
    }


def plan_of(df: "DataFrame") -> str:
    return str(df._jdf.queryExecution().toString())


def test_rows_pass_as_batch_and_stream(spark: "SparkSession", options: dict[str, str], tmp_path: Path) -> None:
    words = [f"word {number}" for number in range(50)]
    rows = spark.createDataFrame([(word,) for word in words], "value string")
    rows.write.format("broker").options(**options).option("topic", "words").mode("append").save()
    source = spark.read.format("broker").options(**options).option("subscribe", "words")
    read = source.load()
    assert PASSWORD not in plan_of(read)
    assert sorted(words) == sorted(row.value.decode() for row in read.collect())
    stream = (
        spark.readStream.format("broker")
        .options(**options)
        .options(subscribe="words", startingOffsets="earliest")
        .load()
    )
    query = (
        stream.writeStream.format("broker")
        .options(**options)
        .option("topic", "words")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert PASSWORD not in str(query.lastProgress)
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
    assert 2 * len(words) == source.load().count()


def test_wrong_password_is_reported_without_it(
    spark: "SparkSession", options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = {name: value.replace(PASSWORD, "wrong-one") for name, value in options.items()}
    with pytest.raises(Exception, match="refuses 'alice' with SCRAM-SHA-512") as failure:
        spark.read.format("broker").options(**wrong).option("subscribe", "words").load().collect()
    assert "wrong-one" not in str(failure.value)
    assert "wrong-one" not in "".join(
        record.getMessage() for record in caplog.records if record.name != "py4j.clientserver"
    )


def test_options_hide_the_password(options: dict[str, str]) -> None:
    parsed = SourceOptions.parse(options | {"subscribe": "words"}, streaming=False)
    assert parsed.client.sasl is not None
    assert PASSWORD == parsed.client.sasl.password
    assert PASSWORD not in repr(parsed)


def test_exchange_goes_over_tls(
    spark: "SparkSession", context: ssl.SSLContext, trusted: str, session_broker: Broker
) -> None:
    rows = spark.range(1000).selectExpr("id", "id % 7 AS key")
    security = {"security.protocol": "SSL", "ssl.truststore.location": trusted}
    with TlsGate(context, session_broker.shuffle_address) as gate:
        with exchange(rows, "key", 3, brokers=f"shuffle+ssl://{gate.address}", security=security) as exchanged:
            assert list(range(1000)) == sorted(row.id for row in exchanged.collect())
        assert gate.let_in >= 3
        with pytest.raises(ExchangeError, match="its certificate is not accepted"):
            exchange(rows, "key", 3, brokers=f"shuffle+ssl://{gate.address}")
