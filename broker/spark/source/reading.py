"""A task's reading: from a ``Slice`` to Arrow record batches of about 1 MB. In a Python worker of an executor, on its thread.

Everything is opened here and closed when the last batch, an error or the end of the task comes, so a task that failed is
simply run again. Nothing is kept between tasks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import OffsetOutOfRangeError, TopicRecreatedError, UnknownTopicError
from broker.client.kafka.fetcher import Fetcher
from broker.client.kafka.values import READ_COMMITTED, Fetched
from broker.spark.source.partitions import Slice
from broker.spark.source.resolve import Loss, name, records
from broker.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.client.kafka.columns.columns import Decoder


def read(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The records of one slice, in order. Spark makes a partition of its own, without a value, where there is none to read."""
    if not isinstance(partition, Slice):
        return
    settle()
    wanted, settings = partition.range, partition.settings
    loss = Loss(settings.fail_on_data_loss)
    with Cluster(settings.client) as cluster:
        known = cluster.topics([wanted.topic]).get(wanted.topic)
        if known is None or wanted.partition not in known.partitions:
            loss.report(
                f"{wanted.topic}-{wanted.partition} was deleted before {records(wanted.start, wanted.end)} were read."
            )
            return
        if wanted.topic_id and known.topic_id and known.topic_id.hex != wanted.topic_id:
            loss.report(f"The topic {wanted.topic!r} was deleted and created again before {wanted} was read.")
            return
        with cluster.fetcher(wanted.topic, wanted.partition, wanted.start, wanted.end) as fetcher:
            yield from _records_of(fetcher, partition, cluster, loss)


def _records_of(fetcher: Fetcher, task: Slice, cluster: Cluster, loss: Loss) -> "Iterator[pa.RecordBatch]":
    wanted = task.range
    decoder = _decoder(task, wanted.start)
    deadline: float | None = None
    while True:
        try:
            fetched = next(fetcher, None)
        except OffsetOutOfRangeError as error:
            following = _after_gap(error, decoder.next_offset, task, loss)
            if following is None:
                return
            decoder = _decoder(task, following)
            fetcher.seek(following)
            continue
        except (TopicRecreatedError, UnknownTopicError) as error:
            loss.report(str(error))
            return
        if fetched is None:
            return
        if fetched.data:
            yield from decoder.batches(fetched.data, fetched.aborted)
            deadline = None
            continue
        # The end was taken from what the broker said, so what is missing here comes soon, or is lost.
        now = cluster.clock.monotonic()
        deadline = deadline or now + task.settings.poll_timeout_ms / 1000
        if now >= deadline:
            loss.report(
                f"{name((wanted.topic, wanted.partition))} ends at {_end(fetched, task)}, before offset {wanted.end} that was"
                f" there when the read was planned, and nothing came within {task.settings.poll_timeout_ms} ms."
            )
            return


def _decoder(task: Slice, start: int) -> "Decoder":
    # Only tasks need Arrow and numpy: the processes that plan import this module, too, and are quicker without.
    from broker.client.kafka.columns.columns import Decoder

    return Decoder(task.range.topic, task.range.partition, start, task.range.end, columns=task.settings.columns)


def _after_gap(error: OffsetOutOfRangeError, position: int, task: Slice, loss: Loss) -> int | None:
    """Where to go on after records that are gone; None: nothing is left to read."""
    where = name((task.range.topic, task.range.partition))
    if position < error.log_start:
        gone = min(error.log_start, task.range.end)
        loss.report(
            f"Before they were read, {records(position, gone)} of {where} were deleted: it begins at {error.log_start} now."
        )
        return gone if gone < task.range.end else None
    loss.report(f"{where} ends at {error.end} now, before {records(position, task.range.end)} were read.")
    return None


def _end(fetched: Fetched, task: Slice) -> int:
    committed = task.settings.client.isolation_level == READ_COMMITTED
    return fetched.last_stable_offset if committed else fetched.high_watermark
