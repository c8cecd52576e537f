"""Update mode by ``foreachBatch``: a batch write that is recognised by txnAppId and txnVersion when it comes again."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.errors import ConfigError
from broker.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SERVERS = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}


def test_a_changed_count_is_written_once_although_its_batch_comes_again(
    spark: "SparkSession",
    topics: Topics,
    stream: "Callable[..., DataFrame]",
    read: "Callable[..., DataFrame]",
    tmp_path: Path,
) -> None:
    words, counts = topics.make(), topics.make()
    changed = stream(subscribe=words, startingOffsets="earliest").selectExpr("cast(value as string) as key")
    changed = changed.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    numbers: list[int] = []

    def write(batch: "DataFrame", batch_id: int) -> None:
        numbers.append(batch_id)
        batch.write.format("broker").options(
            **{
                "kafka.bootstrap.servers": topics.bootstrap_servers,
                "topic": counts,
                "txnAppId": counts,
                "txnVersion": batch_id,
            }
        ).mode("append").save()

    def run() -> None:
        query = changed.writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query.start().awaitTermination()

    topics.send(words, 0, [(None, word, 1000, []) for word in (b"a", b"b", b"a")])
    run()
    topics.send(words, 1, [(None, b"a", 1000, [])])
    run()
    # As if Spark had been killed before it had written down that the last batch was done.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert [0, 1, 1] == numbers
    rows = read(subscribe=counts, **{"kafka.isolation.level": "read_committed"}).orderBy("key", "offset").collect()
    assert [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")] == [(bytes(row.key), bytes(row.value)) for row in rows]


def test_a_numbered_write_is_exactly_once() -> None:
    options = SinkOptions.parse(SERVERS | {"txnAppId": "a", "txnVersion": "7"}, default_guarantee=AT_LEAST_ONCE)
    assert (EXACTLY_ONCE, ("a", 7)) == (options.guarantee, options.version)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"txnAppId": "a"}, "both txnAppId"),
        ({"txnVersion": "1"}, "both txnAppId"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "whole number"),
        ({"txnAppId": "a", "txnVersion": "one"}, "whole number"),
        ({"txnAppId": "a", "txnVersion": str(1 << 63)}, "whole number"),
        ({"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"}, "exactly-once"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SinkOptions.parse(SERVERS | given, default_guarantee=AT_LEAST_ONCE)
