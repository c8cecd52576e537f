"""Update mode by ``foreachBatch``: a batch write that is recognised by txnAppId and txnVersion when it comes again."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.errors import ConfigError
from broker.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SERVERS = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}


def test_repeated_batch_writes_a_changed_count_once(
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
    # As if Spark had been killed before it had recorded the last batch.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert [0, 1, 1] == numbers
    rows = read(subscribe=counts, **{"kafka.isolation.level": "read_committed"}).orderBy("key", "offset").collect()
    assert [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")] == [(bytes(row.key), bytes(row.value)) for row in rows]


class TwoTopics:
    """A query with batches to two topics, and by the column to both, with the same number."""

    def __init__(self, stream: "Callable[..., DataFrame]", topics: Topics, checkpoint: Path) -> None:
        self.words, self.left, self.right, self.checkpoint = topics.make(), topics.make(), topics.make(), checkpoint
        self._topics = topics
        self._rows = stream(subscribe=self.words, startingOffsets="earliest").selectExpr("cast(value as string) value")
        self.numbers: list[int] = []
        self.dies_after = 99  # the number of writes

    def save(self, rows: "DataFrame", batch_id: int, **options: str) -> None:
        if self.dies_after == 0:
            raise RuntimeError("dies between two writes")
        self.dies_after -= 1
        given = {"kafka.bootstrap.servers": self._topics.bootstrap_servers, "txnAppId": self.words, **options}
        rows.write.format("broker").options(**given, txnVersion=str(batch_id)).mode("append").save()

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        self.numbers.append(batch_id)
        self.save(batch, batch_id, topic=self.left)
        self.save(batch.selectExpr("upper(value) value"), batch_id, topic=self.right)
        both = f"explode(array('{self.left}', '{self.right}')) topic"
        self.save(batch.selectExpr("concat(value, '!') value", both), batch_id)

    def run(self, dies_after: int = 99) -> None:
        self.dies_after = dies_after
        query = self._rows.writeStream.foreachBatch(self.write).option("checkpointLocation", str(self.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    def forget(self, batch_id: int) -> None:
        """As if Spark had been killed before it had recorded this batch."""
        (self.checkpoint / "commits" / str(batch_id)).unlink()
        (self.checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)

    def seen(self, read: "Callable[..., DataFrame]") -> tuple[list[str], list[str]]:
        committed = read(subscribe=f"{self.left},{self.right}", **{"kafka.isolation.level": "read_committed"})
        rows = [(row.topic, bytes(row.value).decode()) for row in committed.collect()]
        return sorted(v for t, v in rows if t == self.left), sorted(v for t, v in rows if t == self.right)


@pytest.fixture
def two_topics(stream: "Callable[..., DataFrame]", topics: Topics, tmp_path: Path) -> TwoTopics:
    return TwoTopics(stream, topics, tmp_path)


def test_batch_goes_to_two_topics_with_one_number(
    two_topics: TwoTopics, topics: Topics, read: "Callable[..., DataFrame]"
) -> None:
    topics.send(two_topics.words, 0, [(None, b"a", 1000, [])])
    two_topics.run()
    assert (["a", "a!"], ["A", "a!"]) == two_topics.seen(read)
    two_topics.forget(0)
    two_topics.run()
    assert (["a", "a!"], ["A", "a!"]) == two_topics.seen(read)
    topics.send(two_topics.words, 1, [(None, b"b", 1000, [])])
    for writes in (1, 2):
        with pytest.raises(Exception, match="dies between two writes"):
            two_topics.run(dies_after=writes)
    assert (["a", "a!", "b"], ["A", "B", "a!"]) == two_topics.seen(read)
    two_topics.run()
    assert (["a", "a!", "b", "b!"], ["A", "B", "a!", "b!"]) == two_topics.seen(read)
    assert [0, 0, 1, 1, 1] == two_topics.numbers


def test_two_writes_with_one_number_are_an_error(
    two_topics: TwoTopics, topics: Topics, read: "Callable[..., DataFrame]"
) -> None:
    """Spark's job group tells which run of the query it is, even to a task of a write in a foreachBatch."""
    two_topics.right = two_topics.left
    topics.send(two_topics.words, 0, [(None, b"a", 1000, [])])
    for _ in range(2):
        with pytest.raises(Exception, match=f"has written to '{two_topics.left}' with txnVersion 0 in this run"):
            two_topics.run()
    assert ["a"] == two_topics.seen(read)[0]


def test_numbered_write_is_exactly_once() -> None:
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
def test_invalid_options_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SinkOptions.parse(SERVERS | given, default_guarantee=AT_LEAST_ONCE)
